"""Trains one seed of a client: every arm after the other in one process.

Run with: python -m benchmarks.clients.train NAME SEED FILE ARM...
"""

import logging
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from time import process_time
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from benchmarks.clients import CLIENTS
from hybrid_predict.runs.runtime import write_json

ARMS: dict[str, Any] = {
    "full": None,
    "hybrid": {},
    "corrected": {"speedup": 1},
    "auto": {"speedup": "auto"},
    "short": None,
}
"""Arguments of the callback by arm, in the order of training; None trains without it."""

AVERAGED: dict[str, Any] = {"averaged": None, "corrected, averaged": {"speedup": 1}}
"""Further arms with Lightning's average of the weights, over a twentieth of the run."""

OPTIONS = {**ARMS, **AVERAGED}

SHORT = 2 / 3  # of the full length have these arms: 1 / 1.5, the default speedup
SHORT_ARMS = ("short", "corrected", "corrected, averaged")


def train_seed(
    name: str, seed: int, arms: Sequence[str] = tuple(ARMS), share: float = 1.0
) -> dict[str, Any]:
    """Describe the client, and train arms with one seed, after a short run to warm up.

    Odd seeds train the arms in reverse order. So no arm is always the last one.
    """
    torch.set_num_threads(1)
    quiet()
    chosen = import_module(f"benchmarks.clients.{name}")
    told = CLIENTS[name]
    length = max(1, round(share * told.length))
    first = _trained(chosen, "hybrid", seed, max(1, length // 20), 1)
    span = first["full_steps"] + first["predicted_steps"]
    by_arm = {}
    for arm in arms[:: -1 if seed % 2 else 1]:
        whole = max(1, round(SHORT * length)) if arm in SHORT_ARMS else length
        by_arm[arm] = _trained(chosen, arm, seed, whole, span)
    # Has a Muon, of which pykeen expects only that of torch.
    from benchmarks.arms import code_digest

    rows = []
    for arm in arms:
        row = {"client": name, "seed": seed, "torch": torch.__version__, "arm": arm, **by_arm[arm]}
        row["ratio"] = row["seconds"] / by_arm["full"]["seconds"]
        row["code"] = code_digest(plugin=OPTIONS[arm] is not None)
        rows.append(row)
    about = {"package": told.package, **asdict(told), "version": version(told.package)}
    del about["requires"]
    return {"client": name, "seed": seed, "about": about, "rows": rows}


def quiet() -> None:
    """Silence warnings and log lines of the packages."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)


def _trained(chosen: Any, arm: str, seed: int, length: int, span: int) -> dict[str, Any]:
    from lightning.fabric import seed_everything
    from lightning.pytorch.callbacks import EMAWeightAveraging

    from hybrid_predict import HybridPredict

    options = OPTIONS[arm]
    data = chosen.data(seed)
    callbacks = [] if options is None else [HybridPredict(log_dir=None, **options)]
    average = [EMAWeightAveraging(decay=1 - 1 / max(span, 2))] if arm in AVERAGED else []
    updates: list[object] = []
    hook = register_optimizer_step_post_hook(lambda optimizer, *_: updates.append(optimizer))
    seed_everything(seed, verbose=False)
    started = process_time()
    try:
        trained = chosen.train(data, length, [*callbacks, *average])
    finally:
        hook.remove()
    seconds = process_time() - started
    seed_everything(seed, verbose=False)
    row = {
        "quality": chosen.quality(trained, data),
        "full_steps": max(Counter(updates).values(), default=0),  # several may take turns
        "predicted_steps": 0,
        "skill": None,
        "seconds": seconds,
    }
    for callback in callbacks:
        for field in ("full_steps", "predicted_steps", "skill"):
            row[field] = getattr(callback.ledger, field)
    return row


if __name__ == "__main__":
    made = train_seed(sys.argv[1], int(sys.argv[2]), sys.argv[4:])
    write_json(made, Path(sys.argv[3]))
