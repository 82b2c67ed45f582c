"""A run that is killed at any moment goes on from its last checkpoint, bit for bit."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback

import lightning_worker
from hybrid_predict import HybridPredict
from lightning_models import Net, same, weights
from lightning_worker import EVERY, STEPS, train

SECONDS = 120


class History(Callback):
    """The weights after every full step, in order."""

    def __init__(self) -> None:
        self.weights: list[dict[str, torch.Tensor]] = []

    def on_train_batch_end(self, trainer: Any, module: Any, *args: Any) -> None:
        self.weights.append(weights(module))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[HybridPredict, Net, History]:
    """The run that nothing happens to."""
    history = History()
    return *train(tmp_path_factory.mktemp("whole"), history), history


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


def check_goes_on(path: Path, folder: Path, whole: tuple[HybridPredict, Net, History]) -> None:
    """A checkpoint on disk holds base weights, and the run that goes on is the whole one."""
    saved = torch.load(path, weights_only=True)
    expected, final, history = whole
    taken = saved["hybrid_predict"]["engine"]["clock"]["full_steps"]
    assert same(saved["state_dict"], history.weights[taken - 1])
    resumed, model = train(folder, ckpt_path=str(path), seed=50)
    assert same(weights(model), weights(final))
    left, right = resumed.ledger, expected.ledger
    assert (left.full_steps, left.forecasts, left.accepted) == (
        right.full_steps, right.forecasts, right.accepted
    )  # fmt: skip
    assert left.equivalent_steps == STEPS and left.forecasts > 100


STATUS = {signal.SIGKILL: -signal.SIGKILL, signal.SIGTERM: 0}
"""What Lightning, or nobody, makes of it."""
MOMENTS = [
    (signal.SIGKILL, 3),
    *(pytest.param(n, seed, marks=pytest.mark.slow) for n in STATUS for seed in range(10, 16)),
]


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
@pytest.mark.parametrize(("number", "seed"), MOMENTS)
def test_a_run_ended_at_a_random_moment_goes_on_bit_for_bit(
    tmp_path: Path, whole: tuple[HybridPredict, Net, History], number: int, seed: int
) -> None:
    draw = random.Random(seed)
    step, delay = EVERY * draw.randrange(1, 25), draw.uniform(0.0, 0.03)
    folder = tmp_path / "run"
    assert ended(folder, number, step, delay) == STATUS[number]
    left = steps(folder)
    # The checkpoint before goes only when the new one is whole. SIGTERM lets the run save again.
    assert 1 <= len(left) <= 2
    check_goes_on(left[max(left)], folder, whole)
