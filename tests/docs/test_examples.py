"""Every example runs, and shows what it says."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from torch import distributed as dist

EXAMPLES = Path(__file__).parents[2] / "examples"
FEATURES = EXAMPLES / "by_feature"

SHARED = {"digits", "waves"}
"""What others train, and what no example alone is about."""


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in (EXAMPLES, FEATURES):
        monkeypatch.syspath_prepend(str(folder))


def example(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def saved(ledger: Any, steps: int = 300) -> bool:
    return ledger.steps == steps and ledger.full_steps + ledger.predicted_steps == steps


def speedups(callbacks: list[Any]) -> None:
    predicted = [callback.ledger.predicted_steps for callback in callbacks]
    assert all(saved(callback.ledger) for callback in callbacks)
    assert predicted[0] == 0 < predicted[3] < predicted[1] < predicted[2]


def one(callback: Any) -> None:
    assert saved(callback.ledger) and callback.ledger.predicted_steps > 0


def shadow(found: tuple[Any, bool]) -> None:
    callback, same = found
    assert same and callback.ledger.predicted_steps == 0 and callback.ledger.skill is not None


def manual(found: tuple[Any, Any]) -> None:
    one(found[0])
    assert found[1].global_step == 300
    assert found[1].optimizers[0].param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-12)


def accumulation(found: tuple[Any, int]) -> None:
    one(found[0])
    assert found[1] == 4 * found[0].ledger.full_steps


def checkpoint(found: tuple[Any, bool]) -> None:
    callback, same = found
    assert same and saved(callback.ledger, 288)


def kinds(callbacks: list[Any]) -> None:
    assert all(saved(callback.ledger) for callback in callbacks)
    assert [bool(c.ledger.corrected_steps) for c in callbacks] == [True, True, False]
    assert set(callbacks[2].ledger.skills) == {"hidden", "head"}


def mlflow(run: Any) -> None:
    assert run.data.tags["hybrid_predict.steps"] == "300"
    assert run.info.status == "FINISHED"


def plain_loop(found: tuple[Any, Any]) -> None:
    first, resumed = (run.engine.ledger for run in found)
    assert first.full_steps == resumed.full_steps < 240
    weights = [[p.tolist() for p in run.model.parameters()] for run in found]
    assert weights[0] == weights[1]


CHECKS: dict[str, Callable[[Any], None]] = {
    "speedup": speedups,
    "auto": one,
    "shadow": shadow,
    "manual_optimization": manual,
    "accumulation": accumulation,
    "checkpoint": checkpoint,
    "kinds": kinds,
    "mlflow_logger": mlflow,
    "own_predictor": one,
    "own_update": one,
    "plain_loop": plain_loop,
}
"""What has to be true of what ``main`` returns."""

ELSEWHERE = {"ddp", "lightning_cli"}
"""Run in processes of their own, below."""

ADVICE = (
    "ignore:The number of training batches",
    "ignore:Be aware that when using `ckpt_path`",
    "ignore:You're resuming from a checkpoint that ended before",
)


@pytest.mark.filterwarnings(*ADVICE)
@pytest.mark.parametrize("name", CHECKS)
def test_an_example_of_a_feature_shows_it(name: str) -> None:
    CHECKS[name](example(FEATURES / f"{name}.py").main())


def run(*command: str, cwd: Path) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_what_needs_more_than_its_extras_says_so() -> None:
    texts = {p.name: p.read_text() for p in EXAMPLES.iterdir() if p.suffix in (".py", ".ipynb")}
    needy = re.compile(r"from (sklearn|digits)\b")
    found = {name for name, text in texts.items() if needy.search(text)}
    assert found >= {"base.py", "digits.py", "tutorial.ipynb"}
    silent = {name for name in found if "scikit-learn" not in texts[name].partition("import ")[0]}
    assert silent == set()
    for page in (EXAMPLES / "audit.yaml", EXAMPLES.parent / "docs" / "tutorial.md"):
        assert "pip install scikit-learn" in page.read_text()


@pytest.mark.distributed
@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="no gloo")
def test_two_processes_end_with_the_same_weights(tmp_path: Path) -> None:
    said = run(str(FEATURES / "ddp.py"), cwd=tmp_path)
    assert said.count("both processes have the same weights: True") == 1
    assert said.count("HybridPredict corrects and predicts") == 1


def test_a_file_for_lightning_cli_makes_nested_objects(tmp_path: Path) -> None:
    file = FEATURES / "lightning_cli.yaml"
    said = run(str(FEATURES / "lightning_cli.py"), "fit", "--config", str(file), cwd=tmp_path)
    assert re.search(r"HybridPredict: \d+ full \+ [1-9]\d* predicted = 300 steps", said)
    (written,) = tmp_path.rglob("config.yaml")
    assert "class_path: hybrid_predict.SpectralUpdate" in written.read_text()
    (log,) = tmp_path.rglob("hybrid_predict.jsonl")
    start = log.read_text().splitlines()[0]
    assert '"class": "SpectralUpdate", "share": 0.8' in start
    assert '"class": "FittedPredictor", "decays": [0.8, 0.95]' in start


@pytest.mark.filterwarnings(*ADVICE)
def test_the_first_example_ends_early() -> None:
    trainer = example(EXAMPLES / "base.py").main(max_epochs=3)
    assert trainer.global_step == trainer.callbacks[0].ledger.steps == 66


def test_a_jax_loop_takes_fewer_full_steps() -> None:
    pytest.importorskip("optax")
    full_steps, steps, right = example(EXAMPLES / "jax_loop.py").main()
    assert full_steps < steps == 300 and right > 0.8


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_scikit_learn_s_network_takes_fewer_full_steps() -> None:
    full_steps, steps, right = example(EXAMPLES / "sklearn_mlp.py").main()
    assert full_steps < steps == 300 and right > 0.8


def test_every_example_is_run_and_says_what_to_look_at() -> None:
    files = {path.stem: path for path in FEATURES.glob("*.py")}
    assert files.keys() - SHARED == CHECKS.keys() | ELSEWHERE
    for path in [EXAMPLES / "base.py", *(p for n, p in files.items() if n not in SHARED)]:
        docstring = example(path).__doc__ or ""
        assert "\n\nLook at: " in docstring and "\n\nRun " in docstring
