"""Runs the checks of a module on processes that talk through gloo, in one start."""

from __future__ import annotations

import importlib
import os
import socket
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from loops import same_bits
from torch import multiprocessing

SECONDS = 300
IMPORTED = ["lightning.pytorch", "pytest", "torch.distributed.fsdp"]
"""By one process, which forks the ranks of all launches."""

ADVICE = (
    ".*does not have many workers",
    ".*isinstance\\(treespec",
    ".*sync_dist=True",
    "The dirpath has changed",
    "FSDP.state_dict_type",
    "Please use DTensor instead",
    "Multiple backends are registered",
    ".*_get_pg_default_device",
    ".*load_state_dict` is deprecated",
)


def launch(
    modules: Sequence[str], folder: Path, count: int = 2, seconds: int = SECONDS
) -> dict[str, list[Any]]:
    """What every check in ``CHECKS`` of these modules returned, by name and then by rank.

    ``module:check`` runs one check alone. Checks get the folder; there are ``count`` ranks.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    end = time.monotonic() + seconds
    multiprocessing.set_forkserver_preload(IMPORTED)
    workers = multiprocessing.start_processes(
        work, (port, count, folder, modules), nprocs=count, join=False, start_method="forkserver"
    )
    try:
        while not workers.join(timeout=1.0):
            assert time.monotonic() < end, "the ranks hang"
    finally:
        for worker in workers.processes:
            worker.kill()
    results = [torch.load(folder / f"{k}.pt", weights_only=False) for k in range(count)]
    return {name: [r[name] for r in results] for name in results[0]}


def work(rank: int, port: int, count: int, folder: Path, modules: Sequence[str]) -> None:
    """Run the checks on this rank; the first failure ends it, and with it the other rank."""
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "TORCHELASTIC_RUN_ID": "tests",
    }
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    for message in ADVICE:
        warnings.filterwarnings("ignore", message)
    dist.init_process_group("gloo")
    results: dict[str, Any] = {}
    for module, _, chosen in (m.partition(":") for m in modules):
        for name, check in importlib.import_module(module).CHECKS.items():
            if chosen in ("", name):
                torch.manual_seed(0)
                results[name] = check(folder)
    torch.save(results, folder / f"{rank}.pt")
    # Without the teardown of a group whose other rank may be gone.
    os._exit(0)


def same(left: dict[str, Any], right: dict[str, Any], *parts: str) -> bool:
    """Whether these parts of two outcomes are, or all of them; what is unknown equals itself."""
    shown = [
        {k: v if k in ("weights", "random") else repr(v) for k, v in outcome.items()}
        for outcome in (left, right)
    ]
    return all(same_bits(shown[0][k], shown[1][k]) for k in parts or left.keys() | right.keys())
