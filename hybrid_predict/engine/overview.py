"""What an engine is about to do: what it corrects, predicts and leaves alone, and its plan."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from hybrid_predict.accounts.ledger import percent
from hybrid_predict.config import KINDS

if TYPE_CHECKING:
    from hybrid_predict.engine.engine import HybridEngine

MOST_SPEEDUP, SHORT_RUN = 3.0, 100
"""Beyond this speedup, and below so many steps, the user is told that it will hardly work."""

_NAMES = {
    "hidden": ("hidden matrix", "hidden matrices"),
    "embedding": ("embedding", "embeddings"),
    "head": ("head", "heads"),
    "vector": ("vector", "vectors"),
}


@dataclass(frozen=True)
class Part:
    """Trained parameters of one kind that are treated alike.

    Args:
        kind: Their kind.
        corrected: Whether their updates are corrected.
        predicted: Whether predicted steps move them.
        tensors: How many there are.
        weights: Their entries together.
    """

    kind: str
    corrected: bool
    predicted: bool
    tensors: int
    weights: int

    def __str__(self) -> str:
        one, many = _NAMES[self.kind]
        return f"{self.tensors:,} {one if self.tensors == 1 else many}"


@dataclass(frozen=True)
class Overview:
    """What a run will do, as far as it is known before its first step.

    Args:
        parts: The trained parameters, by kind and treatment.
        left_out: Why parameters of a kind that was asked for are left to the optimizer.
        steps: The run's length.
        predicted: Predicted steps that are planned.
        warmup: Steps of the warm-up.
        cooldown: Steps of the cooldown.
        held_bytes: Memory that the plug-in keeps between full steps.
    """

    parts: tuple[Part, ...]
    left_out: tuple[str, ...]
    steps: int
    predicted: int
    warmup: int
    cooldown: int
    held_bytes: int

    def __str__(self) -> str:
        """One line for people."""
        said = []
        for does, corrected, predicted in (
            ("corrects and predicts", True, True),
            ("corrects", True, False),
            ("predicts", False, True),
        ):
            chosen = self._chosen(corrected, predicted)
            if chosen:
                said.append(f"{does} {_listed(chosen)} ({_share(chosen, self.parts)})")
        rest = self._chosen(False, False)
        if rest:
            why = f" ({'; '.join(self.left_out)})" if self.left_out else ""
            said.append(f"leaves {_listed(rest)} to the optimizer{why}")
        said.append(self.plan)
        said.append(f"memory {self.memory}")
        return "; ".join(said)

    @property
    def memory(self) -> str:
        """What the plug-in keeps between full steps."""
        return size(self.held_bytes)

    @property
    def plan(self) -> str:
        """Full and predicted steps that are planned."""
        if not self.predicted:
            return f"plan: {self.steps:,} full steps, none predicted"
        full = self.steps - self.predicted
        return f"plan: {full:,} full + up to {self.predicted:,} predicted = {self.steps:,} steps"

    def _chosen(self, corrected: bool, predicted: bool) -> list[Part]:
        return [p for p in self.parts if (p.corrected, p.predicted) == (corrected, predicted)]

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        return asdict(self)


def overview(engine: HybridEngine) -> Overview:
    """What an engine will do."""
    mapper, clock, forecaster = engine.mapper, engine.clock, engine._run.forecaster
    plans = {name: group.plan for group in forecaster.groups for name in group.names}
    counts: dict[tuple[str, bool, bool], list[int]] = {}
    for name, parameter, kind in zip(mapper.names, mapper.parameters, mapper.kinds, strict=True):
        if not parameter.requires_grad:
            continue
        plan = plans.get(name)
        key = (
            kind,
            plan is not None and plan.update is not None,
            plan is not None and plan.predictor is not None,
        )
        entry = counts.setdefault(key, [0, 0])
        entry[0] += 1
        entry[1] += parameter.numel()
    order = sorted(counts, key=lambda key: (KINDS.index(key[0]), key))
    return Overview(
        parts=tuple(Part(*key, *counts[key]) for key in order),
        left_out=tuple(sorted(forecaster.left_out)),
        steps=clock.total,
        predicted=clock.planned if forecaster.predicts else 0,
        warmup=clock.warmup,
        cooldown=clock.cooldown,
        held_bytes=forecaster.held_bytes,
    )


def cautions(engine: HybridEngine) -> list[str]:
    """What a user should know before the run, in sentences: too much asked for, too short a run."""
    asked, clock = engine.config.compression, engine.clock
    said = []
    if asked > MOST_SPEEDUP:
        said.append(
            f"speedup={asked:g} asks for {asked - 1:.3g} predicted steps after every full step. "
            "Forecasts hold for a step or two; start with speedup=1.5."
        )
    if asked > 1 and clock.total < SHORT_RUN and engine._run.forecaster.gated:
        said.append(
            f"A run of {clock.total} steps is too short to gain much: the first {clock.warmup} "
            f"steps only learn whether forecasts have skill. Runs of some hundred steps and more "
            "can gain."
        )
    return said


def size(number: float) -> str:
    """Bytes as people say them: ``640 kB``, ``1.2 MB``, ``14 GB``."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if number < 1000 or unit == "GB":
            break
        number /= 1000
    return f"{number:.2g} {unit}" if number < 10 else f"{number:,.0f} {unit}"


def _listed(parts: list[Part]) -> str:
    return ", ".join(map(str, parts))


def _share(chosen: list[Part], everything: tuple[Part, ...]) -> str:
    mine, total = (sum(part.weights for part in some) for some in (chosen, everything))
    return f"{percent(mine / total)} of {_count(total)} weights"


def _count(number: float) -> str:
    """A number of weights: ``812``, ``1.9 k``, ``0.19 M``."""
    for unit in ("", " k", " M", " G"):
        if number < 1000 or unit == " G":
            break
        number /= 1000
    return f"{number:.3g}{unit}"
