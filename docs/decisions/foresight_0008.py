"""How much of the coming displacement each candidate of decision 8 foresees in plain training.

And whether what it foresees points downhill.

    python docs/decisions/foresight_0008.py

adds what docs/results/foresight-0008.json lacks and prints its table.
"""

from __future__ import annotations

import json
from collections import deque
from typing import Any

import torch
from candidates_window import LowRankPredictor, NowcastPredictor
from earlier import spectral
from sweep import RATES, RESULTS
from sweep_0008 import VARIANTS
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from hybrid_predict import MomentumPredictor
from hybrid_predict.backends import TorchBackend
from hybrid_predict.bench.arms import Rates, adamw
from hybrid_predict.parameters import ParameterMapper
from hybrid_predict.predictors import AbstractPredictor
from hybrid_predict.tasks import TASKS
from hybrid_predict.tasks.base import linear_schedule

PATH = RESULTS / "foresight-0008.json"
SEEN = ("gpt-0.2m", "cnn", "inr")
HORIZON = 8
EVERY = 3
"""Full steps between two forecasts; coprime to every candidate's own period."""

CANDIDATES = {
    "spectral": spectral(),
    "last update": MomentumPredictor(decay=0.0),
    **{name: variant["predictors"]["hidden"] for name, variant in VARIANTS.items()},
    "dynamic modes, stride 1": LowRankPredictor(size=16, stride=1, rank=8),
    "nowcast, stride 1": NowcastPredictor(stride=1, updates=5),
}
"""References, the variants of the sweep, and two that see every single update."""

Histories = dict[str, tuple[AbstractPredictor, Any]]
"""Predictor and history by name of the candidate."""


class Sums:
    """Inner products of one candidate's forecasts with what came, per tensor."""

    def __init__(self) -> None:
        self.alignments: list[Tensor] = []
        self.both: Tensor | float = 0.0
        self.forecast: Tensor | float = 0.0
        self.came: Tensor | float = 0.0

    def add(self, forecast: list[Tensor], came: list[Tensor]) -> None:
        """One forecast and the displacement that followed."""
        backend = TorchBackend()
        self.both = self.both + backend.dots(forecast, came).double()
        self.forecast = self.forecast + backend.dots(forecast, forecast).double()
        self.came = self.came + backend.dots(came, came).double()

    def align(self, forecast: list[Tensor], gradient: list[Tensor]) -> None:
        """The gradient of the next batch, taken where the forecast was made."""
        backend = TorchBackend()
        lengths = (backend.norms(forecast) * backend.norms(gradient)).clamp_min(1e-30)
        self.alignments.append(-backend.dots(forecast, gradient) / lengths)

    def shares(self) -> dict[str, float]:
        """Shares explained, as given and with the best positive factor, and alignment."""
        both, forecast, came = map(torch.as_tensor, (self.both, self.forecast, self.came))
        given = (2 * both - forecast) / came
        scaled = both.clamp_min(0).square() / (forecast * came).clamp_min(1e-300)
        alignment = float(torch.stack(self.alignments).mean())
        return {
            "given": float(given.mean()),
            "scaled": float(scaled.mean()),
            "alignment": alignment,
        }


def observe(histories: Histories, moved: list[Tensor], gradient: list[Tensor]) -> None:
    """Show every candidate one full step."""
    backend = TorchBackend()
    for predictor, state in histories.values():
        if predictor.replaces_update:
            predictor.observe(state, gradient, None, backend, backend.norms(moved))
        else:
            predictor.observe(state, [x.clone() for x in moved], None, backend)


def run(task_name: str, candidates: list[str], seed: int = 0) -> dict[str, dict[str, float]]:
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
    histories = {
        c: (CANDIDATES[c], CANDIDATES[c].init(names, weights, backend)) for c in candidates
    }
    sums = {c: Sums() for c in candidates}
    pending: deque[tuple[int, list[Tensor], dict[str, list[Tensor]]]] = deque()
    for step in range(1, 3 * task.steps // 4 + 1):
        before = [w.clone() for w in weights]
        task.full_step(model, next(batches), optimizer)
        scheduler.step()
        gradient = [mapper.parameters[k].grad.clone() for k in chosen]  # type: ignore[union-attr]
        observe(histories, backend.difference(before, weights), gradient)
        if pending and pending[-1][0] == step - 1 + HORIZON:
            for name, forecast in pending[-1][2].items():
                sums[name].align(forecast, gradient)
        if pending and pending[0][0] == step:
            _, start, forecasts = pending.popleft()
            came = backend.difference(start, weights)
            for name, forecast in forecasts.items():
                sums[name].add(forecast, came)
        if step % EVERY == 0 and task.steps // 4 <= step <= 3 * task.steps // 4 - HORIZON:
            start = [w.clone() for w in weights]
            pending.append((step + HORIZON, start, _forecasts(histories)))
    return {name: total.shares() for name, total in sums.items()}


def _forecasts(histories: Histories) -> dict[str, list[Tensor]]:
    found = {}
    for name, (predictor, state) in histories.items():
        horizons = [float(HORIZON)] * len(state.names)
        delta = predictor.forecast(state, horizons, closed_loop=False)
        found[name] = list(delta.tensors().values())
    return found


def table() -> str:
    """Shares in percent with the best factor, as given in brackets, and alignments."""
    data = json.loads(PATH.read_text())
    lines = [f"| forecast | {' | '.join(f'`{t}`' for t in SEEN)} |", "|" + " --- |" * 4]
    for name in CANDIDATES:
        shares = [data[task][name] for task in SEEN]
        cells = [f"{s['scaled']:.0%} ({s['given']:.0%}), {s['alignment']:.3f}" for s in shares]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    found = json.loads(PATH.read_text()) if PATH.exists() else {}
    for task in SEEN:
        rows = found.setdefault(task, {})
        rows.update(run(task, [name for name in CANDIDATES if name not in rows]))
        PATH.write_text(json.dumps(found, indent=1) + "\n")
    print(table())
