"""The overview of a run: what an engine will correct, predict and leave to the optimizer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from hybrid_predict.config import KINDS
from hybrid_predict.ledger import percent
from hybrid_predict.policy.budget import NONE_FIT
from hybrid_predict.policy.policy import TOO_FEW

if TYPE_CHECKING:
    from hybrid_predict.engine import HybridEngine

MOST_SPEEDUP, SHORT_RUN = 3.0, 100
"""A higher speedup, or a shorter run, gets a warning."""

_TREATMENTS = {
    (True, True): "corrects and predicts",
    (True, False): "corrects",
    (False, True): "predicts",
    (False, False): "leaves",
}

_NAMES = {
    "hidden": ("hidden matrix", "hidden matrices"),
    "embedding": ("embedding", "embeddings"),
    "head": ("head", "heads"),
    "vector": ("vector", "vectors"),
}


@final
@dataclass(frozen=True)
class Part:
    """Trained parameters of one kind that are treated alike, and their number of weights."""

    kind: str
    corrected: bool
    predicted: bool
    tensors: int
    weights: int

    def __str__(self) -> str:
        one, many = _NAMES[self.kind]
        return f"{self.tensors:,} {one if self.tensors == 1 else many}"


@final
@dataclass(frozen=True)
class Overview:
    """The plan of a run in steps, as far as it is known before the first one.

    Args:
        parts: The trained parameters, by kind and treatment.
        left_out: Reasons for leaving parameters to the optimizer.
        predicted: Number of planned predicted steps; the largest possible one if ``paced``.
        held_bytes: Most memory in bytes that the plug-in keeps between full steps.
        paced: Whether the run decides itself how many predicted steps it takes.
    """

    parts: tuple[Part, ...]
    left_out: tuple[str, ...]
    steps: int
    predicted: int
    warmup: int
    cooldown: int
    held_bytes: int
    paced: bool = False

    def __str__(self) -> str:
        """Return the overview in one line."""
        clauses = []
        for treatment, does in _TREATMENTS.items():
            parts = [p for p in self.parts if (p.corrected, p.predicted) == treatment]
            listed = ", ".join(map(str, parts))
            if parts and any(treatment):
                clauses.append(f"{does} {listed} ({_share(parts, self.parts)})")
            elif parts:
                why = f" ({'; '.join(self.left_out)})" if self.left_out else ""
                clauses.append(f"{does} {listed} to the optimizer{why}")
        return "; ".join([*clauses, self.plan, f"memory {self.memory}"])

    @property
    def memory(self) -> str:
        """Most memory that the plug-in keeps between full steps, with its unit."""
        return size(self.held_bytes)

    @property
    def plan(self) -> str:
        """The planned numbers of full and predicted steps, in words."""
        if not self.predicted:
            return f"plan: {_steps(self.steps, 'full ')}, none predicted"
        least = "auto, at least " if self.paced else ""
        full = f"{least}{self.steps - self.predicted:,} full"
        return f"plan: {full} + up to {self.predicted:,} predicted = {self.steps:,} steps"


def overview(engine: HybridEngine) -> Overview:
    """Return the overview of an engine's run."""
    mapper, schedule, groups = engine.mapper, engine.schedule, engine._state.groups
    treated = {name: group.treatment for group in groups for name in group.names}
    possible = engine.config.shadow or (bool(engine._state.policy.judged) and not too_few(engine))
    sizes: dict[tuple[str, bool, bool], list[int]] = {}
    columns = zip(mapper.names, mapper.parameters, mapper.shapes, mapper.kinds, strict=True)
    for name, parameter, shape, kind in columns:
        if parameter.requires_grad:
            treatment = treated.get(name)
            corrected = treatment is not None and treatment.update is not None
            predicted = possible and treatment is not None and treatment.predictor is not None
            sizes.setdefault((kind, corrected, predicted), []).append(math.prod(shape))
    order = sorted(sizes, key=lambda key: (KINDS.index(key[0]), key))
    return Overview(
        parts=tuple(Part(*key, len(sizes[key]), sum(sizes[key])) for key in order),
        left_out=tuple(sorted(groups.left_out)),
        steps=schedule.total,
        predicted=schedule.planned if possible else 0,
        warmup=schedule.warmup,
        cooldown=schedule.cooldown,
        held_bytes=groups.held_bytes,
        paced=engine.config.paced,
    )


def steps_until_skill(engine: HybridEngine) -> int:
    """Return the number of steps until skill can be known; 0 if predicted steps need none."""
    return engine._state.policy.until_skill


def too_few(engine: HybridEngine) -> bool:
    """Return whether no predicted step can be taken, since few of the weights are predicted."""
    policy = engine._state.policy
    return policy.closed and policy.reason == TOO_FEW


def remedies(engine: HybridEngine) -> str:
    """Return what to type where ``max_overhead`` allows no corrections; empty elsewhere."""
    return engine._state.remedies


def added_cost(engine: HybridEngine) -> str:
    """Return what correcting costs, to end a sentence; empty if it is not counted."""
    share = engine.ledger.correction_share
    if share is None or not any(part.corrected for part in overview(engine).parts):
        return ""
    text = f"; correcting adds {percent(share)} to a full step's operations"
    if share > engine.config.max_overhead:
        text += " (max_overhead counts one this small as 1e8)"
    change = remedies(engine)
    return f"{text}; {NONE_FIT} {change}" if change else text


def cautions(engine: HybridEngine) -> list[str]:
    """Return warnings about the run, as sentences: speedup too high, run too short, few weights."""
    asked, schedule = engine.config.compression, engine.schedule
    lines = []
    if asked > MOST_SPEEDUP and not engine.config.paced:
        lines.append(
            f"speedup={asked:g} asks for {asked - 1:.3g} predicted steps after every full step. "
            "A forecast is good for only one or two steps; start with speedup=1.5."
        )
    gated = engine._state.policy.gated
    if asked > 1 and schedule.total < SHORT_RUN and gated and not schedule.shortfall:
        lines.append(
            f"A run of {_steps(schedule.total)} is too short to gain much: the first "
            f"{schedule.warmup:,} only show whether forecasts have skill. Train for at least a few "
            "hundred steps."
        )
    if schedule.planned and too_few(engine):
        lines.append(f"There are {TOO_FEW}.")
    return lines


def size(number: float) -> str:
    """Format bytes for people: ``640 kB``, ``1.2 MB``, ``14 GB``."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if number < 1000 or unit == "GB":
            break
        number /= 1000
    return f"{number:.2g} {unit}" if number < 10 else f"{number:,.0f} {unit}"


def _steps(count: int, kind: str = "") -> str:
    return f"{count:,} {kind}step{'' if count == 1 else 's'}"


def _share(chosen: list[Part], everything: tuple[Part, ...]) -> str:
    part, total = (sum(part.weights for part in some) for some in (chosen, everything))
    return f"{percent(part / total)} of {_count(total)} weights"


def _count(number: float) -> str:
    """Format a number of weights: ``812``, ``1.9 k``, ``0.19 M``."""
    for unit in ("", " k", " M", " G"):
        if number < 1000 or unit == " G":
            break
        number /= 1000
    return f"{number:.3g}{unit}"
