"""The package as a whole: imports, documentation, size."""

import ast
import doctest
import importlib
import pkgutil
import subprocess
import sys
from importlib.util import resolve_name
from pathlib import Path

import pytest

import hybrid_predict

ROOT = Path(__file__).parents[1]
SOURCES = sorted(
    p for folder in ("hybrid_predict", "integrations") for p in (ROOT / folder).rglob("*.py")
)
TREES = {path.relative_to(ROOT): ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES}
OPTIONAL = tuple(
    f"hybrid_predict.{name}" for name in ("integrations", "audit", "doctor", "demo", "cli")
)


def core_modules():
    walked = pkgutil.walk_packages(hybrid_predict.__path__, "hybrid_predict.", lambda name: None)
    names = [module.name for module in walked]
    return ["hybrid_predict", *(n for n in names if not n.startswith(OPTIONAL))]


def test_programs_of_earlier_versions_find_their_names():
    for name, module in hybrid_predict._by_name(hybrid_predict._FORMER).items():
        home = importlib.import_module(f"hybrid_predict.{module}")
        assert getattr(hybrid_predict, name) is getattr(home, name)
        assert name not in {*hybrid_predict.__all__, *dir(hybrid_predict)}


UNUSED = (
    r"hybrid_predict\.(forecast|model\.traces|policy\.(predicting|confidence|verdict)"
    r"|ranks\.(?!(processes|shards)$))"
)


def test_a_corrected_run_imports_nothing_about_forecasts_and_parts_and_the_core_no_extra():
    extras = {"lightning", "pytorch_lightning", "mlflow", "jax", "matplotlib", "transformers"}
    code = (
        "import re, sys, torch\n"
        "from hybrid_predict import HybridConfig, HybridEngine\n"
        "net = torch.nn.Linear(4, 4)\n"
        "optimizer = torch.optim.AdamW(net.parameters())\n"
        "engine = HybridEngine(net, optimizer, HybridConfig(speedup=1, total_steps=3))\n"
        "while not engine.done:\n"
        "    engine.before_step()\n"
        "    loss = net(torch.ones(2, 4)).square().mean()\n"
        "    loss.backward()\n"
        "    optimizer.step()\n"
        "    engine.after_step(loss)\n"
        f"print(*[name for name in sys.modules if re.match({UNUSED!r}, name)])\n"
        f"import {', '.join(core_modules())}\n"
        f"print(*sorted({extras!r} & sys.modules.keys()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, [], "")


def test_modules_of_public_names_are_found_before_they_are_imported():
    script = (
        "import hybrid_predict as h, sys\n"
        "assert 'torch' not in sys.modules\n"
        "h.errors.ConfigError, h.integrations, h.config.HybridConfig\n"
        "assert {'HybridPredict', 'HybridEngine'} <= set(dir(h))"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)


def test_the_source_tree_has_the_integrations_inside_the_package():
    """For tools that only read it."""
    link = ROOT / "hybrid_predict" / "integrations"
    assert link.is_symlink() and link.readlink() == Path("..", "integrations")


def undocumented(tree):
    """Public classes and functions without a docstring; nested functions are private."""
    found = [] if ast.get_docstring(tree) else ["module"]
    queue = [(node, "") for node in tree.body]
    for node, prefix in queue:
        named = isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        if not named or node.name.startswith("_"):
            continue
        if not (ast.get_docstring(node) or "").strip():
            found.append(prefix + node.name)
        if isinstance(node, ast.ClassDef):
            queue += [(child, f"{prefix}{node.name}.") for child in node.body]
    return found


def test_everything_public_is_documented():
    assert [(path, names) for path, tree in TREES.items() if (names := undocumented(tree))] == []


def test_functions_stay_short():
    nodes = [(path, node) for path, tree in TREES.items() for node in ast.walk(tree)]
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    lengths = {
        (path, node.name): node.end_lineno - node.lineno + 1 - documented(node)
        for path, node in nodes
        if isinstance(node, functions)
    }
    assert {name: length for name, length in lengths.items() if length > 50} == {}


def documented(node):
    """Lines of the docstring of a function."""
    first = node.body[0]
    text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return first.end_lineno - first.lineno + 1 if text else 0


def examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    modules = [importlib.import_module(name) for name in core_modules()]
    return [test for module in modules for test in finder.find(module) if test.examples]


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_examples_in_docstrings_run(example):
    outcome = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example)
    assert outcome.attempted > 0
    assert outcome.failed == 0


LAYERS = (
    ("errors",),
    ("config",),
    ("policy",),
    ("ledger",),
    ("tensors",),
    ("ranks",),
    ("model",),
    ("optimizers",),
    ("updates", "forecast"),
    ("groups",),
    ("step",),
    ("state",),
    ("engine", "functional"),
    ("trainer",),
    ("runs",),
    ("integrations",),
    ("audit",),
    ("doctor",),
    ("demo",),
    ("cli",),
    ("__init__",),
)
"""Folders and files from the bottom up; one imports only itself and what stands below its layer."""

HEIGHT = {name: height for height, names in enumerate(LAYERS) for name in names}


def imported(path, tree):
    """The folders and files of the package that a file imports, inside functions too.

    A public name belongs to the folder that defines it.
    """
    parts = path.with_suffix("").parts
    parent = ".".join(("hybrid_predict", *parts[parts[0] != "integrations" :])[:-1])
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            full = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            name = "." * node.level + (node.module or "")
            base = resolve_name(name, parent) if node.level else name
            full = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in full:
            first, _, rest = name.partition(".")
            if first == "hybrid_predict":
                public = getattr(hybrid_predict, rest) if rest in hybrid_predict.__all__ else None
                yield getattr(public, "__module__", name).split(".")[1]


def test_a_layer_imports_nothing_from_above():
    for path, tree in TREES.items():
        place = path.with_suffix("").parts[path.parts[0] != "integrations"]
        others = set(imported(path, tree)) - {"__version__", place}
        top = HEIGHT[place]
        assert {name for name in others if HEIGHT.get(name, 99) >= top} == set(), path


def test_every_folder_and_every_file_has_a_layer():
    package = ROOT / "hybrid_predict"
    folders = {path.parent.name for path in package.glob("*/__init__.py")}
    files = {path.stem for path in package.glob("*.py")} - {"__init__"}
    others = {"integrations", "__init__"}
    assert folders | files | others == HEIGHT.keys()
