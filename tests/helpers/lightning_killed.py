"""A run in a process of its own that is killed, and what must go on bit for bit from the disk.

The process runs: python tests/helpers/lightning_killed.py FOLDER
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning_models import Net, SeededLoader, Ungated, fit, same, weights

from hybrid_predict import HybridPredict

STEPS, EVERY = 240, 6
SECONDS = 120


def train(folder: Path, *more: L.Callback, **options: Any) -> tuple[HybridPredict, Net]:
    """A run that keeps its last checkpoint only, within one long epoch."""
    save = ModelCheckpoint(
        folder, "{step}", every_n_train_steps=EVERY, save_top_k=1, save_on_exception=True
    )
    callback = Ungated(cooldown_steps=0.2)
    train = SeededLoader(1000)
    _, model = fit([callback, *more, save], train=train, max_steps=STEPS, **options)
    return callback, model


class Slowly(Callback):
    """Takes time over every batch, so that a run is met on its way."""

    def on_train_batch_end(self, *args: Any) -> None:
        time.sleep(0.004)


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


def check_goes_on(folder: Path) -> None:
    """The checkpoints on disk hold verified weights, and the run that goes on is the whole one."""
    left = steps(folder)
    # The checkpoint before goes only when the new one is whole. SIGTERM lets the run save again.
    assert 1 <= len(left) <= 2, left
    expected, final, history = whole()
    for path in left.values():
        saved = torch.load(path, weights_only=True)
        taken = saved["hybrid_predict"]["engine"]["ledger"]["full_steps"]
        assert same(saved["state_dict"], history.weights[taken - 1]), path
    resumed, model = train(folder, ckpt_path=str(left[max(left)]), seed=50)
    assert same(weights(model), weights(final)), left
    ledgers = [(x.ledger.full_steps, x.ledger.predicted_steps, x.ledger.undone_steps)
               for x in (resumed, expected)]  # fmt: skip
    assert ledgers[0] == ledgers[1] == (160, 80, 0)
    assert resumed.ledger.steps == STEPS


def kill_at_a_random_moment(folder: Path, seed: int) -> None:
    """Train in another process, and kill it some time after a checkpoint."""
    draw = random.Random(seed)
    step, delay = EVERY * draw.randrange(1, 25), draw.uniform(0.0, 0.03)
    folder.mkdir()
    # The file system moves a finished checkpoint in one piece only within itself.
    environment = {**os.environ, "TMPDIR": str(folder.parent), "OMP_NUM_THREADS": "1"}
    tests = Path(__file__).parent
    environment["PYTHONPATH"] = os.pathsep.join([str(tests), str(tests.parent)])
    command = [sys.executable, __file__, str(folder)]
    with (folder.parent / "log").open("w") as log:
        worker = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        late = time.monotonic() + SECONDS
        while max(steps(folder), default=0) < step:
            assert worker.poll() is None and time.monotonic() < late, log.name
            time.sleep(0.001)
        time.sleep(delay)
    finally:
        worker.kill()
    assert worker.wait(SECONDS) == -signal.SIGKILL


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    train(Path(sys.argv[1]), Slowly())
    time.sleep(600)  # a parent that comes late still has something to kill
