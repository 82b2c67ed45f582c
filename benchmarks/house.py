"""Size of the code: files, lines, classes, functions and imports by part; one step, traced.

Run with: python -m benchmarks.house --against COMMIT --output docs/results/house.json
In an environment with the packages that both states depend on.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec, resolve_name
from io import BytesIO
from itertools import chain
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hybrid_predict

PACKAGE = "hybrid_predict"

UNKNOWN = "?"
"""Stands for any module, where a name is composed when the code runs."""

_DYNAMIC = ("import_module", "__import__")

_NAMED = re.compile(rf"({PACKAGE}\.(\w+))[\w.:]*")
"""A string that may name a module of the package, or something in one."""


def module_name(path: Path) -> str:
    """Return the dotted name of a source file from its path relative to the repository."""
    parts = path.with_suffix("").parts
    parts = (PACKAGE, *parts) if parts[0] == "integrations" else parts
    return ".".join(parts)


def imports(tree: ast.AST, module: str) -> Iterator[str]:
    """Yield the full name of everything that a file imports, in every form of import.

    Imports inside functions and under ``TYPE_CHECKING`` count. So does every string that names a
    module of the package, as a variable can pass it on to a call that imports it. Calls of
    ``import_module`` and ``__import__`` with a composed name can import anything.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            name = "." * node.level + (node.module or "")
            parent = module.rpartition(".")[0]
            base = resolve_name(name, parent) if node.level else name
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(_DYNAMIC):
            yield from _dynamic(node, module)
        elif isinstance(node, ast.Constant) and _names_module(str(node.value)):
            yield str(node.value).partition(":")[0]


def _names_module(text: str) -> bool:
    found = _NAMED.fullmatch(text)
    return bool(found and (found[2] in hybrid_predict.__all__ or find_spec(found[1])))


def _dynamic(node: ast.Call, module: str) -> Iterator[str]:
    """Yield what ``import_module`` or ``__import__`` imports, unless a variable names it."""
    given = {k.arg: k.value for k in node.keywords}
    name = node.args[0] if node.args else given.get("name")
    package = node.args[1] if len(node.args) > 1 else given.get("package")
    text, anchor = _literal(name), _literal(package)
    if text and (anchor or not text.startswith(".")):
        yield resolve_name(text, anchor)
    elif name is not None and ast.unparse(name).startswith("f'{__name__}."):
        yield f"{module.removesuffix('.__init__')}.{UNKNOWN}"
    elif package is not None or not isinstance(name, (ast.Name, ast.Subscript)):
        yield f"{PACKAGE}.{UNKNOWN}"


def _literal(node: ast.expr | None) -> str | None:
    """Return the text of a string in the source."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def folders(names: Iterable[str]) -> set[str]:
    """Return the folders of the package that imported names belong to.

    A public name belongs to the folder that defines it; the bare package counts as ``PACKAGE``.
    """
    names_of_folders = set()
    for name in names:
        first, _, rest = name.partition(".")
        if first == PACKAGE:
            public = getattr(hybrid_predict, rest) if rest in hybrid_predict.__all__ else None
            place = getattr(public, "__module__", name).split(".")
            names_of_folders.add(place[1] if len(place) > 1 else PACKAGE)
    return names_of_folders


def sources(root: Path) -> dict[str, list[Path]]:
    """Return the source files of the package by folder; files outside folders are ``(root)``."""
    by_folder: dict[str, list[Path]] = {}
    for top in (PACKAGE, "integrations"):
        for path in sorted((root / top).rglob("*.py")):
            inside = path.relative_to(root / top).parts
            folder = top if top != PACKAGE else inside[0] if len(inside) > 1 else "(root)"
            by_folder.setdefault(folder, []).append(path)
    return by_folder


def count(paths: Iterable[Path]) -> dict[str, int]:
    """Count files, lines, classes and functions, with the longest and the typical ones."""
    texts = [path.read_text("utf-8") for path in paths]
    nodes = [node for text in texts for node in ast.walk(ast.parse(text))]
    functions = [n for n in nodes if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    lengths = sorted((n.end_lineno or n.lineno) - n.lineno + 1 for n in functions) or [0]
    files = sorted(len(text.splitlines()) for text in texts) or [0]
    return {
        "files": len(texts),
        "lines": sum(files),
        "median_file": files[len(files) // 2],
        "longest_file": files[-1],
        "classes": sum(isinstance(n, ast.ClassDef) for n in nodes),
        "functions": len(functions),
        "longest_function": lengths[-1],
        "p90_function": lengths[ceil(0.9 * len(lengths)) - 1],
        "longest_line": max((len(x) for text in texts for x in text.splitlines()), default=0),
    }


def parts(root: Path) -> dict[str, list[Path]]:
    """Return the source files of the product, of its audit, of the benchmarks and of the tests."""
    product = [path for paths in sources(root).values() for path in paths]
    return {
        "product": product,
        "audit": [path for path in product if "audit" in str(path.relative_to(root))],
        "benchmarks": sorted((root / "benchmarks").rglob("*.py")),
        "tests": sorted((root / "tests").rglob("*.py")),
    }


ENTRIES = ("hybrid_predict", "hybrid_predict.engine", "hybrid_predict.integrations.lightning",
           "hybrid_predict.cli", "hybrid_predict.audit")  # fmt: skip
"""Modules whose import is measured; the third is what ``HybridPredict`` loads."""

_CLOSURE = """
import json, sys, {0}
modules = [m for n, m in sys.modules.items() if n.split('.')[0] == 'hybrid_predict' and m.__file__]
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


def closures(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the number and the lines of the package's modules that each of ENTRIES loads."""
    loaded = {name: _run(folder, "-c", _CLOSURE.format(name)) for name in ENTRIES}
    for name, found in loaded.items():
        if not (file := found.pop("file")).startswith(str(folder)):
            raise RuntimeError(f"{name} was imported from {file}, not from the checkout")
    return loaded


def steps(folders: Sequence[Path], rounds: int = 3) -> list[dict[str, Any]]:
    """Return what :mod:`benchmarks.traced_step` finds about the package in each folder.

    The folders take turns. Of each time the shortest is returned, because other work on the machine
    can only make times longer.
    """
    runs = [[_run(f, "-m", "benchmarks.traced_step") for f in folders] for _ in range(rounds)]
    results = []
    for column in zip(*runs, strict=True):
        times = [run["microseconds"] for run in column]
        least = {name: min(each[name] for each in times) for name in times[0]}
        results.append({**column[0], "microseconds": least})
    return results


def _run(folder: Path, *arguments: str) -> dict[str, Any]:
    """Run Python with the package in a folder, and return what it prints as JSON."""
    places = os.pathsep.join((str(folder), str(Path(__file__).parents[1])))
    environment = {**os.environ, "PYTHONPATH": places, "OMP_NUM_THREADS": "1"}
    printed = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True,
    ).stdout  # fmt: skip
    results: dict[str, Any] = json.loads(printed)
    return results


def measure(root: Path) -> dict[str, Any]:
    """Measure a checkout: sizes by folder and by part, and imports between folders."""
    by_folder = sources(root)
    arrows = {}
    for folder, paths in by_folder.items():
        modules = {module_name(p.relative_to(root)): ast.parse(p.read_text("utf-8")) for p in paths}
        names = (imports(tree, module) for module, tree in modules.items())
        arrows[folder] = sorted(folders(chain.from_iterable(names)) - {folder})
    return {
        "folders": {folder: count(paths) for folder, paths in by_folder.items()},
        "parts": {part: count(paths) for part, paths in parts(root).items()},
        "total": count(chain.from_iterable(by_folder.values())),
        "imports": arrows,
        "arrows": sum(map(len, arrows.values())),
    }


@contextmanager
def checkout(root: Path, commit: str) -> Iterator[Path]:
    """Yield a temporary folder with a commit of the repository at ``root``."""
    command = ["git", "archive", commit]
    archive = subprocess.run(command, cwd=root, capture_output=True, check=True).stdout
    with TemporaryDirectory() as folder, tarfile.open(fileobj=BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
        yield Path(folder)


def compare(before: Path, after: Path) -> dict[str, Any]:
    """Measure two checkouts, with what runs when a step is taken."""
    with package(before) as old, package(after) as new:
        first, second = steps([old, new])
        return {
            "before": {**measure(before), "closures": closures(old), **first},
            "after": {**measure(after), "closures": closures(new), **second},
        }


def table(results: dict[str, Any]) -> str:
    """Return the numbers before and after as a Markdown table."""
    before, after = (dict(_figures(results[state])) for state in ("before", "after"))
    lines = ["| | before | after |", "| --- | ---: | ---: |"]
    lines += [f"| {name} | {before[name]:,} | {after[name]:,} |" for name in after]
    return "\n".join(lines)


def _figures(state: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the figures of the table, by name."""
    for part, counted in state["parts"].items():
        yield from ((f"{what}, {part}", counted[what]) for what in ("files", "lines", "classes"))
    total, traced = state["total"], state["step"]
    yield "longest file, lines in the package", total["longest_file"]
    yield "longest function, lines in the package", total["longest_function"]
    yield "longest line, characters in the package", total["longest_line"]
    yield "folders", len(state["folders"])
    yield "imports between folders", state["arrows"]
    for name, loaded in state["closures"].items():
        yield f"modules of the package that `import {name}` loads", loaded["modules"]
        yield f"their lines (`{name}`)", loaded["lines"]
    for what in ("files", "classes", "functions"):
        yield f"{what} in a traced step", len(traced[what])
    yield "changes of file in it", traced["changes_of_file"]
    yield "holders of state that it changes", len(traced["holders"])
    for way, what in (("corrected", "corrected"), ("predicted", "corrected and predicted")):
        yield (
            f"microseconds that the plug-in adds to a full step, {what}",
            (state["microseconds"][way]),
        )


def main() -> None:
    """Measure a commit and the working tree, write both, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", default="main", metavar="COMMIT", help="state before (main)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="results file to write")
    options = parser.parse_args()
    root = Path(__file__).parents[1]
    full = ["git", "rev-parse", options.against]
    commit = subprocess.run(full, cwd=root, capture_output=True, text=True, check=True).stdout
    with checkout(root, options.against) as before:
        results = {"commit_before": commit.strip(), **compare(before, root)}
    if options.output is not None:
        options.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(table(results))


if __name__ == "__main__":
    main()
