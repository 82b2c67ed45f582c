"""How much of the coming displacement each candidate of decision 8 foresees in plain training.

    python docs/decisions/foresight_0008.py

writes docs/results/foresight-0008.json and prints its table.
"""

from __future__ import annotations

import json
from collections import deque
from typing import Any

import torch
from sweep import RATES, RESULTS
from sweep_0008 import VARIANTS
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from hybrid_predict import SpectralPredictor
from hybrid_predict.backends import TorchBackend
from hybrid_predict.bench.arms import Rates, adamw
from hybrid_predict.parameters import ParameterMapper
from hybrid_predict.tasks import TASKS
from hybrid_predict.tasks.base import linear_schedule

PATH = RESULTS / "foresight-0008.json"
SEEN = ("gpt-0.2m", "cnn", "inr")
HORIZON = 8
EVERY = 3
"""Full steps between two forecasts; coprime to every candidate's own period."""

CANDIDATES = {"spectral": SpectralPredictor()} | {
    name: variant["predictors"]["hidden"] for name, variant in VARIANTS.items()
}


class Sums:
    """Inner products of one candidate's forecasts with what came, per tensor."""

    def __init__(self) -> None:
        self.both: Tensor | float = 0.0
        self.forecast: Tensor | float = 0.0
        self.came: Tensor | float = 0.0

    def add(self, forecast: list[Tensor], came: list[Tensor]) -> None:
        """One forecast and the displacement that followed."""
        backend = TorchBackend()
        self.both = self.both + backend.dots(forecast, came).double()
        self.forecast = self.forecast + backend.dots(forecast, forecast).double()
        self.came = self.came + backend.dots(came, came).double()

    def shares(self) -> dict[str, float]:
        """Shares explained, mean over tensors: as given, and with the best positive factor."""
        both, forecast, came = map(torch.as_tensor, (self.both, self.forecast, self.came))
        given = (2 * both - forecast) / came
        scaled = both.clamp_min(0).square() / (forecast * came).clamp_min(1e-300)
        return {"given": float(given.mean()), "scaled": float(scaled.mean())}


def observe(
    states: dict[str, Any], moved: list[Tensor], gradient: list[Tensor], backend: TorchBackend
) -> None:
    """Show every candidate one full step."""
    for name, predictor in CANDIDATES.items():
        own = [x.clone() for x in moved]
        seen = gradient if predictor.replaces_update else None
        predictor.observe(states[name], own, None, backend, seen)


def run(task_name: str, seed: int = 0) -> dict[str, dict[str, float]]:
    """Train plainly; shares by candidate over the middle half of the run."""
    torch.set_num_threads(1)
    task, backend = TASKS[task_name], TorchBackend()
    model, batches = task.model(seed), task.batches(seed)
    (optimizer,) = adamw(model, task.recipe, Rates(RATES[task_name]), task.steps)
    schedule = linear_schedule(task.steps, task.recipe.warmup_fraction)
    scheduler = LambdaLR(optimizer, schedule)
    mapper = ParameterMapper(model, model.parameters())
    chosen = mapper.select(["hidden"])
    names, weights = [mapper.names[k] for k in chosen], mapper.values(chosen)
    states = {name: p.init(names, weights, backend) for name, p in CANDIDATES.items()}
    sums = {name: Sums() for name in CANDIDATES}
    pending: deque[tuple[int, list[Tensor], dict[str, list[Tensor]]]] = deque()
    for step in range(1, 3 * task.steps // 4 + 1):
        before = [w.clone() for w in weights]
        task.full_step(model, next(batches), optimizer)
        scheduler.step()
        gradient = [mapper.parameters[k].grad.clone() for k in chosen]  # type: ignore[union-attr]
        observe(states, backend.difference(before, weights), gradient, backend)
        if pending and pending[0][0] == step:
            _, start, forecasts = pending.popleft()
            came = backend.difference(start, weights)
            for name, forecast in forecasts.items():
                sums[name].add(forecast, came)
        if step % EVERY == 0 and task.steps // 4 <= step <= 3 * task.steps // 4 - HORIZON:
            start = [w.clone() for w in weights]
            pending.append((step + HORIZON, start, _forecasts(states)))
    return {name: total.shares() for name, total in sums.items()}


def _forecasts(states: dict[str, Any]) -> dict[str, list[Tensor]]:
    found = {}
    for name, predictor in CANDIDATES.items():
        horizons = [float(HORIZON)] * len(states[name].names)
        delta = predictor.forecast(states[name], horizons, closed_loop=False)
        found[name] = list(delta.tensors().values())
    return found


def table() -> str:
    """Shares in percent, best factor first and as given in brackets."""
    data = json.loads(PATH.read_text())
    lines = [f"| forecast | {' | '.join(f'`{t}`' for t in SEEN)} |", "|" + " --- |" * 4]
    for name in data[SEEN[0]]:
        shares = [data[task][name] for task in SEEN]
        cells = [f"{s['scaled']:.0%} ({s['given']:.0%})" for s in shares]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    PATH.write_text(json.dumps({task: run(task) for task in SEEN}, indent=1) + "\n")
    print(table())
