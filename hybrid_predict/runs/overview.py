"""The overview of a run: what an engine will correct, predict and leave to the optimizer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from hybrid_predict.config import KINDS, HybridConfig
from hybrid_predict.ledger import percent
from hybrid_predict.policy.budget import NONE_FIT
from hybrid_predict.policy.confidence import SAMPLE
from hybrid_predict.policy.policy import TOO_FEW

if TYPE_CHECKING:
    from hybrid_predict.engine import HybridEngine
    from hybrid_predict.groups.groups import Groups

SAMPLED_BYTES = 4  # of an entry in a sample; 64-bit weights have 8

MOST_SPEEDUP = 3.0
"""A higher speedup gets a warning."""

_NAMES = {
    "hidden": ("hidden matrix", "hidden matrices"),
    "embedding": ("embedding", "embeddings"),
    "head": ("head", "heads"),
    "vector": ("vector", "vectors"),
}


@final
@dataclass(frozen=True)
class Overview:
    """The plan of a run in steps, as far as it is known before the first one.

    Args:
        steps: Length of the run.
        predicted: Number of planned predicted steps; the largest possible one if ``paced``.
        paced: Whether the run decides itself how many predicted steps it takes.
        words: What is corrected, predicted and left alone, plan, memory and what correcting
            costs, in words.
        muon: Which of the corrected weights torch's Muon could take; empty if none are.
    """

    steps: int
    predicted: int
    paced: bool
    words: Mapping[str, str]
    muon: str = ""

    def __str__(self) -> str:
        """Return the overview in one line."""
        return "; ".join(f"{name} {text}" for name, text in self.words.items())


def overview(engine: HybridEngine) -> Overview:
    """Return the overview of an engine's run."""
    mapper = engine.mapper
    schedule = engine.schedule
    groups = engine._state.groups
    shapes = dict(zip(mapper.names, mapper.shapes, strict=True))
    kinds = dict(zip(mapper.names, mapper.kinds, strict=True))
    trained = [n for n, p in zip(mapper.names, mapper.parameters, strict=True) if p.requires_grad]
    corrected = [n for group in groups if group.treatment.update for n in group.names]
    possible = engine.config.shadow or (bool(engine._policy.judged) and not _too_few(engine))
    moving = groups.predicted if possible else []
    predicted = [n for group in moving for n in group.names]
    treated = {*corrected, *predicted}

    def weights(names: Iterable[str]) -> int:
        return sum(math.prod(shapes[name]) for name in names)

    def listed(names: Iterable[str]) -> str:
        counts = Counter(kinds[name] for name in names)
        known = [kind for kind in KINDS if counts[kind]]
        return ", ".join(f"{counts[kind]:,} {_NAMES[kind][counts[kind] > 1]}" for kind in known)

    def share(names: list[str]) -> str:
        if not names:
            return "nothing"
        return f"{listed(names)} ({percent(weights(names) / total)} of the weights)"

    total = weights(trained)
    number = weights(corrected)
    corrects = f"nothing of {total:,} weights"
    muon = ""
    if number:
        flat = weights(name for name in corrected if len(shapes[name]) == 2)
        share_of_all = percent(number / total)
        corrects = f"{number:,} of {total:,} weights ({share_of_all}), in {listed(corrected)}"
        many = "all of these weights" if flat == number else f"{flat:,} of these weights"
        muon = f"torch.optim.Muon, PyTorch's optimizer of this kind, could take {many}"
    planned = schedule.planned if possible else 0
    left = [name for name in trained if name not in treated]
    words = {
        "corrects": corrects,
        "predicts": share(predicted),
        **({"leaves": share(left)} if left else {}),
        "plan": f"{_plan(schedule.total, planned, engine.config)}, warm-up {schedule.warmup:,}",
        "memory": f"{_memory(groups) / 1e6:,.2f} MB",
        **(_cost(engine) if number else {}),
    }
    return Overview(schedule.total, planned, engine.config.paced, words, muon)


def _memory(groups: Groups) -> int:
    """Return the bytes that are kept between full steps once all windows of skill are open."""
    added = 0
    for forecaster in (group.forecaster for group in groups.predicted):
        if forecaster is not None:
            sizes = [x.numel() for x in forecaster.drift]
            places = 8 * SAMPLE * sum(size > SAMPLE for size in sizes)
            window = 3 * SAMPLED_BYTES * sum(min(size, SAMPLE) for size in sizes)
            now = sum(x.nbytes for x in forecaster.held) - sum(x.nbytes for x in forecaster.drift)
            added += places + max(0, window - now)
    return groups.held_bytes + added


def _too_few(engine: HybridEngine) -> bool:
    policy = engine._policy.predicting
    return policy is not None and policy.closed and policy.reason == TOO_FEW


def _plan(steps: int, planned: int, config: HybridConfig) -> str:
    if not planned:
        return f"{steps:,} full step{'s' * (steps != 1)}, none predicted"
    least = "auto, at least " if config.paced else ""
    return f"{least}{steps - planned:,} full + up to {planned:,} predicted = {steps:,} steps"


def _cost(engine: HybridEngine) -> dict[str, str]:
    ledger = engine.ledger
    if not ledger.flops_per_step:  # they were not counted
        return {}
    share = (ledger.flops_per_correction or 0) / ledger.flops_per_step
    text = f"adds {percent(share)} to a full step's operations"
    if share > engine.config.max_overhead:
        text += ", and one this small is counted as if it had 100 million"
    change = engine._state.remedy
    return {"correcting": f"{text}; {NONE_FIT} {change}" if change else text}


def cautions(engine: HybridEngine) -> Iterator[str]:
    """Yield warnings about the run, as sentences: speedup too high, few weights to predict."""
    asked = engine.config.compression
    if asked > MOST_SPEEDUP and not engine.config.paced:
        yield (
            f"speedup={asked:g} asks for {asked - 1:.3g} predicted steps after every full step. "
            "A forecast is good for only one or two steps; start with speedup=1.5."
        )
    if engine.schedule.planned and _too_few(engine):
        yield f"There are {TOO_FEW}."
