"""What a checkout's code does: modules that an import loads, a traced step, dependencies."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ENTRIES = ("hybrid_predict", "hybrid_predict.engine", "hybrid_predict.integrations.lightning",
           "hybrid_predict.cli", "hybrid_predict.audit")  # fmt: skip
"""Modules whose import is measured; the third is what ``HybridPredict`` loads."""

_CLOSURE = """
import json, sys, {0}
modules = [m for n, m in sys.modules.items() if n.split('.')[0] == 'hybrid_predict']
lines = sum(len(open(m.__file__, encoding='utf-8').read().splitlines()) for m in modules)
print(json.dumps({{'modules': len(modules), 'lines': lines, 'file': {0}.__file__}}))
"""


@contextmanager
def package(root: Path) -> Iterator[Path]:
    """Yield a temporary folder with the package of a checkout, laid out as it is installed."""
    with TemporaryDirectory() as folder:
        place = Path(folder, "hybrid_predict")
        shutil.copytree(root / "hybrid_predict", place)
        shutil.copytree(root / "integrations", place / "integrations", dirs_exist_ok=True)
        yield Path(folder)


def closures(folder: Path) -> dict[str, dict[str, int]]:
    """Return the number and the lines of the package's modules that each of ENTRIES loads."""
    return {name: _closure(name, folder) for name in ENTRIES}


def _closure(name: str, folder: Path) -> dict[str, int]:
    found = _run(folder, "-c", _CLOSURE.format(name))
    if not (file := found.pop("file")).startswith(str(folder)):
        raise RuntimeError(f"{name} was imported from {file}, not from the checkout")
    return found


def steps(folders: Sequence[Path], rounds: int = 3) -> list[dict[str, Any]]:
    """Return what :mod:`benchmarks.traced_step` finds about the package in each folder.

    The folders take turns, and the least of each time is returned, since other work on the machine
    makes times longer, not shorter.
    """
    runs = [[_run(f, "-m", "benchmarks.traced_step") for f in folders] for _ in range(rounds)]
    found = []
    for column in zip(*runs, strict=True):
        times = [run["microseconds"] for run in column]
        least = {name: min(each[name] for each in times) for name in times[0]}
        found.append({**column[0], "microseconds": least})
    return found


def _run(folder: Path, *arguments: str) -> dict[str, Any]:
    """Run Python with the package in a folder, and return what it prints as JSON."""
    places = os.pathsep.join((str(folder), str(Path(__file__).parents[1])))
    environment = {**os.environ, "PYTHONPATH": places, "OMP_NUM_THREADS": "1"}
    printed = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True,
    ).stdout  # fmt: skip
    found: dict[str, Any] = json.loads(printed)
    return found


def installed(root: Path) -> dict[str, Any]:
    """Return the packages that ``pip install .`` of a checkout adds, and their size.

    The requirements are followed without extras. All packages have to be installed here.

    Returns:
        ``packages`` by name, and ``mib`` and ``mib_without_torch``, the size of their files without
        bytecode.
    """
    sizes: dict[str, int] = {}
    waiting = [Requirement(text) for text in _requirements(root)]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        if name in sizes or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
            continue
        found = distribution(name)
        files = [Path(str(found.locate_file(file))) for file in found.files or ()]
        sizes[name] = sum(f.stat().st_size for f in files if f.suffix != ".pyc" and f.is_file())
        waiting += [Requirement(text) for text in found.requires or ()]
    total = sum(sizes.values())
    return {
        "packages": sorted(sizes),
        "mib": round(total / 2**20, 1),
        "mib_without_torch": round((total - sizes.get("torch", 0)) / 2**20, 1),
    }


def _requirements(root: Path) -> list[str]:
    """Return what ``dependencies`` in a checkout's pyproject.toml lists."""
    text = (root / "pyproject.toml").read_text("utf-8")
    found = re.search(r"^dependencies = (\[.*?\])$", text, re.M | re.S)
    if found is None:
        raise ValueError(f"{root / 'pyproject.toml'} lists no dependencies")
    listed: list[str] = ast.literal_eval(found[1])
    return listed
