"""Arms of the benchmark: plain training, the plug-in, controls, placebos and peers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import signature
from typing import Any

from benchmarks import optimizers as opt
from benchmarks.optimizers import Build, adamw
from benchmarks.placebos import PLACEBOS
from hybrid_predict import FittedPredictor, HybridConfig, MomentumPredictor, SpectralUpdate

SPEEDUP = 1.5
"""Every arm except the plain ones takes T / 1.5 full steps."""

_IN_DIGESTS = {
    "around": "AroundOptimizers(optimizers: 'Optimizer | Sequence[Optimizer]') -> 'None' []",
    "scheduled": True,
}
"""Of committed runs, whose arms had these."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way to train.

    ``tunes`` names a learning rate. Several ``factors`` on it are tried in a grid. ``share`` is the
    number of full steps, divided by T, in a run without predicted steps. ``plugin`` has arguments
    of `HybridConfig`.
    """

    name: str
    title: str
    build: Build = adamw
    plugin: Mapping[str, Any] | None = None
    share: float = 1 / SPEEDUP
    tunes: str = "base"
    factors: tuple[float, ...] = field(default=(1.0,))

    def full_steps(self, steps: int) -> int:
        """Return the full steps on a task of ``steps``, if all predicted steps stand."""
        return max(1, round(steps * self.share))

    def config(self, steps: int) -> HybridConfig | None:
        """Return the configuration of the plug-in on a task of ``steps``; None without it."""
        if self.plugin is None:
            return None
        config = HybridConfig(**{"speedup": SPEEDUP, "total_steps": steps, **self.plugin})
        if config.compression > 1:
            return config
        return replace(config, total_steps=self.full_steps(steps))

    def schedule(self, steps: int) -> int:
        """Return the steps of the learning-rate schedule on a task of ``steps``."""
        config = self.config(steps)
        return (config and config.total_steps) or self.full_steps(steps)

    def describe(self) -> dict[str, Any]:
        """Return the arm as plain data, without its rates and the plug-in."""
        return {"build": _described(self.build), "share": self.share, **_IN_DIGESTS}


def _described(function: Callable[..., Any]) -> str:
    """Return a function's name with its bound and its default arguments."""
    bound = function.keywords if isinstance(function, partial) else {}
    inner = function.func if isinstance(function, partial) else function
    return f"{inner.__qualname__}{signature(inner)} {sorted(bound.items())}"


def _momentum(coefficient: float) -> MomentumPredictor:
    return MomentumPredictor(coefficient=coefficient, gated=False)


def _predicted(coefficient: float) -> Arm:
    return Arm(
        name=f"predict-{coefficient:g}".replace("0.", "."),
        title=f"corrected + predicted, coefficient {coefficient:g}",
        plugin={"predictors": {"hidden": _momentum(coefficient)}},
    )


_MUON = (0.5, 1.0, 2.0, 4.0, 8.0)
_SOAP = (0.25, 0.5, 1.0, 2.0, 4.0)
_COEFFICIENTS = tuple(map(_predicted, (0, 0.5, 1)))


def _placebos(*, gated: bool) -> tuple[Arm, ...]:
    return tuple(
        Arm(
            name=f"placebo-{name}" + "-gated" * gated,
            title=f"placebo: {name}" + ", gated" * gated,
            plugin={"predictors": {"hidden": make(gated=gated)}},
        )
        for name, make in PLACEBOS.items()
    )


ARMS: dict[str, Arm] = {
    arm.name: arm
    for arm in (
        Arm(name="plain-half", title="plain, T/2", share=0.5),
        Arm(name="short", title="plain, T/1.5"),
        Arm(name="plain", title="plain, T", share=1.0),
        Arm(name="plain-double", title="plain, 2T", share=2.0),
        Arm(name="plain-quadruple", title="plain, 4T", share=4.0),
        Arm(name="corrected", title="corrected", plugin={"speedup": 1}),
        Arm(name="hybrid", title="hybrid (default)", plugin={}),
        Arm(name="auto", title="auto", plugin={"speedup": "auto"}, share=1.0),
        *_COEFFICIENTS,
        Arm(name="predicted-only", title="predicted only",
            plugin={"updates": {}, "predictors": {"hidden": _momentum(0.5)}}),
        Arm(name="corrected-any-cost", title="corrected, whatever it costs",
            plugin={"speedup": 1, "max_overhead": 1e9}),
        Arm(name="own-length", title="corrected, the optimizer's own length",
            plugin={"speedup": 1, "updates": {"hidden": SpectralUpdate(bound=1.0)}}),
        Arm(name="no-root", title="corrected, without the root",
            plugin={"speedup": 1, "updates": {"hidden": SpectralUpdate(longest=0)}}),
        Arm(name="fitted-only", title="fitted only",
            plugin={"updates": {}, "predictors": {"hidden": FittedPredictor()}}),
        *_placebos(gated=False),
        *_placebos(gated=True),
        Arm(name="hidden-x2", title="hidden rate x 2", tunes="hidden", factors=(2.0,)),
        Arm(name="hidden-x3", title="hidden rate x 3", tunes="hidden", factors=(3.0,)),
        Arm(name="hidden-x4", title="hidden rate x 4", tunes="hidden", factors=(4.0,)),
        Arm(name="beta1", title="beta1 = 0.95", build=partial(adamw, beta1=0.95)),
        Arm(name="muon", title="Muon", build=opt.muon, tunes="hidden", factors=_MUON),
        Arm(name="normuon", title="NorMuon", build=opt.normuon, tunes="hidden", factors=_MUON),
        Arm(name="soap", title="SOAP", build=opt.soap, tunes="hidden", factors=_SOAP),
        Arm(name="soap-muon", title="SOAP-Muon", build=opt.soap_muon, tunes="hidden",
            factors=_MUON),
    )
}  # fmt: skip

PLAIN = ("plain-half", "short", "plain", "plain-double", "plain-quadruple")
"""Arms of plain training that give the curve of loss over full steps, ascending in steps.

They resolve speedups from 0.75 to 6 of an arm with T / 1.5 full steps.
"""

MECHANISMS: dict[str, str | None] = {
    "short": "plain",
    "corrected": "corrected",
    "predict-0": "both",
    "hybrid": "both",
    "predicted-only": "predicted",
    "fitted-only": "predicted",
}
"""Arms that separate the mechanisms of the plug-in, after plain training of as many full steps.

The values name the way in `step_cost.WAYS` whose cost their full steps have; None if not measured.
"""
