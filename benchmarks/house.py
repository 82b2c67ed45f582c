"""Size of the code, and what one full step of it takes.

Run with: python -m benchmarks.house [--against COMMIT]
In an environment with the packages that both states depend on.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[1]

SKIP = re.compile(r"\s*# fmt: (skip|off|on)")

ENGINE = """
import sys, hybrid_predict.engine
files = {n: m.__file__ for n, m in sys.modules.items() if n.startswith("hybrid_predict")}
print(*filter(None, files.values()), sep="\\n", end="")
"""
"""Prints the files that the engine loads."""

SPEEDUPS = (1, 1.5)  # of the traced steps: corrected updates alone, and the default


def dense(paths: Iterable[Path]) -> int:
    """Count lines at ordinary density: as ruff formats them, with nothing left out."""
    with TemporaryDirectory() as folder:
        place = Path(folder)
        for number, path in enumerate(paths):
            text = SKIP.sub("", path.read_text("utf-8"))
            (place / f"{number}.py").write_text(text, "utf-8")
        ruff = (sys.executable, "-m", "ruff", "format", "--quiet", "--config")
        subprocess.run([*ruff, ROOT / "pyproject.toml", folder], check=True)
        return sum(len(path.read_text("utf-8").splitlines()) for path in place.glob("*.py"))


def sizes(root: Path) -> dict[str, int]:
    """Count lines by part, and pages, results and modules."""
    product = [path for top in ("hybrid_predict", "integrations") for path in _sources(root / top)]
    decisions = sorted((root / "docs" / "decisions").glob("0*.md"))
    return {
        "lines, product": dense(product),
        "lines, Lightning callback": dense(root.glob("integrations/lightning*.py")),
        "lines, tests": dense(_sources(root / "tests")),
        "lines, benchmarks": dense(_sources(root / "benchmarks")),
        "decision pages": len(decisions),
        "lines of decision pages": sum(len(p.read_text("utf-8").splitlines()) for p in decisions),
        "results files": len(list((root / "docs" / "results").iterdir())),
        "modules at the root of the package": len(list((root / "hybrid_predict").glob("*.py"))),
    }


def _sources(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def measure(root: Path) -> dict[str, Any]:
    """Measure a checkout."""
    found: dict[str, Any] = sizes(root)
    loaded = run_python(root, "-c", ENGINE).split("\n")
    found["lines that `import hybrid_predict.engine` loads"] = dense(map(Path, loaded))
    for speedup in SPEEDUPS:
        code = Path(__file__).with_name("traced_step.py").read_text("utf-8")
        step = json.loads(run_python(root, "-c", code, str(speedup)))
        found[f"lines loaded after steps, speedup={speedup:g}"] = dense(map(Path, step["loaded"]))
        for what in ("files", "classes", "holders"):
            found[f"{what} in a step, speedup={speedup:g}"] = len(step[what])
        for what in ("calls", "operations"):
            found[f"own {what} in a full step, speedup={speedup:g}"] = step[what]
    names = "import hybrid_predict; print(len(hybrid_predict.__all__))"
    found["public names"] = int(run_python(root, "-c", names))
    return found


def run_python(root: Path, *arguments: str) -> str:
    """Run Python with the package of a checkout; return what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    command = (sys.executable, *arguments)
    return subprocess.check_output(command, cwd=root, env=environment, text=True)


@contextmanager
def checkout(root: Path, commit: str) -> Iterator[Path]:
    """Yield a temporary folder with a commit of the repository at ``root``."""
    archive = subprocess.check_output(["git", "archive", commit], cwd=root)
    with TemporaryDirectory() as folder, tarfile.open(fileobj=BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
        yield Path(folder)


def table(results: dict[str, dict[str, Any]]) -> str:
    """Return the numbers as a Markdown table, a column per state."""
    lines = [f"| | {' | '.join(results)} |", f"| --- |{' ---: |' * len(results)}"]
    for name in results["now"]:
        cells = " | ".join(f"{state[name]:,}" for state in results.values())
        lines.append(f"| {name} | {cells} |")
    return "\n".join(lines)


def main() -> None:
    """Measure the working tree, and a commit if one is named; print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", metavar="COMMIT", help="a state to compare with")
    options = parser.parse_args()
    results: dict[str, dict[str, Any]] = {}
    if options.against:
        with checkout(ROOT, options.against) as before:
            results[options.against] = measure(before)
    results["now"] = measure(ROOT)
    print(table(results))


if __name__ == "__main__":
    main()
