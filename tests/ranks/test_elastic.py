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
LOOP = Path(__file__).parent / "elastic_loop.py"
EXAMPLE = TESTS.parent / "examples" / "by_feature" / "elastic.py"

IN_A_LOOP = [
    [1, 2, "forward", "kill"], [0, 8, "backward", "exit"], [0, 9, "save", "kill"],
    [1, 11, "forward", "raise"], [0, 14, "backward", "kill"], [1, 17, "after update", "exit"],
    [1, 19, "between", "raise"], [0, 22, "forward", "exit"], [1, 27, "forward", "kill"],
    [1, 28, "backward", "exit"], [1, 29, "after update", "raise"],
]  # fmt: skip


def torchrun(program: Path, *arguments: Any, restarts: int) -> str:
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
        *("--nproc-per-node", 2, "--max-restarts", restarts, "--monitor-interval", 0.1),
        *(program, *arguments),
    ]
    done = subprocess.run(
        list(map(str, command)), env=environment, capture_output=True, text=True, timeout=1500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def end(folder: Path) -> dict[str, Any]:
    """Everything that a run of one's own loop has saved, without seconds."""
    saved = torch.load(folder / "last.pt", weights_only=True)
    ledger = saved["engine"]["ledger"]
    for name in [n for n in ledger if "seconds" in n or "overhead" in n]:
        del ledger[name]
    saved["engine"]["ledger"] = repr(ledger)
    return saved


@pytest.mark.slow
def test_an_example_goes_on_after_a_lost_process(tmp_path: Path) -> None:
    printed = torchrun(EXAMPLE, tmp_path, 50, restarts=1)
    assert "attempt 0 begins after 0 full steps" in printed
    assert "attempt 1 begins after 40 full steps" in printed
    assert "done: 100 full + 50 predicted = 150 steps" in printed


@pytest.mark.slow
@pytest.mark.parametrize("setup", ["ddp", "fsdp2"])
def test_a_loop_that_loses_ranks_in_every_phase_ends_with_the_same_bits(
    tmp_path: Path, setup: str
) -> None:
    folders = [tmp_path / name for name in ("whole", "torn")]
    for folder, deaths in zip(folders, ([], IN_A_LOOP), strict=True):
        folder.mkdir()
        torchrun(LOOP, folder, setup, json.dumps(deaths), restarts=len(deaths))
    lines = (folders[1] / "deaths.jsonl").read_text().splitlines()
    met = [json.loads(line) for line in lines]
    assert [[d["step"], d["place"]] for d in met] == [death[1:3] for death in IN_A_LOOP]
    phases = {d["phase"] for d in met if "phase" in d}
    assert phases == {"warmup", "full", "predict", "cooldown"}
    assert same_bits(*map(end, folders))
