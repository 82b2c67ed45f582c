"""Every example runs, and shows what it says."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from jsonargparse import ArgumentParser
from lightning.pytorch import Callback
from torch import distributed as dist

EXAMPLES = Path(__file__).parents[2] / "examples"
FEATURES = EXAMPLES / "by_feature"
DOCS = EXAMPLES.parent / "docs"

SHARED = {"waves"}
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


def predicts(callback: Any) -> bool:
    return saved(callback.ledger) and callback.ledger.predicted_steps > 0


def speedups(callbacks: list[Any]) -> bool:
    predicted = [callback.ledger.predicted_steps for callback in callbacks]
    ordered = predicted[0] == 0 < predicted[3] < predicted[1] < predicted[2]
    return ordered and all(saved(callback.ledger) for callback in callbacks)


def shadow(callback: Any, same: bool) -> bool:
    ledger = callback.ledger
    return same and ledger.predicted_steps == 0 and ledger.skill is not None


def manual(callback: Any, trainer: Any) -> bool:
    rate = trainer.optimizers[0].param_groups[0]["lr"]
    return predicts(callback) and trainer.global_step == 300 and abs(rate) < 1e-12


def kinds(callbacks: list[Any]) -> bool:
    corrected = [bool(callback.ledger.corrected_steps) for callback in callbacks]
    predicted = set(callbacks[2].ledger.skills)
    return corrected == [True, True, False] and predicted == {"hidden", "head"}


def plain_loop(one: Any, resumed: Any) -> bool:
    weights = [[p.tolist() for p in run.model.parameters()] for run in (one, resumed)]
    steps = [run.engine.ledger.full_steps for run in (one, resumed)]
    return weights[0] == weights[1] and steps[0] == steps[1] < 240


CHECKS: dict[str, Callable[[Any], bool]] = {
    "speedup": speedups,
    "auto": predicts,
    "shadow": lambda end: shadow(*end),
    "manual_optimization": lambda end: manual(*end),
    "accumulation": lambda end: predicts(end[0]) and end[1] == 4 * end[0].ledger.full_steps,
    "checkpoint": lambda end: end[1] and saved(end[0].ledger, 288),
    "kinds": kinds,
    "mlflow_logger": lambda run: (
        (run.data.metrics["hybrid_predict/steps"], run.info.status) == (300, "FINISHED")
    ),
    "own_update": predicts,
    "plain_loop": lambda end: plain_loop(*end),
}
"""What has to be true of what ``main`` returns."""

ELSEWHERE = {"ddp", "elastic", "fsdp2", "several_devices", "lightning_cli"}
"""Run in processes of their own, below."""

ADVICE = (
    "ignore:The number of training batches",
    "ignore:Be aware that when using `ckpt_path`",
    "ignore:You're resuming from a checkpoint that ended before",
)


QUICK = ("plain_loop", "own_update")
"""Examples of features that run with every change; the others are slow."""


@pytest.mark.filterwarnings(*ADVICE)
@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=() if x in QUICK else pytest.mark.slow) for x in CHECKS]
)
def test_an_example_of_a_feature_shows_it(name: str) -> None:
    assert CHECKS[name](example(FEATURES / f"{name}.py").main())


def run(*command: str, cwd: Path) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


NEEDS_GLOO = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="no gloo"
)


@pytest.mark.slow  # tests/ranks train in two processes too
@pytest.mark.distributed
@NEEDS_GLOO
@pytest.mark.parametrize(
    ("name", "told"),
    [("ddp", "both processes have the same weights: True"), ("fsdp2", "sharded over 2 processes")],
)
def test_a_trainer_of_two_processes_prints_once(name: str, told: str, tmp_path: Path) -> None:
    printed = run(str(FEATURES / f"{name}.py"), cwd=tmp_path)
    assert printed.count(told) == 1
    assert printed.count("HybridPredict corrects ") == 1


@pytest.mark.slow
@pytest.mark.distributed
@NEEDS_GLOO
@pytest.mark.parametrize(
    ("setup", "processes"), [("ddp", 2), ("fsdp1", 2), ("fsdp2", 2), ("hsdp", 4), ("tp", 2)]
)
def test_a_loop_of_several_processes_predicts(setup: str, processes: int, tmp_path: Path) -> None:
    launcher = ("-m", "torch.distributed.run", f"--nproc-per-node={processes}")
    printed = run(
        *launcher, str(FEATURES / "several_devices.py"), "--setup", setup, cwd=tmp_path
    )  # fmt: skip
    found = rf"{setup} on {processes} processes: .*\d+ full \+ [1-9]\d* predicted"
    assert re.search(found, printed)
    assert "the same steps on all processes: True" in printed


def test_lightning_cli_takes_updates_and_predictors_by_their_classes() -> None:
    parser = ArgumentParser()
    parser.add_argument("callbacks", type=list[Callback])
    content = yaml.safe_load((FEATURES / "lightning_cli.yaml").read_text())
    given = parser.parse_object({"callbacks": content["trainer"]["callbacks"]})
    (callback,) = parser.instantiate(given).callbacks
    assert callback.config.updates["hidden"].share == 0.8
    assert callback.config.predictors["hidden"].decay == 0.9


@pytest.mark.slow
def test_a_file_for_lightning_cli_makes_nested_objects(tmp_path: Path) -> None:
    file = FEATURES / "lightning_cli.yaml"
    printed = run(str(FEATURES / "lightning_cli.py"), "fit", "--config", str(file), cwd=tmp_path)
    assert re.search(r"HybridPredict: .*\d+ full \+ [1-9]\d* predicted = 300 steps", printed)
    (written,) = tmp_path.rglob("config.yaml")
    assert "class_path: hybrid_predict.SpectralUpdate" in written.read_text()
    (log,) = tmp_path.rglob("hybrid_predict.jsonl")
    start = log.read_text().splitlines()[0]
    assert '"class": "SpectralUpdate", "share": 0.8' in start
    assert '"class": "FittedPredictor", "decay": 0.9' in start


@pytest.mark.parametrize("steps", [6, pytest.param(300, marks=pytest.mark.slow)])
def test_the_first_example_compares_two_runs(
    steps: int, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = example(EXAMPLES / "base.py").main(steps).ledger
    ends = r"{} +{} full steps, \d+ s, validation loss ([\d.]+)\n"
    lines = ends.format("plain:", steps) + ends.format("HybridPredict:", ledger.full_steps)
    losses = re.search(lines, capsys.readouterr().out)
    assert losses is not None and saved(ledger, steps)
    assert steps < 300 or float(losses[2]) < float(losses[1])
    assert (ledger.full_steps < steps) is (steps == 300)


def test_the_tutorial_and_the_notebook_train_the_first_example() -> None:
    text = (EXAMPLES / "base.py").read_text()
    code = text[text.index("import sysconfig") :]
    assert f"```python\n{code}```" in (DOCS / "tutorial.md").read_text()
    cells = json.loads((DOCS / "notebook.ipynb").read_text())["cells"]
    classes = code[code.index("CONTEXT =") : code.index("def build")].strip()
    assert classes in ["".join(cell["source"]) for cell in cells]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    ("name", "needed"),
    [pytest.param("jax_loop", "optax", marks=pytest.mark.slow), ("sklearn_mlp", "sklearn")],
)
def test_a_loop_of_another_library_takes_fewer_full_steps(name: str, needed: str) -> None:
    pytest.importorskip(needed)
    full_steps, steps, right = example(EXAMPLES / f"{name}.py").main()
    assert full_steps < steps == 300 and right > 0.8


def test_every_example_is_run_and_says_what_to_look_at() -> None:
    files = {path.stem: path for path in FEATURES.glob("*.py")}
    assert files.keys() - SHARED == CHECKS.keys() | ELSEWHERE
    for path in [EXAMPLES / "base.py", *(p for n, p in files.items() if n not in SHARED)]:
        docstring = example(path).__doc__ or ""
        assert "\n\nLook at: " in docstring and "\n\nRun " in docstring


@pytest.mark.slow
@pytest.mark.distributed
@NEEDS_GLOO
def test_a_job_goes_on_after_a_lost_process(tmp_path: Path) -> None:
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    restarts = ("--max-restarts=1", "--monitor-interval=0.1")
    printed = run(
        *launcher, *restarts, str(FEATURES / "elastic.py"), str(tmp_path), "50", cwd=tmp_path
    )
    assert "attempt 0 begins after 0 full steps" in printed
    assert "attempt 1 begins after 40 full steps" in printed
    assert "100 full + 50 predicted = 150 steps" in printed
