"""What a file of the package imports, in every form of import."""

import ast
import re
from collections.abc import Iterable, Iterator
from importlib.util import find_spec, resolve_name
from pathlib import Path

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
