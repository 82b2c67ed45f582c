"""Footprint of a checkout: modules that an import loads, and packages that pip installs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ENTRIES = ("hybrid_predict", "hybrid_predict.engine", "hybrid_predict.integrations.lightning",
           "hybrid_predict.cli", "hybrid_predict.audit")  # fmt: skip
"""Modules whose import is measured; the third is what ``HybridPredict`` loads."""

_CLOSURE = (
    "import sys, {0}; "
    "print(sum(m.split('.')[0] == 'hybrid_predict' for m in sys.modules), {0}.__file__)"
)

_TORCH = ("torch", "torchgen", "functorch", "torchvision")


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
    """Install a checkout into a fresh environment with its constraints, without extras.

    Returns:
        ``packages`` beside the project itself, pip and setuptools, by name; and ``mib`` and
        ``mib_without_torch``, the size of all that pip added.
    """
    with TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = str(Path(folder, "bin", "python"))
        (site,) = Path(folder, "lib").glob("python*/site-packages")
        before, kept = set(os.listdir(site)), _names(python)
        command = [python, "-m", "pip", "install", "-q", "-c", "constraints.txt", "."]
        subprocess.run(command, cwd=root, check=True, stdout=sys.stderr)
        added = {name: _bytes(site / name) for name in set(os.listdir(site)) - before}
        torch = sum(size for name, size in added.items() if name.startswith(_TORCH))
        total = sum(added.values())
        packages = _names(python) - kept - {"hybrid-predict", "hybrid_predict"}
    return {
        "packages": sorted(packages),
        "mib": round(total / 2**20, 1),
        "mib_without_torch": round((total - torch) / 2**20, 1),
    }


def _names(python: str) -> set[str]:
    command = [python, "-m", "pip", "list", "--format", "json"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {package["name"] for package in json.loads(printed)} - {"pip", "setuptools"}


def _bytes(path: Path) -> int:
    """Return the size of a file, or of all files in a folder."""
    files = [path] if path.is_file() else path.rglob("*")
    return sum(file.stat().st_size for file in files if file.is_file())
