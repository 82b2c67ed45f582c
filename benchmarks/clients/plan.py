"""The seeds of clients, each trained in a process of its own, in the client's environment."""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.clients import CLIENTS, client
from benchmarks.clients.environments import ROOT, interpreter
from benchmarks.clients.train import ARMS
from benchmarks.digests import code_digest
from benchmarks.plan import Plan, Row, Selection
from hybrid_predict.runs.runtime import environment

SCHEMA, SEEDS = 1, 3

Key = tuple[str, int]
"""Name of a client, and seed."""


class ClientsPlan(Plan[Key]):
    """A run is a seed of a client, with all arms; it has the description of the client."""

    def __init__(self, chosen: Selection, environments: Path = Path("client-environments")) -> None:
        self._names = [name for name in CLIENTS if chosen.tasks is None or name in chosen.tasks]
        self._seeds = chosen.seeds or SEEDS
        self._environments = environments

    def keys(self, done: Mapping[Key, Row]) -> Iterator[Key]:
        """Yield all clients, seed by seed."""
        yield from ((name, seed) for seed in range(self._seeds) for name in self._names)

    def key(self, row: Row) -> Key:
        """Return name and seed."""
        return row["client"], row["seed"]

    def work(self, key: Key) -> Row:
        """Train a seed: packages change global settings, so it has its own process."""
        name, seed = key
        about, rows = in_environment(name, seed, self._environments)
        told = {"about": about, "environment": environment()}
        return {"client": name, "seed": seed, **told, "rows": rows}

    def holds(self, row: Row) -> bool:
        """Return whether the arms with the plug-in come from its present code."""
        codes = {each["code"] for each in row["rows"] if ARMS[each["arm"]] is not None}
        return codes == {code_digest("hybrid")}

    def tell(self, row: Row) -> str:
        """Return the rows."""
        return "\n".join(map(json.dumps, row["rows"]))


def in_environment(
    name: str, seed: int, environments: Path
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return what :func:`train_seed` returns in the environment of the client."""
    python = interpreter(client(name), environments)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "seed.json"
        code = (
            "from pathlib import Path; from benchmarks.clients.train import train_seed; "
            "from hybrid_predict.runs.runtime import write_json; "
            f"write_json(train_seed({name!r}, {seed}), Path({str(path)!r}))"
        )
        variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        subprocess.run([python, "-c", code], check=True, cwd=folder, env=variables)
        about, rows = json.loads(path.read_text("utf-8"))
    return about, rows


def seeds(results: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the runs of a results file, as a plan has them."""
    found: dict[Key, list[Row]] = {}
    for row in results["rows"]:
        found.setdefault((row["client"], row["seed"]), []).append(row)
    for (name, seed), rows in found.items():
        told = {"about": results["clients"][name], "environment": results["environment"]}
        yield {"client": name, "seed": seed, **told, "rows": rows}


def compiled(done: Mapping[Key, Row]) -> dict[str, Any]:
    """Return the content of a results file."""
    runs = list(done.values())
    return {
        "schema": SCHEMA,
        "environment": runs[-1]["environment"] if runs else {},
        "clients": {run["client"]: run["about"] for run in runs},
        "rows": [row for run in runs for row in run["rows"]],
    }
