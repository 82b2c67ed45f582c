"""The package as a whole: imports, documentation, size."""

import ast
import doctest
import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import hybrid_predict

ROOT = Path(__file__).parents[1]
SOURCES = sorted(
    p for folder in ("hybrid_predict", "integrations") for p in (ROOT / folder).rglob("*.py")
)
TESTS = sorted((ROOT / "tests").rglob("*.py"))
OPTIONAL = ("hybrid_predict.integrations", "hybrid_predict.cli")


def core_modules():
    walked = pkgutil.walk_packages(hybrid_predict.__path__, "hybrid_predict.", lambda name: None)
    names = [module.name for module in walked]
    return ["hybrid_predict", *(n for n in names if not n.startswith(OPTIONAL))]


def relative(path):
    return str(path.relative_to(ROOT))


def test_importing_the_core_imports_no_extra():
    extras = {"lightning", "pytorch_lightning", "mlflow", "jax", "matplotlib", "transformers"}
    modules = ", ".join(core_modules())
    code = f"import sys, {modules}; print(*sorted({extras!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")


@pytest.mark.parametrize("name", hybrid_predict.__all__)
def test_public_name_exists_and_is_documented(name):
    value = getattr(hybrid_predict, name)
    if inspect.isclass(value):
        assert value.__doc__.strip()


def test_lightning_callback_is_found_lazily():
    pytest.importorskip("lightning")
    assert hybrid_predict.HybridPredict.__name__ == "HybridPredict"


def test_modules_of_public_names_are_found_before_they_are_imported():
    script = (
        "import hybrid_predict as h, sys\n"
        "assert 'torch' not in sys.modules\n"
        "h.errors.ConfigError, h.integrations, h.config.HybridConfig\n"
        "assert {'HybridPredict', 'HybridEngine'} <= set(dir(h))"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)


def test_unknown_attribute_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'HybridForecast'"):
        _ = hybrid_predict.HybridForecast


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


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_everything_public_is_documented(path):
    assert undocumented(ast.parse(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("path", SOURCES + TESTS, ids=relative)
def test_files_and_functions_stay_short(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 400
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, functions)]
    lengths = {node.name: node.end_lineno - node.lineno + 1 for node in nodes}
    assert {name: length for name, length in lengths.items() if length > 50} == {}


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
    ("errors", "config"),
    ("tensors",),
    ("accounts",),
    ("model",),
    ("updates",),
    ("forecast",),
    ("verify",),
    ("engine", "functional"),
    ("runs",),
    ("audit", "report", "demo"),
    ("integrations",),
    ("cli",),
)
"""From the bottom up; a layer imports only itself and what stands below it."""

HEIGHT = {name: height for height, names in enumerate(LAYERS) for name in names}

TRAINS_WITH_THE_CALLBACK = ("audit", "demo")
"""What trains a user's Lightning model imports the callback, which imports nothing of it."""


def imported(tree):
    """The folders of the package that a file imports, in whatever form."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            module = node.module or ""
            names = [f"{module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func):
            names = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
        else:
            continue
        yield from (n.split(".")[1] for n in names if str(n).startswith("hybrid_predict."))


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_a_layer_imports_nothing_from_above(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    place = "integrations" if parts[0] == "integrations" else parts[1]
    if place in ("__init__", "testing"):
        return
    found = set(imported(ast.parse(path.read_text(encoding="utf-8")))) & HEIGHT.keys()
    if place in TRAINS_WITH_THE_CALLBACK:
        found.discard("integrations")
    assert {name for name in found if HEIGHT[name] > HEIGHT[place]} == set()


def test_every_folder_has_a_layer():
    folders = {p.name for p in (ROOT / "hybrid_predict").iterdir() if (p / "__init__.py").exists()}
    assert folders - {"testing", "integrations"} <= HEIGHT.keys()
    files = {p.stem for p in (ROOT / "hybrid_predict").glob("*.py")}
    assert files == {"__init__", "config", "errors"}
