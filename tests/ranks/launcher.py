"""Runs the checks of a module on several processes that talk through gloo, in one start."""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from loops import same_bits

TESTS = Path(__file__).parents[1]
FOLDERS = (TESTS, TESTS / "helpers", TESTS / "faults", TESTS / "ranks", TESTS.parent)
SECONDS = 300
ADVICE = (
    ".*does not have many workers",
    ".*isinstance\\(treespec",
    ".*sync_dist=True",
    "The dirpath has changed",
)
"""Of Lightning; every rank logs what it sees, and a resumed run saves elsewhere."""


def launch(modules: Sequence[str], folder: Path) -> dict[str, list[Any]]:
    """What every check in ``CHECKS`` of these modules returned, by name and then by rank.

    ``module:check`` runs one check alone. Checks get the folder.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "0",
        "TORCHELASTIC_RUN_ID": "tests",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(map(str, FOLDERS)),
    }
    command = [sys.executable, str(Path(__file__)), str(folder), *modules]
    workers = []
    for k in range(2):
        environment = {**os.environ, **shared, "RANK": str(k), "LOCAL_RANK": str(k)}
        with (folder / f"{k}.log").open("w") as log:
            workers.append(
                subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
            )
    try:
        codes = [worker.wait(SECONDS) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    logs = [(folder / f"{k}.log").read_text() for k in range(2)]
    files = [folder / f"{k}.pt" for k in range(2)]
    assert all(file.exists() for file in files), "\n".join(logs)
    results = [torch.load(file, weights_only=False) for file in files]
    failures = [f"rank {k}: {r['failure']}" for k, r in enumerate(results) if "failure" in r]
    assert not failures and not any(codes), "\n".join(failures)
    return {name: [r[name] for r in results] for name in results[0]}


def same(left: dict[str, Any], right: dict[str, Any], *parts: str) -> bool:
    """Whether these parts of two outcomes are, or all of them; what is unknown equals itself."""
    shown = [
        {k: v if k in ("weights", "random") else repr(v) for k, v in outcome.items()}
        for outcome in (left, right)
    ]
    return all(same_bits(shown[0][k], shown[1][k]) for k in parts or left.keys() | right.keys())


def work(folder: Path, modules: Sequence[str]) -> None:
    """Run the checks on this rank; the first failure ends it, and with it the other ranks."""
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    for message in ADVICE:
        warnings.filterwarnings("ignore", message)
    dist.init_process_group("gloo")
    results: dict[str, Any] = {}
    name = "start"
    try:
        for module, _, chosen in (m.partition(":") for m in modules):
            for name, check in importlib.import_module(module).CHECKS.items():
                if chosen in ("", name):
                    torch.manual_seed(0)
                    results[name] = check(folder)
    except BaseException:
        results["failure"] = f"{name}: {traceback.format_exc()}"
    torch.save(results, folder / f"{os.environ['RANK']}.pt")
    # Without the teardown of a group whose other ranks may be gone.
    os._exit("failure" in results)


if __name__ == "__main__":
    work(Path(sys.argv[1]), sys.argv[2:])
