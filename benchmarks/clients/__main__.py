"""Trains the clients: python -m benchmarks.clients NAME... --seeds 3; finished seeds are kept.

Each client has a virtual environment of its own, which is made before its first run.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Collection, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from benchmarks import RESULTS
from benchmarks.arguments import one_of
from benchmarks.clients import CLIENTS, Client, client
from benchmarks.clients.environments import ROOT, interpreter
from hybrid_predict.cli.program import positive
from hybrid_predict.runs.runtime import environment, write_json

ARMS: dict[str, Any] = {
    "full": None,
    "hybrid": {},
    "corrected": {"speedup": 1},
    "auto": {"speedup": "auto"},
    "short": None,
}
"""Arguments of the callback by arm, in the order of training; None trains without it."""

SHORT, SHORT_ARMS = 2 / 3, ("short", "corrected")
"""Length of these arms as a share of the full one: 1 / 1.5, the default speedup. They take as many
full steps as the default, if all its predicted steps are made."""

SCHEMA = 1
Row = dict[str, Any]


def run(
    names: Sequence[str], seeds: int, path: Path, environments: Path, anew: Collection[str] = ()
) -> dict[str, Any]:
    """Train the seeds that are not finished yet; write the file after each of them.

    Each seed of a client has its own process: packages change global settings.

    Args:
        names: Names of clients.
        seeds: Number of seeds of each.
        path: The results file.
        environments: Folder of the clients' virtual environments.
        anew: Arms whose finished runs are made again, and the full runs beside them.
    """
    results: dict[str, Any] = {"schema": SCHEMA, "environment": {}, "clients": {}, "rows": []}
    if path.exists():
        results = json.loads(path.read_text("utf-8"))
    if anew:
        kept = [r for r in results["rows"] if r["client"] not in names or r["arm"] not in anew]
        results["rows"] = kept
    for seed in range(seeds):
        for name in names:
            mine = [r for r in results["rows"] if (r["client"], r["seed"]) == (name, seed)]
            missing = [arm for arm in ARMS if arm not in [row["arm"] for row in mine]]
            if not missing:
                continue
            arms = list(dict.fromkeys(["full", *missing]))
            description, rows = in_environment(name, seed, environments, arms)
            results["environment"] = environment()
            results["clients"][name] = description
            replaced = [row for row in mine if row["arm"] in arms]
            results["rows"] = [row for row in results["rows"] if row not in replaced] + rows
            write_json(results, path)
            for row in rows:
                print(json.dumps(row), flush=True)
    return results


def in_environment(
    name: str, seed: int, environments: Path, arms: Sequence[str]
) -> tuple[dict[str, Any], list[Row]]:
    """Return what :func:`train_seed` returns in the environment of the client."""
    python = interpreter(client(name), environments)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "seed.json"
        call = f"write_json(train_seed({name!r}, {seed}, {arms!r}), Path({str(path)!r}))"
        code = f"from benchmarks.clients.__main__ import *; {call}"
        variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        subprocess.run([python, "-c", code], check=True, cwd=folder, env=variables)
        description, rows = json.loads(path.read_text("utf-8"))
    return description, rows


def check(names: Sequence[str], environments: Path) -> int:
    """Run the slow tests of clients, each in its environment; return how many failed."""
    command = ("-m", "pytest", "-m", "slow", "tests/clients/test_clients.py", "-k")
    codes = [
        subprocess.run([interpreter(client(name), environments), *command, name], cwd=ROOT)
        for name in names
    ]
    return sum(bool(code.returncode) for code in codes)


def train_seed(
    name: str, seed: int, arms: Sequence[str], share: float = 1.0
) -> tuple[dict[str, Any], list[Row]]:
    """Describe the client, and train arms with one seed, after a short run to warm up.

    Odd seeds train the arms in reverse order. So no arm is always the last one.
    """
    torch.set_num_threads(1)
    quiet()
    chosen = client(name)
    length = max(1, round(share * chosen.length))
    _trained(chosen, "hybrid", seed, max(1, length // 20))
    order = arms[:: -1 if seed % 2 else 1]
    by_arm = {}
    for arm in order:
        whole = max(1, round(SHORT * length)) if arm in SHORT_ARMS else length
        by_arm[arm] = _trained(chosen, arm, seed, whole)
    from benchmarks.run import code_digest  # has a Muon, of which pykeen expects only that of torch

    shared = {"client": name, "seed": seed, "torch": torch.__version__}
    for arm, row in by_arm.items():
        row["ratio"] = row["seconds"] / by_arm["full"]["seconds"]
        row["code"] = code_digest("hybrid" if ARMS[arm] is not None else "plain")
    return chosen.to_dict(), [{**shared, "arm": arm, **by_arm[arm]} for arm in arms]


def quiet() -> None:
    """Silence warnings and log lines of the packages."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)


def _trained(chosen: Client, arm: str, seed: int, length: int) -> Row:
    """Train one run; return its quality, steps, and seconds of processor time."""
    from lightning.fabric import seed_everything

    from hybrid_predict import HybridPredict

    options = ARMS[arm]
    data = chosen.data(seed)
    callback = None if options is None else HybridPredict(log_dir=None, **options)
    updates: list[object] = []
    hook = register_optimizer_step_post_hook(lambda optimizer, *_: updates.append(optimizer))
    seed_everything(seed, verbose=False)
    started = process_time()
    try:
        trained = chosen.train(data, length, [] if callback is None else [callback])
    finally:
        hook.remove()
    seconds = process_time() - started
    seed_everything(seed, verbose=False)
    ledger = None if callback is None else callback.ledger
    return {
        "quality": chosen.quality(trained, data),
        "full_steps": len(updates) if ledger is None else ledger.full_steps,
        "predicted_steps": 0 if ledger is None else ledger.predicted_steps,
        "skill": None if ledger is None else ledger.skill,
        "seconds": seconds,
    }


def main() -> None:
    """Read the arguments, and run."""
    parser = argparse.ArgumentParser("python -m benchmarks.clients", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", type=one_of(CLIENTS),
                        help=f"of {', '.join(CLIENTS)}; or all")  # fmt: skip
    parser.add_argument("--seeds", type=positive, default=3, help="of each client (default: 3)")
    parser.add_argument("--output", type=Path, default=RESULTS / "clients.json",
                        help="the results file")  # fmt: skip
    parser.add_argument("--anew", nargs="+", metavar="ARM", type=one_of(ARMS), default=[],
                        help=f"make finished runs of {', '.join(ARMS)} again")  # fmt: skip
    parser.add_argument("--environments", type=Path, default=Path("client-environments"),
                        help="folder of their virtual environments")  # fmt: skip
    parser.add_argument("--test", action="store_true", help="run their slow tests instead")
    asked = parser.parse_args()
    names = asked.names or list(CLIENTS)
    if asked.test:
        sys.exit(check(names, asked.environments))
    run(names, asked.seeds, asked.output, asked.environments, asked.anew)


if __name__ == "__main__":
    main()
