"""Footprint of a checkout: modules that an import loads, and packages that it depends on."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ENTRIES = ("hybrid_predict", "hybrid_predict.engine", "hybrid_predict.integrations.lightning",
           "hybrid_predict.cli", "hybrid_predict.audit")  # fmt: skip
"""Modules whose import is measured; the third is what ``HybridPredict`` loads."""

_CLOSURE = (
    "import sys, {0}; "
    "print(sum(m.split('.')[0] == 'hybrid_predict' for m in sys.modules), {0}.__file__)"
)


def closures(root: Path) -> dict[str, int]:
    """Return how many modules of the package the import of each of :data:`ENTRIES` loads."""
    with TemporaryDirectory() as folder:
        place = Path(folder, "hybrid_predict")
        shutil.copytree(root / "hybrid_predict", place)
        shutil.copytree(root / "integrations", place / "integrations", dirs_exist_ok=True)
        return {name: _closure(name, folder) for name in ENTRIES}


def _closure(name: str, folder: str) -> int:
    command = [sys.executable, "-c", _CLOSURE.format(name)]
    environment = {**os.environ, "PYTHONPATH": folder}
    printed = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=True
    ).stdout
    number, file = printed.split(maxsplit=1)
    if not file.startswith(folder):
        raise RuntimeError(f"{name} was imported from {file.strip()}, not from the checkout")
    return int(number)


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
