"""What tells forecasts from placebos in verifying steps, and how soon a test ends placebos.

``python -m benchmarks.decisions.verdict_0028`` trains small nets with predicted steps that need no
skill, and writes ``docs/results/verdict-0028.json``: distributions of what verifying steps measure,
the verdicts until placebos end, and how often real forecasts are ended by mistake.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_digits  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.nn import functional as F

from hybrid_predict import FittedPredictor, HybridConfig, HybridEngine, MomentumPredictor
from hybrid_predict.forecast.predictors import AbstractPredictor
from hybrid_predict.runs.runtime import environment, write_json
from hybrid_predict.testing.placebos import NegatedForecast, RandomForecast, ShuffledForecast
from hybrid_predict.rules.verdict import STEEPNESS, Evidence, Slopes

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "verdict-0028.json"

RATES = (3e-4, 3e-3, 1e-2)
"""A small learning rate, one near the best of every task, and a large one."""

STEPS, KNOWN, FRESH = 120, 1, 1000
"""Steps of a run; seeds that the rule was chosen by; the first of the other seeds."""

THRESHOLDS = (0.0, 0.1, 0.2, 0.3)

RUNS = {"half the drift": 50, "the drift": 50, "fitted": 10}
"""Seeds in which real forecasts may be ended by mistake, per task, corrected and not."""


def _momentum(coefficient: float) -> MomentumPredictor:
    return MomentumPredictor(coefficient=coefficient, gated=False)


REAL: dict[str, AbstractPredictor] = {
    "half the drift": _momentum(0.5),
    "the drift": _momentum(1.0),
    "four times the drift": _momentum(4.0),
    "fitted": FittedPredictor(gated=False),
}
PLACEBOS: dict[str, AbstractPredictor] = {
    "negated, half": NegatedForecast(inner=_momentum(0.5), gated=False),
    "negated": NegatedForecast(inner=_momentum(1.0), gated=False),
    "negated, four times": NegatedForecast(inner=_momentum(4.0), gated=False),
    "random": RandomForecast(inner=_momentum(1.0), gated=False),
    "shuffled": ShuffledForecast(inner=_momentum(1.0), gated=False),
}


class Task(NamedTuple):
    """A net, and its loss on the next batch."""

    net: nn.Module
    loss: Callable[[], Tensor]


def _layers(sizes: tuple[int, ...], between: Callable[[], nn.Module]) -> nn.Sequential:
    parts = [part for m, n in pairwise(sizes) for part in (nn.Linear(m, n), between())]
    return nn.Sequential(*parts[:-1])


def noisy() -> Task:
    """A perceptron on targets with noise, a fresh batch in every full step."""
    net = _layers((16, 48, 48, 48, 1), nn.Tanh)

    def loss() -> Tensor:
        x = torch.randn(32, 16)
        y = x.sum(1, keepdim=True).sin() + 0.3 * torch.randn(32, 1)
        return F.mse_loss(net(x), y)

    return Task(net, loss)


@cache
def _digits() -> tuple[Tensor, Tensor]:
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)


def digits() -> Task:
    """A perceptron on scikit-learn's digits, batches of 32."""
    net, (x, y) = _layers((64, 64, 64, 10), nn.ReLU), _digits()

    def loss() -> Tensor:
        rows = torch.randint(len(x), (32,))
        return F.cross_entropy(net(x[rows]), y[rows])

    return Task(net, loss)


def full_batch() -> Task:
    """A perceptron on 128 points without noise, all of them in every full step."""
    net, x = _layers((8, 32, 32, 32, 1), nn.Tanh), torch.randn(128, 8)
    y = x[:, :3].prod(1, keepdim=True) + x.sum(1, keepdim=True).sin()
    return Task(net, lambda: F.mse_loss(net(x), y))


TASKS = {"noisy": noisy, "digits": digits, "full batch": full_batch}


class Found(NamedTuple):
    """A run: what its verifying steps measured, their number, and how it ended.

    Args:
        rows: Alignment with the gradient, and both steepnesses, of each.
        verdicts: Their number.
        ended: Whether the test ended predicted steps.
        highest: Largest evidence against them; 100 ends them.
        undone: Predicted steps that single verdicts have undone.
        loss: Mean of the last 20.
    """

    rows: list[tuple[float, float, float]]
    verdicts: int
    ended: bool
    highest: float
    undone: int
    loss: float


def run(
    task: str, rate: float, corrected: bool, predictor: AbstractPredictor | None, seed: int,
    *, tested: bool,
) -> Found:  # fmt: skip
    """Train once.

    Args:
        task: Its name.
        rate: Its learning rate.
        corrected: Whether updates are corrected.
        predictor: What forecasts; None for full steps alone.
        seed: Of weights and batches.
        tested: Whether the test may end predicted steps.
    """
    torch.manual_seed(seed)
    net, loss_of = TASKS[task]()
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate)
    settings: dict[str, Any] = {} if corrected else {"updates": {}}
    settings |= {"predictors": {"hidden": predictor}} if predictor else {"speedup": 1}
    config = HybridConfig(total_steps=STEPS, max_overhead=1e9, **settings)
    engine, rows, losses = HybridEngine(net, optimizer, config), [], []
    verifier, verdicts, highest = engine._run.verifier, 0, 0.0
    learn = verifier.learn

    def recorded(measured: Any, judgement: Any) -> None:
        nonlocal verdicts, highest
        learn(measured, judgement)
        highest = max(highest, float(verifier.evidence.wealth))
        if measured.slopes is not None:
            verdicts += 1
            alignments = list(measured.info.alignments.values())
            rows.append((float(np.mean(alignments)), *_steepness(measured.slopes)))
        if not tested:
            verifier.evidence = Evidence()

    verifier.learn = recorded  # type: ignore[method-assign]
    while not engine.done:
        engine.before_step()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        engine.after_step(loss)
        losses.append(loss.item())
    ended, undone = bool(verifier.evidence.ended), engine.ledger.undone_steps
    return Found(rows, verdicts, ended, highest, undone, float(np.mean(losses[-20:])))


def _steepness(slopes: Slopes) -> tuple[float, float]:
    """Steepness of the movement and of the full step after it, both by the averaged gradient."""
    lengths = slopes.square**0.5 + 1e-30, slopes.own_square**0.5 + 1e-30
    return -slopes.product / lengths[0], -slopes.own_product / lengths[1]


def _quantiles(values: Any) -> list[float]:
    return [round(float(x), 3) for x in np.quantile(values, (0, 0.05, 0.5, 0.95, 1))]


def distributions() -> list[dict[str, Any]]:
    """What verifying steps measure where nothing ends."""
    found = []
    for task in TASKS:
        for corrected in (False, True):
            for rate in RATES:
                for name, predictor in (REAL | PLACEBOS).items():
                    runs = [run(task, rate, corrected, predictor, seed, tested=False)
                            for seed in range(KNOWN)]  # fmt: skip
                    rows = np.array([row for each in runs for row in each.rows])
                    ratio = rows[:, 1] / rows[:, 2]
                    found.append({
                        "task": task, "corrected": corrected, "rate": rate, "forecasts": name,
                        "alignment": round(float(rows[:, 0].mean()), 3),
                        "alignment_quantiles": _quantiles(rows[:, 0]),
                        "ratio_quantiles": _quantiles(ratio),
                        "own_uphill": float(np.mean(rows[:, 2] <= 0)),
                        "below": [round(float(np.mean(ratio < x)), 4) for x in THRESHOLDS],
                        "verdicts": len(rows), "undone": sum(each.undone for each in runs),
                        "loss": float(np.mean([each.loss for each in runs])),
                    })  # fmt: skip
    return found


def endings() -> list[dict[str, Any]]:
    """Verdicts until placebos end, and the last loss beside that of full steps alone."""
    found = []
    for task in TASKS:
        for corrected in (False, True):
            for rate in RATES:
                seeds = range(FRESH, FRESH + 2)
                alone = [run(task, rate, corrected, None, s, tested=True).loss for s in seeds]
                for name, predictor in PLACEBOS.items():
                    runs = [run(task, rate, corrected, predictor, s, tested=True) for s in seeds]
                    found.append({
                        "task": task, "corrected": corrected, "rate": rate, "forecasts": name,
                        "verdicts": [each.verdicts for each in runs],
                        "ended": [each.ended for each in runs],
                        "loss": [each.loss for each in runs], "full_steps_alone": alone,
                    })  # fmt: skip
    return found


def mistakes() -> list[dict[str, Any]]:
    """Real forecasts that are ended, over seeds that nothing was chosen by."""
    found = []
    for task in TASKS:
        for corrected in (False, True):
            for name, count in RUNS.items():
                runs = [run(task, RATES[s % len(RATES)], corrected, REAL[name], s, tested=True)
                        for s in range(FRESH, FRESH + count)]  # fmt: skip
                rows = np.array([row for each in runs for row in each.rows])
                found.append({
                    "task": task, "corrected": corrected, "forecasts": name, "runs": len(runs),
                    "verdicts": sum(each.verdicts for each in runs),
                    "not_downhill": float(np.mean(rows[:, 1] < STEEPNESS * rows[:, 2])),
                    "ended": sum(each.ended for each in runs),
                    "highest": max(each.highest for each in runs),
                })  # fmt: skip
                print(found[-1], flush=True)
    return found


def main() -> None:
    """Train every run, and write the results file."""
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)  # hundreds of runs end
    results = {"distributions": distributions(), "endings": endings(), "mistakes": mistakes()}
    write_json({"thresholds": THRESHOLDS, **results, "environment": environment()}, RESULTS)


if __name__ == "__main__":
    main()
