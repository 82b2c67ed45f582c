"""A job that torchrun restarts ends with the bits of the run to which nothing happens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from loops import same_bits
from torch import distributed as dist

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="no gloo"),
]

TESTS = Path(__file__).parents[1]
TRAINER = Path(__file__).parent / "elastic_trainer.py"
EXAMPLE = TESTS.parent / "examples" / "by_feature" / "elastic.py"

IN_A_TRAINER = [
    [[1, 3, "on_before_backward", "SIGKILL"]], [[0, 7, "on_after_backward", "exit"]],
    [[1, 10, "on_before_backward", "raise"]], [[0, 12, "on_before_optimizer_step", "SIGKILL"]],
    [[1, 14, "on_before_zero_grad", "exit"]], [[1, 16, "on_train_batch_end", "raise"]],
    [[0, 20, "on_validation_start", "SIGKILL"]], [[1, 28, "on_before_backward", "SIGKILL"]],
]  # fmt: skip


def torchrun(program: Path, *arguments: Any, count: int = 2, restarts: int = 0) -> str:
    """What the processes of a job have printed, which has to end well after so many restarts."""
    paths = [TESTS.parent, TESTS, *(TESTS / name for name in ("helpers", "faults", "ranks"))]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "OMP_NUM_THREADS": "1",
        # Else processes that are started again meet addresses of those that have ended.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", count, "--max-restarts", restarts, "--monitor-interval", 0.1),
        *(program, *arguments),
    ]
    done = subprocess.run(
        list(map(str, command)), env=environment, capture_output=True, text=True, timeout=1500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def told(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


@pytest.mark.slow
def test_an_example_goes_on_after_a_lost_process(tmp_path: Path) -> None:
    printed = torchrun(EXAMPLE, tmp_path, 50, restarts=1)
    assert "attempt 0 begins after 0 full steps" in printed
    assert "attempt 1 begins after 40 full steps" in printed
    assert "done: 100 full + 50 predicted = 150 steps" in printed


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The end of a set-up's run to which nothing happens, made once."""
    made: dict[str, Path] = {}

    def folder(setup: str) -> Path:
        if setup not in made:
            made[setup] = tmp_path_factory.mktemp("whole")
            torchrun(TRAINER, made[setup], setup)
        return made[setup]

    return folder


@pytest.mark.slow
@pytest.mark.parametrize("setup", ["ddp", "fsdp2", "fsdp2, sharded"])
def test_a_trainer_that_loses_ranks_in_every_phase_ends_with_the_same_bits(
    tmp_path: Path, whole: Any, setup: str
) -> None:
    torchrun(TRAINER, tmp_path, setup, json.dumps(IN_A_TRAINER), restarts=len(IN_A_TRAINER))
    met = told(tmp_path, "faults.jsonl")
    assert [fault["rank"] for fault in met] == [fault[0][0] for fault in IN_A_TRAINER]
    assert {f["phase"] for f in met if "phase" in f} == {"warmup", "full", "predict", "cooldown"}
    ends = [torch.load(x / "end.pt", weights_only=False) for x in (tmp_path, whole(setup))]
    assert same_bits(*(e["weights"] for e in ends)) and same_bits(*(e["optimizer"] for e in ends))
    assert repr(ends[0]["ledger"]) == repr(ends[1]["ledger"])
    assert ends[0]["step"] == ends[1]["step"] == 40
    assert ends[0]["ledger"]["predicted_steps"] == 10
    logs = sorted(tmp_path.rglob("hybrid_predict.jsonl"))
    assert len(logs) == len(list(tmp_path.rglob("hybrid_predict*"))) > 1


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("setup", ["ddp", "fsdp2, sharded"])
def test_a_job_goes_on_with_another_number_of_ranks(
    tmp_path: Path, whole: Any, setup: str, count: int
) -> None:
    fault = [[1, 14, "on_before_backward", "exit"]]
    with pytest.raises(AssertionError):
        torchrun(TRAINER, tmp_path, setup, json.dumps([fault]))
    printed = torchrun(TRAINER, tmp_path, setup, count=count)
    assert printed.count(f"the number of ranks changed from 2 to {count}") == 1
    places = tmp_path, whole(setup)
    ledgers = [torch.load(place / "end.pt", weights_only=False)["ledger"] for place in places]
    counted = [[x[n] for n in ("steps", "full_steps", "predicted_steps")] for x in ledgers]
    assert counted == [[40, 30, 10]] * 2
    (event,) = ledgers[0]["events"]
    assert event["count"] == 1
