"""How large is the package? Counts files, lines, classes, functions and imports, by folder.

Run with: python -m benchmarks.house --against main --output docs/results/house.json
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import tarfile
from collections.abc import Iterable, Iterator
from importlib.util import resolve_name
from io import BytesIO
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hybrid_predict

PACKAGE = "hybrid_predict"

UNKNOWN = "?"
"""Stands for the module of an import whose name is computed when the code runs."""

_DYNAMIC = ("import_module", "__import__")


def module_name(path: Path) -> str:
    """Dotted name of a source file, from its path relative to the root of the repository."""
    parts = path.with_suffix("").parts
    parts = (PACKAGE, *parts) if parts[0] == "integrations" else parts
    return ".".join(parts)


def imports(tree: ast.AST, module: str) -> Iterator[str]:
    """Yield the full name of everything that a file imports, in every form of import.

    Imports inside functions and under ``TYPE_CHECKING`` count, and so do ``import_module`` and
    ``__import__``, which yield ``UNKNOWN`` if the name is not a literal.

    Args:
        tree: The parsed file.
        module: Dotted name of the file; ``__init__`` is its last part for a package.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            name = "." * node.level + (node.module or "")
            parent = module.rpartition(".")[0]
            base = resolve_name(name, parent) if node.level else name
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and _called(node).endswith(_DYNAMIC):
            yield _dynamic(node)


def _called(node: ast.Call) -> str:
    return ast.unparse(node.func)


def _dynamic(node: ast.Call) -> str:
    """Name that a call of ``import_module`` or ``__import__`` imports, if it is a literal."""
    given = {k.arg: k.value for k in node.keywords}
    texts = [
        value.value if isinstance(value, ast.Constant) else None
        for value in (
            node.args[0] if node.args else given.get("name"),
            node.args[1] if len(node.args) > 1 else given.get("package"),
        )
    ]
    name, package = texts
    if not isinstance(name, str) or (name.startswith(".") and not isinstance(package, str)):
        return UNKNOWN
    return resolve_name(name, package if isinstance(package, str) else None)


def folders(names: Iterable[str]) -> set[str]:
    """Folders of the package among imported names.

    Public names count as the folder that defines them, and the bare package as ``PACKAGE``.
    """
    found = set()
    for name in names:
        first, _, rest = name.partition(".")
        if first == PACKAGE:
            place = hybrid_predict._HOMES.get(rest, name).split(".")
            found.add(place[1] if len(place) > 1 else PACKAGE)
    return found


def sources(root: Path) -> dict[str, list[Path]]:
    """Source files of the package by folder; files beside the folders are in ``(root)``."""
    found: dict[str, list[Path]] = {}
    for top in (PACKAGE, "integrations"):
        for path in sorted((root / top).rglob("*.py")):
            inside = path.relative_to(root / top).parts
            folder = top if top != PACKAGE else inside[0] if len(inside) > 1 else "(root)"
            found.setdefault(folder, []).append(path)
    return found


def count(paths: Iterable[Path]) -> dict[str, int]:
    """Size of some files: files, lines, classes, functions, and their longest and typical sizes."""
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


def measure(root: Path) -> dict[str, Any]:
    """Size of every folder of a checkout, of all together, and the arrows between folders."""
    found = sources(root)
    arrows = {}
    for folder, paths in found.items():
        names = [
            name
            for path in paths
            for name in imports(
                ast.parse(path.read_text("utf-8")), module_name(path.relative_to(root))
            )
        ]
        arrows[folder] = sorted(folders(names) - {folder})
    return {
        "folders": {folder: count(paths) for folder, paths in found.items()},
        "total": count(path for paths in found.values() for path in paths),
        "imports": arrows,
        "arrows": sum(map(len, arrows.values())),
    }


def measure_commit(root: Path, commit: str) -> dict[str, Any]:
    """Size of the package in a commit of the repository at ``root``."""
    archive = subprocess.run(
        ["git", "archive", commit, PACKAGE, "integrations"],
        cwd=root,
        capture_output=True,
        check=True,
    ).stdout
    with TemporaryDirectory() as folder, tarfile.open(fileobj=BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
        return measure(Path(folder))


def table(before: dict[str, Any], after: dict[str, Any]) -> str:
    """The sizes of all folders before and after, as a Markdown table."""
    names = list(after["total"])
    lines = [f"| folder | {' | '.join(n.replace('_', ' ') for n in names)} |"]
    lines.append("| --- |" + " ---: |" * len(names))
    for folder in [*sorted(before["folders"].keys() | after["folders"].keys()), "all"]:
        pair = [x["total"] if folder == "all" else x["folders"].get(folder, {}) for x in
                (before, after)]  # fmt: skip
        cells = [f"{pair[0].get(n, 0)} → {pair[1].get(n, 0)}" for n in names]
        lines.append(f"| {folder} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"Arrows: {before['arrows']} → {after['arrows']}"])


def main() -> None:
    """Measure the working tree and a commit, write both, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", default="main", metavar="COMMIT", help="The state before.")
    parser.add_argument("--output", type=Path, metavar="FILE", help="JSON file to write.")
    options = parser.parse_args()
    root = Path(__file__).parents[1]
    full = ["git", "rev-parse", options.against]
    commit = subprocess.run(full, cwd=root, capture_output=True, text=True, check=True).stdout
    before, after = measure_commit(root, options.against), measure(root)
    if options.output is not None:
        results = {"commit_before": commit.strip(), "before": before, "after": after}
        options.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(table(before, after))


if __name__ == "__main__":
    main()
