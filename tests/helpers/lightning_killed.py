"""Ends runs at any moment, and checks that they go on bit for bit from what is on disk."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import lightning_worker
import torch
from lightning.pytorch.callbacks import Callback
from lightning_models import Net, same, weights
from lightning_worker import EVERY, STEPS, train

from hybrid_predict import HybridPredict

SECONDS = 120
STATUS = {signal.SIGKILL: -signal.SIGKILL, signal.SIGTERM: 0}
"""What Lightning, or nobody, makes of it."""


class History(Callback):
    """The weights after every full step, in order."""

    def __init__(self) -> None:
        self.weights: list[dict[str, torch.Tensor]] = []

    def on_train_batch_end(self, trainer: Any, module: Any, *args: Any) -> None:
        self.weights.append(weights(module))


@lru_cache(maxsize=1)
def whole() -> tuple[HybridPredict, Net, History]:
    """The run that nothing happens to."""
    history = History()
    with tempfile.TemporaryDirectory() as folder:
        return *train(Path(folder), history), history


def steps(folder: Path) -> dict[int, Path]:
    """The checkpoints on disk by global step."""
    return {int(path.stem.split("=")[1]): path for path in folder.glob("step=*.ckpt")}


def ended(folder: Path, number: int, step: int, delay: float) -> int:
    """The exit status of a run that gets a signal some time after a checkpoint."""
    folder.mkdir()
    # The file system moves a finished checkpoint in one piece only within itself.
    environment = {**os.environ, "TMPDIR": str(folder.parent), "OMP_NUM_THREADS": "1"}
    tests = Path(lightning_worker.__file__).parent
    environment["PYTHONPATH"] = os.pathsep.join([str(tests), str(tests.parent)])
    command = [sys.executable, lightning_worker.__file__, str(folder)]
    with (folder.parent / "log").open("w") as log:
        worker = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        late = time.monotonic() + SECONDS
        while max(steps(folder), default=0) < step:
            assert worker.poll() is None and time.monotonic() < late, log.name
            time.sleep(0.001)
        time.sleep(delay)
        worker.send_signal(number)
        return worker.wait(SECONDS)
    finally:
        worker.kill()


def check_goes_on(folder: Path, inside: bool = False) -> None:
    """The checkpoints on disk hold verified weights, and the run that goes on is the whole one.

    Args:
        folder: Where they are.
        inside: Whether the last one was saved inside a full step, whose batch is lost with it.
    """
    left = steps(folder)
    # The checkpoint before goes only when the new one is whole. SIGTERM lets the run save again.
    assert 1 <= len(left) <= 2, left
    expected, final, history = whole()
    for path in left.values():
        saved = torch.load(path, weights_only=True)
        taken = saved["hybrid_predict"]["engine"]["ledger"]["full_steps"]
        assert same(saved["state_dict"], history.weights[taken - 1]), path
    if inside:
        left.pop(max(left)).unlink()
    resumed, model = train(folder, ckpt_path=str(left[max(left)]), seed=50)
    assert same(weights(model), weights(final)), left
    ledgers = [(x.ledger.full_steps, x.ledger.predicted_steps, x.ledger.undone_steps)
               for x in (resumed, expected)]  # fmt: skip
    assert ledgers[0] == ledgers[1] == (160, 80, 0)
    assert resumed.ledger.steps == STEPS


def check_ended_anywhere(folder: Path, number: int, seed: int) -> None:
    """A run in another process that gets a signal at a random moment."""
    draw = random.Random(seed)
    step, delay = EVERY * draw.randrange(1, 25), draw.uniform(0.0, 0.03)
    assert ended(folder / "run", number, step, delay) == STATUS[number]
    check_goes_on(folder / "run")
