"""The seeds of clients, each trained in a process of its own, in the client's environment."""

import json
import os
import subprocess
import venv
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.clients import CLIENTS
from benchmarks.clients.train import ARMS
from benchmarks.digests import code_digest
from benchmarks.plan import Plan, Row, Selection, check_chosen
from hybrid_predict.runs.runtime import environment

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = Path("client-environments")

SEEDS = 3

SHARED = ("pytest", "hypothesis", f"{ROOT}[lightning,cli,bench]")
"""Requirements of every environment, beside the present versions of torch and Lightning."""

OLD_BUILDS = "setuptools<81\n"
"""Constraint on the tools that build packages: some old ones need a part that is gone since. The
pip that comes with Python would apply it to what is installed too."""

Key = tuple[str, int]
"""Name of a client, and seed."""


class ClientsPlan(Plan[Key]):
    """A run is a seed of a client, with all arms; it has the description of the client."""

    def __init__(self, chosen: Selection) -> None:
        check_chosen("tasks", chosen.tasks, CLIENTS)
        self._names = chosen.tasks or tuple(CLIENTS)
        self._seeds = chosen.seeds or SEEDS

    def keys(self, done: Mapping[Key, Row]) -> Iterator[Key]:
        """Yield all clients, seed by seed."""
        yield from ((name, seed) for seed in range(self._seeds) for name in self._names)

    def key(self, row: Row) -> Key:
        return row["client"], row["seed"]

    def work(self, key: Key) -> Row:
        """Train a seed: packages change global settings, so it has its own process."""
        name, seed = key
        python = interpreter(name)
        with TemporaryDirectory() as folder:
            path = Path(folder) / "seed.json"
            command = [str(python), "-m", "benchmarks.clients.train", name, str(seed), str(path)]
            variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
            subprocess.run(command, check=True, cwd=folder, env=variables)
            return {**json.loads(path.read_text("utf-8")), "environment": environment()}

    def holds(self, row: Row) -> bool:
        """Return whether the arms with the plug-in come from its present code."""
        codes = {each["code"] for each in row["rows"] if ARMS[each["arm"]] is not None}
        return codes == {code_digest("hybrid")}

    def tell(self, row: Row) -> str:
        return "\n".join(map(json.dumps, row["rows"]))


def seeds(results: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the runs of a results file, as a plan has them."""
    found: dict[Key, Row] = {}
    for row in results["rows"]:
        name, seed = key = (row["client"], row["seed"])
        told = {"about": results["clients"][name], "environment": results["environment"]}
        found.setdefault(key, {"client": name, "seed": seed, **told, "rows": []})
        found[key]["rows"].append(row)
    yield from found.values()


def compiled(chosen: Selection, runs: Sequence[Row], whole: bool, before: Any) -> dict[str, Any]:
    """Return the content of a results file."""
    return {
        "environment": runs[-1]["environment"] if runs else {},
        "clients": {run["client"]: run["about"] for run in runs},
        "rows": [row for run in runs for row in run["rows"]],
    }


def interpreter(name: str) -> Path:
    """Return the Python of a client's environment, which is made if its requirements are new."""
    place = ENVIRONMENTS.resolve() / CLIENTS[name].package
    python = place / "bin" / "python"
    made = place / "requirements.txt"
    present = (f"{x}=={version(x).partition('+')[0]}" for x in ("torch", "lightning"))
    wanted = "\n".join((*present, *CLIENTS[name].requires.split(), *SHARED))
    if made.exists() and made.read_text("utf-8") == wanted:
        return python
    print(f"Environment of {name}: {place}", flush=True)
    venv.create(place, with_pip=True, clear=True)
    limits = place / "builds.txt"
    limits.write_text(OLD_BUILDS, "utf-8")
    pip = (python, "-m", "pip", "install", "--quiet")
    subprocess.run([*pip, "pip>=25.3"], check=True)
    subprocess.run([*pip, "--build-constraint", limits, *wanted.split("\n")], check=True)
    drop_unloadable(place)
    made.write_text(wanted, "utf-8")
    return python


def drop_unloadable(place: Path) -> None:
    """Remove what PyPI's torchvision and torchaudio need CUDA for; no client uses it."""
    for packages in place.glob("lib/python*/site-packages"):
        if (packages / "torch" / "lib" / "libc10_cuda.so").exists():
            continue
        for part in packages.glob("torchaudio/lib/_torchaudio*.so"):
            part.unlink()
        for part in packages.glob("torchvision/_meta_registrations.py"):
            part.write_text("", "utf-8")
