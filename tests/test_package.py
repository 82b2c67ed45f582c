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
import imported

ROOT = Path(__file__).parents[1]
SOURCES = sorted(
    p for folder in ("hybrid_predict", "integrations") for p in (ROOT / folder).rglob("*.py")
)
FILES = [*SOURCES, *sorted((ROOT / "tests").rglob("*.py"))]
TEXTS = {path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in FILES}
TREES = {path.relative_to(ROOT): ast.parse(TEXTS[path.relative_to(ROOT)]) for path in SOURCES}
OPTIONAL = tuple(f"hybrid_predict.{name}" for name in ("integrations", "audit", "demo", "cli"))


def core_modules():
    walked = pkgutil.walk_packages(hybrid_predict.__path__, "hybrid_predict.", lambda name: None)
    names = [module.name for module in walked]
    return ["hybrid_predict", *(n for n in names if not n.startswith(OPTIONAL))]


def test_importing_the_core_imports_no_extra():
    extras = {"lightning", "pytorch_lightning", "mlflow", "jax", "matplotlib", "transformers"}
    modules = ", ".join(core_modules())
    code = f"import sys, {modules}; print(*sorted({extras!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")


def test_programs_of_earlier_versions_find_their_names():
    for name, module in hybrid_predict._FORMER.items():
        home = importlib.import_module(f"hybrid_predict.{module}")
        assert getattr(hybrid_predict, name) is getattr(home, name)
        assert name not in {*hybrid_predict.__all__, *dir(hybrid_predict)}


@pytest.mark.parametrize("name", hybrid_predict.__all__)
def test_public_name_exists_and_is_documented(name):
    value = getattr(hybrid_predict, name)
    if inspect.isclass(value):
        assert value.__doc__.strip()


def test_lightning_callback_is_found_lazily():
    pytest.importorskip("lightning")
    assert hybrid_predict.HybridPredict.__name__ == "HybridPredict"


def test_a_run_without_predicted_steps_imports_nothing_about_forecasts():
    code = (
        "import sys, torch\n"
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
        "print(*[name for name in sys.modules if name.startswith('hybrid_predict.forecast')])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")


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


def test_everything_public_is_documented():
    assert [(path, names) for path, tree in TREES.items() if (names := undocumented(tree))] == []


def test_functions_stay_short():
    nodes = [(path, node) for path, text in TEXTS.items() for node in ast.walk(ast.parse(text))]
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


MAY_BE_EXTENDED = {"HybridPredict", "HybridPredictCallback"}
"""Classes that users or benchmarks subclass."""

OTHERS = ("audit", "cli", "demo", "runs")
"""Folders whose classes are not checked."""


def classes():
    return [
        (path, node)
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and path.parts[1] not in OTHERS
    ]


def names(nodes):
    return {ast.unparse(node).split("[")[0].split(".")[-1] for node in nodes}


def test_a_class_is_abstract_or_a_base_or_final():
    bases = set().union(*(names(node.bases) for _, node in classes()))
    wrong = []
    for _, node in classes():
        inside = names(d for child in node.body for d in getattr(child, "decorator_list", ()))
        abstract = "abstractmethod" in inside or names(node.bases) & {"Enum", "Protocol"}
        is_base = bool(abstract) or node.name in bases | MAY_BE_EXTENDED
        if is_base is ("final" in names(node.decorator_list)):
            wrong.append(node.name)
    assert wrong == []


def test_a_class_with_abstract_methods_is_an_abc():
    for _, node in classes():
        inside = names(d for child in node.body for d in getattr(child, "decorator_list", ()))
        assert "abstractmethod" not in inside or "ABC" in names(node.bases), node.name


LAYERS = (
    ("errors",),
    ("config",),
    ("policy", "saved"),
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
    ("demo",),
    ("cli",),
    (imported.PACKAGE, imported.UNKNOWN),
    ("__init__",),
)
"""Folders and files from the bottom up; one imports only itself and what stands below its layer."""

HEIGHT = {name: height for height, names in enumerate(LAYERS) for name in names}


def imports_from_above(text, module):
    """What a file imports although it does not stand below the file."""
    place = module.split(".")[1]
    others = imported.folders(imported.imports(ast.parse(text), module)) - {"__version__", place}
    return {name for name in others if HEIGHT.get(name, len(LAYERS)) >= HEIGHT[place]}


def test_a_layer_imports_nothing_from_above():
    found = {path: imports_from_above(TEXTS[path], imported.module_name(path)) for path in TREES}
    assert {path: names for path, names in found.items() if names} == {}


VIOLATIONS = {
    "import": "import hybrid_predict.step",
    "import as": "import hybrid_predict.engine as e",
    "import of the package": "import hybrid_predict",
    "from a module": "from hybrid_predict.step import Step",
    "from a folder": "from hybrid_predict.engine import HybridEngine",
    "from the package": "from hybrid_predict import engine",
    "a public name": "from hybrid_predict import HybridEngine",
    "everything": "from hybrid_predict import *",
    "relative": "from ..engine import HybridEngine",
    "relative module": "from .. import engine",
    "relative public name": "from .. import HybridEngine",
    "import_module": "importlib.import_module('hybrid_predict.engine')",
    "import_module by keyword": "import_module(name='hybrid_predict.step')",
    "relative import_module": "import_module('..engine', 'hybrid_predict.model')",
    "relative import_module by keyword": "import_module('.engine', package='hybrid_predict')",
    "import_module of a variable": "NAME = 'hybrid_predict.engine'\nimport_module(NAME)",
    "import_module of an item": "import_module({'e': 'hybrid_predict.engine'}[name])",
    "import_module of a composed name": "import_module('hybrid_predict.' + name)",
    "import_module of a formatted name": "import_module(f'hybrid_predict.{name}')",
    "import_module of a joined name": "import_module('.'.join(names))",
    "import_module in a variable package": "import_module('.engine', package)",
    "import_module of a variable in a package": "import_module(name, 'hybrid_predict')",
    "resolve_name": "pkgutil.resolve_name('hybrid_predict.engine:HybridEngine')",
    "the path of a class": "BASE = 'hybrid_predict.HybridEngine'",
    "__import__": "__import__('hybrid_predict.engine')",
    "TYPE_CHECKING": "if TYPE_CHECKING:\n    from hybrid_predict.engine import HybridEngine",
    "inside a function": "def f():\n    from hybrid_predict.engine import HybridEngine",
    "inside a method": "class A:\n    def f(self):\n        import hybrid_predict.engine",
    "inside try": "try:\n    import hybrid_predict.engine\nexcept ImportError:\n    pass",
    "of integrations": "from hybrid_predict.integrations.lightning import HybridPredict",
}


@pytest.mark.parametrize("text", VIOLATIONS.values(), ids=VIOLATIONS)
def test_every_form_of_import_from_above_is_found(text):
    assert imports_from_above(text, "hybrid_predict.model.kinds") != set()
    assert imports_from_above(text, "hybrid_predict.model.__init__") != set()


ALLOWED = (
    "import hybrid_predict.policy.confidence",
    "from hybrid_predict import HybridConfig",
    "from ..policy import confidence",
    "from .kinds import classify",
    "import_module('hybrid_predict.config')",
    "import_module(f'{__name__}.{name}')",
    "import_module(name)",
    "import torch.distributed as engine",
    "def f():\n    import json",
)


@pytest.mark.parametrize("text", ALLOWED)
def test_imports_from_below_are_allowed(text):
    assert imports_from_above(text, "hybrid_predict.model.kinds") == set()


def test_every_folder_and_every_file_has_a_layer():
    package = ROOT / "hybrid_predict"
    folders = {path.parent.name for path in package.glob("*/__init__.py")}
    files = {path.stem for path in package.glob("*.py")} - {"__init__"}
    others = {"integrations", "__init__", imported.PACKAGE, imported.UNKNOWN}
    assert folders | files | others == HEIGHT.keys()
