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


def check_goes_on(folder: Path) -> None:
    """From the last checkpoint on disk the run goes on as the one that nothing happens to."""
    left = list(folder.glob("step=*.ckpt"))
    # The checkpoint before goes only when the new one is whole.
    assert 1 <= len(left) <= 2, left
    with tempfile.TemporaryDirectory() as place:
        _, final = train(Path(place))
    path = max(left, key=saved_at)
    resumed, model = train(folder, ckpt_path=str(path), seed=50)
    assert same(weights(model), weights(final)), path
    ledger = resumed.ledger
    counts = ledger.full_steps, ledger.predicted_steps, ledger.undone_steps, ledger.steps
    assert counts == (160, 80, 0, STEPS)


def saved_at(path: Path) -> int:
    """The global step of a checkpoint."""
    return int(path.stem.split("=")[1])


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
        while max(map(saved_at, folder.glob("step=*.ckpt")), default=0) < step:
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
