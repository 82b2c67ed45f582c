"""What seven learned forecasts foresee of corrected updates: an offline replay of trajectories.

Corrected updates alone are trained on the tasks of the suite ``core`` at their tuned rates. A
sample of entries of every hidden matrix tells the displacement of every full step, per unit of the
learning rate. Every K full steps each candidate forecasts the sum of the next K from what came
before, and its skill is measured as the engine measures it. After the benchmark's suite has run,
``python -m benchmarks.decisions.candidates_0016`` writes ``docs/results/candidates-0016.json``.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.plan import Cell, as_cell
from benchmarks.tasks import TASKS
from benchmarks.train import Run

FOLDER = Path(__file__).parents[2] / "docs" / "results"
WINDOW, SAMPLE, BLOCK, BLOCKS = 20, 1024, 4, 8
DECAYS = (0.8, 0.95, 0.99)

Array = NDArray[np.float64]
"""Displacements of one tensor's sample, shape (full steps, entries)."""


@dataclass
class Replay:
    """A tensor's displacements, and what was foreseen of them, by candidate."""

    weight: float
    moved: Array
    forecasts: dict[str, list[Array]] = field(default_factory=dict)


def trajectory(cell: Cell) -> list[tuple[float, Array]]:
    """What every full step of corrected updates moved, on a sample of every hidden matrix.

    Returns:
        For each matrix: entries per sampled entry, and displacements per unit of learning rate.
    """
    torch.set_num_threads(1)
    run = Run(cell, TASKS[cell.task])
    assert run.engine is not None
    mapper = run.engine.mapper
    chosen = [p for p, kind in zip(mapper.parameters, mapper.kinds, strict=True)
              if kind == "hidden"]  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    places = [torch.randperm(p.numel(), generator=generator)[:SAMPLE] for p in chosen]
    found: list[list[Tensor]] = [[] for _ in chosen]
    before: list[Tensor] = []

    def sampled() -> list[Tensor]:
        return [p.detach().flatten()[at].double() for p, at in zip(chosen, places, strict=True)]

    def start() -> None:
        before[:] = sampled()

    def end(rate: float) -> None:
        for own, old, new in zip(found, before, sampled(), strict=True):
            own.append((new - old) / rate)

    run.train(start, end)
    sizes = [p.numel() / len(at) for p, at in zip(chosen, places, strict=True)]
    return [(size, torch.stack(own).numpy()) for size, own in zip(sizes, found, strict=True)]


def drift(moved: Array, decay: float) -> Array:
    """Running average of displacements, the newest last."""
    count = min(len(moved), round(12 / (1 - decay)))
    weights = decay ** np.arange(count)[::-1]
    average: Array = weights @ moved[-count:] / weights.sum()
    return average


def blocks(moved: Array) -> Array:
    """The last sums of BLOCK displacements, shape (BLOCKS, entries)."""
    last = moved[-BLOCK * BLOCKS :]
    summed: Array = last.reshape(BLOCKS, BLOCK, -1).sum(1)
    return summed


def nesterov(moved: Array) -> Array:
    """Momentum over displacements of 8 full steps (DiLoCo 2023, SNOO 2025)."""
    buffer = np.zeros(moved.shape[1])
    outer = len(moved) // 8
    for part in moved[len(moved) - 8 * outer :].reshape(outer, 8, -1).sum(1):
        buffer = 0.67 * buffer + part
    return buffer


def modes(moved: Array) -> Array:
    """The last blocks continued mode by mode, modes clipped to the unit disc (Schmid 2010)."""
    past = blocks(moved).T
    left, sizes, right = np.linalg.svd(past[:, :-1], full_matrices=False)
    keep = sizes > 1e-6 * sizes[0]
    left, sizes, right = left[:, keep], sizes[keep], right[keep]
    small = left.T @ past[:, 1:] @ right.T / sizes
    values, vectors = np.linalg.eig(small)
    values = values / np.maximum(1.0, np.abs(values))
    start = np.linalg.lstsq(vectors, (left.T @ past[:, -1]).astype(complex), rcond=None)[0]
    steps = sum(values**k for k in range(1, WINDOW // BLOCK + 1))
    continued: Array = left @ np.real(vectors @ (steps * start))
    return continued


def anderson(moved: Array) -> Array:
    """To the regularised extrapolation of the last base weights (Scieur et al. 2016)."""
    past = blocks(moved)
    gram = past @ past.T
    weights = np.linalg.solve(gram + 1e-3 * np.trace(gram) * np.eye(BLOCKS), np.ones(BLOCKS))
    weights /= weights.sum()
    positions = np.cumsum(past, axis=0)
    way: Array = weights @ positions - positions[-1]
    return way


def nowcast(moved: Array) -> Array:
    """A network over each weight's last 5 blocks, trained on the run (Jang et al. 2023)."""
    from sklearn.neural_network import MLPRegressor  # type: ignore[import-untyped,unused-ignore]

    ahead = WINDOW // BLOCK
    whole = len(moved) // BLOCK
    summed = moved[len(moved) - BLOCK * whole :].reshape(whole, BLOCK, -1).sum(1)
    scale = summed.std() or 1.0
    ends = range(max(5, whole - ahead - 4), whole - ahead + 1)
    inputs = np.concatenate([summed[e - 5 : e].T for e in ends]) / scale
    targets = np.concatenate([summed[e : e + ahead].sum(0) for e in ends]) / scale
    net = MLPRegressor(
        hidden_layer_sizes=(16,), max_iter=10, tol=0.0, n_iter_no_change=10, random_state=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it has not converged after so few epochs
        net.fit(inputs, targets)
    foreseen: Array = net.predict(summed[-5:].T / scale) * scale
    return foreseen


def features(moved: Array) -> Array:
    """The last displacement and its averages, shape (4, entries)."""
    return np.stack([moved[-1], *(drift(moved, decay) for decay in DECAYS)])


class Ridge:
    """Least squares with forgetting over `features`, one coefficient each."""

    def __init__(self) -> None:
        self._gram, self._right = np.zeros((4, 4)), np.zeros(4)

    def learn(self, inputs: Array, target: Array) -> None:
        """Take one window in."""
        self._gram = 0.9 * self._gram + inputs @ inputs.T
        self._right = 0.9 * self._right + inputs @ target

    def forecast(self, inputs: Array) -> Array:
        """With a ridge of a hundredth of the mean squared feature."""
        level = 1e-2 * np.trace(self._gram) / 4 + 1e-30
        weights = np.linalg.solve(self._gram + level * np.eye(4), self._right)
        return np.asarray(weights @ inputs)


ALONE: dict[str, Callable[[Array], Array]] = {
    "last displacement": lambda moved: moved[-1],
    **{f"drift {decay:g}": partial(drift, decay=decay) for decay in DECAYS},
    "outer Nesterov": nesterov,
    "dynamic modes": modes,
    "Anderson": anderson,
    "nowcast": nowcast,
}
"""The candidates that know nothing but the displacements; ridge and ensemble learn from windows."""


def replay(weight: float, moved: Array) -> Replay:
    """Every candidate's forecasts, in order, from the fifth window on."""
    found, ridge = Replay(weight, moved), Ridge()
    for start in range(2 * WINDOW, len(moved) - WINDOW + 1, WINDOW):
        past, target = moved[:start], moved[start : start + WINDOW].sum(0)
        inputs = features(past)
        made = {name: forecast(past) for name, forecast in ALONE.items()} if start >= 80 else {}
        if made:
            made["ridge"] = ridge.forecast(inputs)
            made["ensemble"] = ensemble([made["drift 0.95"], made["nowcast"], made["ridge"]])
        ridge.learn(inputs, target)
        for name, forecast in made.items():
            found.forecasts.setdefault(name, []).append(forecast)
    return found


def ensemble(members: Sequence[Array]) -> Array:
    """The mean of forecasts of one length, shortened where entries disagree."""
    unit = np.stack([m / (np.linalg.norm(m) or 1.0) for m in members])
    mean, spread = unit.mean(0), unit.std(0)
    shortened: Array = mean * mean**2 / (mean**2 + spread**2 + 1e-30)
    return shortened


def skills(parts: Sequence[Replay]) -> dict[str, float]:
    """Mean skill by candidate, pooled over tensors as the engine pools them."""
    found = {}
    for name, forecasts in parts[0].forecasts.items():
        each = []
        for k in range(len(forecasts)):
            first = 80 + k * WINDOW
            pairs = [(p.weight, p.forecasts[name][k], p.moved[first : first + WINDOW].sum(0))
                     for p in parts]  # fmt: skip
            dot = sum(w * (f @ d) for w, f, d in pairs)
            sizes = [sum(w * (x @ x) for w, x in ((w, pair[i]) for w, *pair in pairs))
                     for i in (0, 1)]  # fmt: skip
            cosine = dot / (np.sqrt(sizes[0] * sizes[1]) or 1.0)
            each.append(cosine * abs(cosine))
        found[name] = float(np.mean(each))
    return found


def measure(cell: Cell) -> dict[str, Any]:
    """Skills of all candidates on one run."""
    parts = [replay(weight, moved) for weight, moved in trajectory(cell)]
    return {"task": cell.task, "seed": cell.seed, "skill": skills(parts)}


def main() -> None:
    """Replay two seeds of every task, and print means."""
    rows = json.loads((FOLDER / "bench-core.json").read_text())["runs"]
    cells = [as_cell(r) for r in rows if (r["arm"], r["setting"]) == ("corrected", "tuned")]
    cells = [cell for cell in cells if cell.seed < 2]
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        found = list(pool.map(measure, cells))
    text = json.dumps({"window": WINDOW, "sample": SAMPLE, "runs": found}, indent=1) + "\n"
    (FOLDER / "candidates-0016.json").write_text(text)
    tasks = sorted({run["task"] for run in found})
    print(f"{'':18}", *(f"{task:>10}" for task in tasks))
    for name in found[0]["skill"]:
        means = [np.mean([r["skill"][name] for r in found if r["task"] == t]) for t in tasks]
        print(f"{name:18}", *(f"{mean:10.3f}" for mean in means))


if __name__ == "__main__":
    main()
