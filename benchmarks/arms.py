"""Arms of the benchmark: plain training, the plug-in, controls, placebos and peers.

Digests tell what a result depends on: its recipe, and the code that made it.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from inspect import signature
from pathlib import Path
from typing import Any

import torch

import hybrid_predict
from benchmarks import optimizers as opt
from benchmarks.optimizers import Build, adamw
from benchmarks.placebos import PLACEBOS
from benchmarks.tasks import Task
from hybrid_predict import HybridConfig, MomentumPredictor, SpectralUpdate
from hybrid_predict.forecast.predictors import Predictor, make_predictor
from hybrid_predict.updates import make_update

SPEEDUP = 1.5  # every arm except the plain ones takes T / 1.5 full steps

_IN_DIGESTS = {  # of committed runs, whose arms had these
    "around": "AroundOptimizers(optimizers: 'Optimizer | Sequence[Optimizer]') -> 'None' []",
    "scheduled": True,
}


@dataclass(frozen=True)
class Arm:
    """One way to train; ``plugin`` has arguments of `HybridConfig`.

    Several ``factors`` on the learning rate that ``tunes`` names are tried in a grid. ``share`` is
    the number of full steps, divided by T, in a run without predicted steps.
    """

    name: str
    title: str
    build: Build = adamw
    plugin: Mapping[str, Any] | None = None
    share: float = 1 / SPEEDUP
    tunes: str = "base"
    factors: tuple[float, ...] = (1.0,)

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


def _described(function: Callable[..., Any]) -> str:
    bound = function.keywords if isinstance(function, partial) else {}
    inner = function.func if isinstance(function, partial) else function
    return f"{inner.__qualname__}{signature(inner)} {sorted(bound.items())}"


def _with(name: str, title: str, *, share: float = 1 / SPEEDUP, **plugin: Any) -> Arm:
    return Arm(name, title, plugin=plugin, share=share)


def _predicting(name: str, title: str, predictor: Predictor, **plugin: Any) -> Arm:
    return _with(name, title, predictors={"hidden": predictor}, **plugin)


def _momentum(coefficient: float) -> MomentumPredictor:
    return MomentumPredictor(coefficient=coefficient, gated=False)


def _hidden(name: str, title: str, *factors: float, build: Build = adamw) -> Arm:
    return Arm(name, title, build, tunes="hidden", factors=factors)


_OWN_LENGTH = {"hidden": SpectralUpdate(bound=1.0)}
_NO_ROOT = {"hidden": SpectralUpdate(longest=0)}

_ARMS = (
    Arm("plain-half", "plain, T/2", share=0.5),
    Arm("short", "plain, T/1.5"),
    Arm("plain", "plain, T", share=1.0),
    Arm("plain-double", "plain, 2T", share=2.0),
    Arm("plain-quadruple", "plain, 4T", share=4.0),
    _with("corrected", "corrected", speedup=1),
    _with("hybrid", "hybrid (default)"),
    _with("auto", "auto", share=1.0, speedup="auto"),
    _predicting("predict-0", "corrected + predicted, coefficient 0", _momentum(0)),
    _predicting("predict-.5", "corrected + predicted, coefficient 0.5", _momentum(0.5)),
    _predicting("predicted-only", "predicted only", _momentum(0.5), updates={}),
    _with("corrected-any-cost", "corrected, whatever it costs", speedup=1, max_overhead=1e9),
    _with("own-length", "corrected, the optimizer's own length", speedup=1, updates=_OWN_LENGTH),
    _with("no-root", "corrected, without the root", speedup=1, updates=_NO_ROOT),
    *(
        _predicting(f"placebo-{name}{end}", f"placebo: {name}{told}", make(gated=gated))
        for gated, end, told in ((False, "", ""), (True, "-gated", ", gated"))
        for name, make in PLACEBOS.items()
    ),
    _hidden("hidden-x2", "hidden rate x 2", 2.0),
    _hidden("hidden-x3", "hidden rate x 3", 3.0),
    _hidden("hidden-x4", "hidden rate x 4", 4.0),
    Arm("beta1", "beta1 = 0.95", build=partial(adamw, beta1=0.95)),
    _hidden("muon", "Muon", 0.5, 1.0, 2.0, 4.0, 8.0, build=opt.muon),
    _hidden("normuon", "NorMuon", 0.5, 1.0, 2.0, 4.0, 8.0, build=opt.normuon),
    _hidden("soap", "SOAP", 0.25, 0.5, 1.0, 2.0, 4.0, build=opt.soap),
    _hidden("soap-muon", "SOAP-Muon", 0.5, 1.0, 2.0, 4.0, 8.0, build=opt.soap_muon),
)

ARMS: dict[str, Arm] = {arm.name: arm for arm in _ARMS}

PLAIN = ("plain-half", "short", "plain", "plain-double", "plain-quadruple")
"""Arms of plain training, ascending in steps; they resolve speedups from 0.75 to 6."""

MECHANISMS = {
    "short": "plain",
    "corrected": "corrected",
    "predict-0": "both",
    "hybrid": "both",
    "predicted-only": "predicted",
}
"""Arms that separate the plug-in's mechanisms, and the way in `step_cost.WAYS` of their cost."""

# Folders and files of the package that no result depends on.
_ASIDE = {"audit", "cli", "demo", "doctor", "errors.py", "functional", "integrations", "runs"}


def recipe_digest(task: Task, arm: Arm) -> str:
    """Return 12 hexadecimal digits over task and arm, without learning rates."""
    described = task.to_dict()
    for name in ("learning_rate", "rates"):  # a cell names the rate that it uses
        described["recipe"].pop(name)
    built = {"build": _described(arm.build), "share": arm.share, **_IN_DIGESTS}
    plain: dict[str, Any] = {"task": described, "arm": built}
    if (config := arm.config(task.steps)) is not None:
        updates = {kind: make_update(u) for kind, u in config.updates.items()}
        predictors = {kind: make_predictor(p) for kind, p in config.chosen_predictors.items()}
        plain["plugin"] = [config.to_dict(), repr(updates), repr(predictors)]
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:12]


@cache
def code_digest(*, plugin: bool) -> str:
    """Return 12 hexadecimal digits over torch's version and the code of runs, words left out."""
    digest = hashlib.sha256(torch.__version__.encode())
    here = Path(__file__).parent
    package = Path(hybrid_predict.__file__).parent
    sources = [here / "optimizers.py", here / "train.py", *sorted((here / "tasks").rglob("*.py"))]
    for path in sorted(package.rglob("*.py")) if plugin else ():
        if not _ASIDE & set(path.relative_to(package).parts):
            sources.append(path)
    for path in sources:
        digest.update(f"{path.name}{rules(path.read_text('utf-8'))}".encode())
    return digest.hexdigest()[:12]


def rules(code: str) -> str:
    """Return a dump of the syntax of code, without what only people read."""
    return ast.dump(_Wordless().visit(ast.parse(code)))


class _Wordless(ast.NodeTransformer):
    """Removes docstrings, lines of a log, and ``__str__``."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        match node.value:
            case ast.Constant(value=str()):
                return None
            case ast.Call(func=ast.Attribute(value=ast.Name(id="logger"))):
                return None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST | None:
        return None if node.name == "__str__" else self.generic_visit(node)
