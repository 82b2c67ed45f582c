"""The overview of a run: what an engine will correct, predict and leave to the optimizer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from hybrid_predict.config import KINDS
from hybrid_predict.policy.budget import NONE_FIT
from hybrid_predict.policy.policy import TOO_FEW
from hybrid_predict.text import percent

if TYPE_CHECKING:
    from hybrid_predict.engine import HybridEngine

MOST_SPEEDUP = 3.0
SHORT_RUN = 100
"""A higher speedup, or a shorter run, gets a warning."""

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
        predicted: Number of planned predicted steps; the largest possible one if ``paced``.
        held_bytes: Memory in bytes that the plug-in keeps between full steps now.
        paced: Whether the run decides itself how many predicted steps it takes.
        flat: Corrected weights in tensors of two dimensions, all that ``torch.optim.Muon`` takes.
    """

    parts: tuple[Part, ...]
    steps: int
    predicted: int
    warmup: int
    held_bytes: int
    paced: bool = False
    flat: int = 0

    def __str__(self) -> str:
        """Return the overview in one line."""
        return "; ".join(f"{name} {text}" for name, text in self.described().items())

    def described(self) -> dict[str, str]:
        """Return what is corrected, predicted and left alone, plan and memory, in words."""
        left = [part for part in self.parts if not (part.corrected or part.predicted)]
        plan = f"{self.steps:,} full steps, none predicted"
        if self.predicted:
            least = "auto, at least " if self.paced else ""
            full = f"{least}{self.steps - self.predicted:,} full"
            plan = f"{full} + up to {self.predicted:,} predicted = {self.steps:,} steps"
        return {
            "corrects": self._reach(),
            "predicts": self._listed([part for part in self.parts if part.predicted]),
            "leaves": self._listed(left),
            "plan": f"{plan}, warm-up {self.warmup:,}",
            "memory": f"{self.held_bytes / 1e6:,.2f} MB",
        }

    def _reach(self) -> str:
        corrected = [part for part in self.parts if part.corrected]
        number = sum(part.weights for part in corrected)
        total = sum(part.weights for part in self.parts)
        if not number:
            return f"nothing of {total:,} weights"
        muon = "as many" if self.flat == number else f"{self.flat:,}"
        return (
            f"{number:,} of {total:,} weights ({percent(number / total)}), in "
            f"{', '.join(map(str, corrected))}; torch.optim.Muon would reach {muon}"
        )

    def _listed(self, chosen: list[Part]) -> str:
        if not chosen:
            return "nothing"
        total = sum(part.weights for part in self.parts)
        share = percent(sum(part.weights for part in chosen) / total)
        return f"{', '.join(map(str, chosen))} ({share} of the weights)"


def overview(engine: HybridEngine) -> Overview:
    """Return the overview of an engine's run."""
    mapper = engine.mapper
    schedule = engine.schedule
    groups = engine._state.groups
    treated = {name: group.treatment for group in groups for name in group.names}
    possible = engine.config.shadow or (bool(engine._policy.judged) and not _too_few(engine))
    sizes: dict[tuple[str, bool, bool], list[int]] = {}
    flat = 0
    columns = zip(mapper.names, mapper.parameters, mapper.shapes, mapper.kinds, strict=True)
    for name, parameter, shape, kind in columns:
        if parameter.requires_grad:
            treatment = treated.get(name)
            corrected = treatment is not None and treatment.update is not None
            predicted = possible and treatment is not None and treatment.predictor is not None
            sizes.setdefault((kind, corrected, predicted), []).append(math.prod(shape))
            flat += math.prod(shape) if corrected and len(shape) == 2 else 0
    order = sorted(sizes, key=lambda key: (KINDS.index(key[0]), key))
    return Overview(
        parts=tuple(Part(*key, len(sizes[key]), sum(sizes[key])) for key in order),
        steps=schedule.total,
        predicted=schedule.planned if possible else 0,
        warmup=schedule.warmup,
        held_bytes=groups.held_bytes,
        paced=engine.config.paced,
        flat=flat,
    )


def _too_few(engine: HybridEngine) -> bool:
    policy = engine._policy
    return policy.closed and policy.reason == TOO_FEW


def added_cost(engine: HybridEngine) -> str:
    """Return what correcting costs, to end a sentence; empty if it is not counted."""
    share = engine.ledger.correction_share
    if share is None or not any(part.corrected for part in overview(engine).parts):
        return ""
    text = f"; correcting adds {percent(share)} to a full step's operations"
    if share > engine.config.max_overhead:
        text += ", and one this small is counted as if it had 100 million"
    change = engine._state.remedy
    return f"{text}; {NONE_FIT} {change}" if change else text


def cautions(engine: HybridEngine) -> list[str]:
    """Return warnings about the run, as sentences: speedup too high, run too short, few weights."""
    asked = engine.config.compression
    schedule = engine.schedule
    gated = engine._policy.gated
    lines = []
    if asked > MOST_SPEEDUP and not engine.config.paced:
        lines.append(
            f"speedup={asked:g} asks for {asked - 1:.3g} predicted steps after every full step. "
            "A forecast is good for only one or two steps; start with speedup=1.5."
        )
    if asked > 1 and schedule.total < SHORT_RUN and gated and not schedule.shortfall:
        lines.append(
            f"A run of {schedule.total:,} steps is too short to gain much: the first "
            f"{schedule.warmup:,} only show whether forecasts have skill. Train for at least a few "
            "hundred steps."
        )
    if schedule.planned and _too_few(engine):
        lines.append(f"There are {TOO_FEW}.")
    return lines
