"""The callback in a Trainer of Hugging Face transformers."""

from __future__ import annotations

import logging
import shutil
import sys
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch
import pytest
import torch
from loops import same_bits, weights
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from witness import judged_losses, verifies

from hybrid_predict import HybridConfig, HybridEngine, HybridPredict
from hybrid_predict.errors import (
    CheckpointError,
    ConfigError,
    MissingExtraError,
    UnsupportedSetupError,
)
from hybrid_predict.runs.log import find_logs, read_log

transformers = pytest.importorskip("transformers")

from huggingface_models import (  # noqa: E402
    OPTIONS,
    SIZE,
    STEPS,
    Ordered,
    data,
    gpt,
    schedule,
    trained,
)
from transformers.training_args import ParallelMode  # noqa: E402

from hybrid_predict.integrations.huggingface import (  # noqa: E402
    FILE,
    HybridPredictCallback,
    refuse,
)

SAVING = {"save_strategy": "steps", "save_steps": 7}


def by_hand(window: int = 1, batches: int = 10, bf16: bool = False) -> tuple[nn.Module, Any]:
    """The plain loop on the same data."""
    model = gpt()
    optimizer, scheduler = schedule(model)
    rows, at = data(batches), 0
    config = HybridConfig(total_steps=STEPS, **OPTIONS)
    with HybridEngine(model, optimizer, config) as engine:
        while not engine.done:
            engine.before_step()
            losses = []
            for _ in range(window):
                inputs = torch.stack([r["input_ids"] for r in rows[at * SIZE :][:SIZE]])
                with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                    losses.append(model(input_ids=inputs, labels=inputs).loss)
                (losses[-1] / window).backward()
                at = (at + 1) % batches
            optimizer.step()
            optimizer.zero_grad()
            for _ in range(engine.after_step(sum(losses) / window).ticks):
                scheduler.step()
    return model, engine


@pytest.mark.parametrize(("window", "bf16"), [(2, False), (1, True)])
def test_trains_as_the_plain_loop_does(tmp_path: Path, window: int, bf16: bool) -> None:
    callback = HybridPredictCallback(**OPTIONS)
    trainer = trained(tmp_path, callback, gradient_accumulation_steps=window, bf16=bf16)
    model, engine = by_hand(window, bf16=bf16)
    ledger = callback.ledger
    assert ledger.predicted_steps == engine.ledger.predicted_steps > 5
    assert trainer.state.global_step == ledger.full_steps == STEPS - ledger.predicted_steps
    assert trainer.lr_scheduler.last_epoch == STEPS
    assert same_bits(trainer.model.state_dict(), model.state_dict())


def test_epochs_set_the_length_and_logs_are_over_full_steps(tmp_path: Path) -> None:
    callback = HybridPredictCallback(**OPTIONS)
    options = {"eval_strategy": "epoch", "gradient_accumulation_steps": 4}
    model = gpt()
    trainer = trained(
        tmp_path, callback, model, num_train_epochs=10, optimizers=schedule(model), **options
    )
    ledger = callback.ledger
    assert (ledger.steps, trainer.state.global_step) == (30, ledger.full_steps)
    assert trainer.lr_scheduler.last_epoch == 30
    logs = trainer.state.log_history
    losses = {row["step"]: row["loss"] for row in logs if "loss" in row}
    assert list(losses) == [*range(5, ledger.full_steps + 1, 5)]
    # Averaged over full steps: over all steps, the last would come to 2.2.
    assert min(losses.values()) > 3.3
    assert logs[-3]["hybrid_predict/predicted_steps"] > 5
    assert sum("eval_loss" in row for row in logs) == -(-ledger.full_steps // 3)


@pytest.mark.parametrize("per_token", [False, True])
def test_the_verdict_sees_the_mean_loss_of_the_window(
    tmp_path: Path, per_token: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Trainer divides losses by the window, or lets the model divide them by its tokens."""
    monkeypatch.setattr(Ordered, "per_token", per_token)
    seen = judged_losses(monkeypatch)
    callback = HybridPredictCallback(**OPTIONS)
    trained(tmp_path, callback, gradient_accumulation_steps=3)  # the last of an epoch is short
    losses = [*seen, *(row.loss for row in callback.history.rows)]
    assert len(seen) > 3 and all(loss and 2 < loss < 4.5 for loss in losses)


def test_adafactor_as_the_trainer_makes_it_is_corrected(tmp_path: Path) -> None:
    callback = HybridPredictCallback(**OPTIONS)
    trained(tmp_path, callback, optim="adafactor", optimizers=(None, None), max_steps=10)
    assert callback.ledger.corrected_steps == callback.ledger.full_steps > 3


def test_a_progress_bar_is_said_to_end_early(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    callback = HybridPredictCallback(**OPTIONS)
    trained(tmp_path, callback, disable_tqdm=False)
    assert callback._reporter is not None
    least = STEPS - callback._reporter.predicted
    assert f"alone, so they may end after {least} of {STEPS}." in capsys.readouterr().err
    assert least <= callback.ledger.full_steps < STEPS


def test_the_trainers_run_in_mlflow_gets_metrics_parameters_tags_and_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    mlflow.create_experiment("runs", artifact_location=str(tmp_path / "files"))
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "runs")
    callback = HybridPredictCallback(**OPTIONS)
    trained(tmp_path, callback, report_to=["mlflow"])
    client = mlflow.MlflowClient()
    (experiment,) = client.search_experiments(filter_string="name = 'runs'")
    (run,) = client.search_runs([experiment.experiment_id])
    ledger = callback.ledger
    assert run.data.metrics["hybrid_predict/predicted_steps"] == ledger.predicted_steps > 5
    assert run.data.params["hybrid_predict/total_steps"] == str(STEPS)
    assert run.data.tags["hybrid_predict.status"] == "finished"
    history = client.get_metric_history(run.info.run_id, "hybrid_predict/steps")
    every = [*range(5, ledger.full_steps + 1, 5)]
    assert [metric.step for metric in history] == sorted({*every, ledger.full_steps})
    log = read_log(find_logs(client.download_artifacts(run.info.run_id, "hybrid_predict"))[0])
    assert log.rows == callback.history.rows


class Reports(transformers.TrainerCallback):
    """Keeps what reporters such as TensorBoard get, listed behind the plug-in."""

    def __init__(self) -> None:
        self.logs: list[dict[str, Any]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self.logs.append(dict(logs))


def test_lines_log_and_reporters_tell_of_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    callback = HybridPredictCallback(**OPTIONS)
    reports = Reports()
    trainer = trained(tmp_path, callback, also=[reports])
    ledger = callback.ledger
    *training, summary = reports.logs
    for logs in training:
        own = [name for name in logs if name.startswith("hybrid_predict/")]
        assert "hybrid_predict/steps" in own and len(own) <= 3
        assert list(logs)[-len(own) :] == own  # behind the user's
    assert summary["hybrid_predict/predicted_steps"] == ledger.predicted_steps > 5
    assert summary["hybrid_predict/full_steps"] == ledger.full_steps
    kept = [row.get("hybrid_predict/steps") for row in trainer.state.log_history]
    assert kept == [logs["hybrid_predict/steps"] for logs in reports.logs]
    shown = " ".join("".join(capsys.readouterr()).split())
    assert shown.count("HybridPredict corrects ") == 1
    assert shown.count(f"{ledger.full_steps} full + {ledger.predicted_steps} predicted = ") == 1
    assert f"; training loss {callback.history.losses}; " in shown
    assert "no finite validation was seen, so overfitting would go unnoticed. More about" in shown
    log = read_log(find_logs(tmp_path)[0])
    assert (log.status, log.path.parent) == ("finished", tmp_path)
    assert log.rows == callback.history.rows and len(log.rows) == ledger.full_steps
    assert all(row.loss for row in log.rows)


def test_a_loss_outside_the_model_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    model = gpt()
    model.register_forward_hook(lambda module, inputs, output: {"cost": output["loss"]})
    cost = lambda self, model, inputs, **_: next(iter(model(**inputs).values()))  # noqa: E731
    monkeypatch.setattr(transformers.Trainer, "compute_loss", cost)
    callback = HybridPredictCallback(**OPTIONS)
    with caplog.at_level(logging.WARNING, "hybrid_predict"):
        trained(tmp_path, callback, model)
    told = [text for text in caplog.messages if "does not see the loss" in text]
    assert len(told) == 1 and callback.ledger.steps == STEPS
    assert all(row.loss is None for row in callback.history.rows)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run with checkpoints at full steps 7 and 14."""
    folder = tmp_path_factory.mktemp("whole")
    return trained(folder, HybridPredictCallback(**OPTIONS), **SAVING)


def checkpoint(run: Any, step: int) -> Path:
    return Path(run.args.output_dir, f"checkpoint-{step}")


def test_resumes_bit_for_bit(tmp_path: Path, whole: Any) -> None:
    callback = HybridPredictCallback(**OPTIONS)
    path = shutil.copytree(checkpoint(whole, 7), tmp_path / "checkpoint-7")
    resumed = trained(tmp_path, callback, resume=str(path), **SAVING)
    assert callback.ledger.full_steps == resumed.state.global_step == whole.state.global_step
    assert same_bits(resumed.model.state_dict(), whole.model.state_dict())


def test_the_checkpoint_of_another_run_is_not_taken(tmp_path: Path, whole: Any) -> None:
    other = trained(tmp_path, HybridPredictCallback(**OPTIONS), batches=8, **SAVING)
    assert not same_bits(whole.model.state_dict(), other.model.state_dict())
    path = str(checkpoint(whole, 14))
    with pytest.raises(CheckpointError, match="resume_from_checkpoint"):
        trained(tmp_path, HybridPredictCallback(**OPTIONS), resume=path, **SAVING)
    resumed = trained(
        tmp_path, HybridPredictCallback(**OPTIONS), resume=path, resume_from_checkpoint=path,
        **SAVING,
    )  # fmt: skip
    assert same_bits(resumed.model.state_dict(), whole.model.state_dict())


FOREIGN = [torch.zeros(2), {}, None]
"""Contents of a file that the plug-in has not written; None cuts off the last byte."""


@pytest.mark.parametrize("foreign", FOREIGN, ids=str)
def test_a_torn_or_foreign_file_is_refused_and_leaves_nothing_behind(
    tmp_path: Path, whole: Any, foreign: Any
) -> None:
    path = shutil.copytree(checkpoint(whole, 14), tmp_path / "checkpoint-14")
    if foreign is None:
        (path / FILE).write_bytes((path / FILE).read_bytes()[:-1])
    else:
        torch.save(foreign, path / FILE)
    callback, model = HybridPredictCallback(**OPTIONS), gpt()
    with pytest.raises(CheckpointError, match=r"expected .+, (got|but) .+\. Resume from another"):
        trained(tmp_path, callback, model, resume=str(path))
    assert callback.engine is None
    assert not model._forward_hooks and not model._state_dict_pre_hooks


def test_continues_a_run_without_the_plug_in_and_a_finished_one(tmp_path: Path) -> None:
    saving = {"save_strategy": "steps", "save_steps": 10}
    trained(tmp_path, HybridPredictCallback(enabled=False), **saving)
    assert not list(tmp_path.rglob(FILE))
    callback = HybridPredictCallback(**OPTIONS)
    shutil.rmtree(tmp_path / "checkpoint-20")
    resumed = trained(tmp_path, callback, resume=str(tmp_path / "checkpoint-10"), **saving)
    assert callback.ledger.steps == STEPS - 10
    assert resumed.state.global_step == 10 + callback.ledger.full_steps < STEPS
    last = resumed.state.global_step
    again = HybridPredictCallback(**OPTIONS)
    finished = trained(tmp_path, again, resume=str(tmp_path / f"checkpoint-{last}"), **saving)
    assert again.engine is not None and again.engine.done
    assert finished.state.global_step <= last + 1


def test_off_is_bit_identical(tmp_path: Path) -> None:
    plain = trained(tmp_path, transformers.PrinterCallback())
    off = trained(tmp_path, HybridPredictCallback(enabled=False))
    assert off.state.global_step == plain.state.global_step == STEPS
    assert same_bits(off.model.state_dict(), plain.model.state_dict())


class Interrupts(transformers.TrainerCallback):
    """Keeps the weights that each step leaves, and stops inside the first verifying step."""

    def __init__(self, watched: HybridPredictCallback) -> None:
        self.watched = watched
        self.before: dict[str, Tensor] = {}

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.before = weights(kwargs["model"])

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if verifies(self.watched):
            raise KeyboardInterrupt


def test_weights_saved_after_an_interruption_are_verified_ones(tmp_path: Path) -> None:
    callback, model = HybridPredictCallback(**OPTIONS), gpt()
    stop = Interrupts(callback)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, callback, model, also=[stop])
    assert callback.history.status == "running"  # the Trainer tells its callbacks of no error
    moved = weights(model)
    assert not same_bits(moved, stop.before)
    model.save_pretrained(tmp_path / "saved")
    saved = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "saved")
    assert same_bits(weights(saved), stop.before)
    assert same_bits(weights(model), stop.before)


def test_a_scheduler_that_follows_a_metric_is_left_to_the_trainer(tmp_path: Path) -> None:
    callback, model = HybridPredictCallback(**OPTIONS), gpt()
    optimizer, _ = schedule(model)
    plateau = ReduceLROnPlateau(optimizer, patience=100)
    trainer = trained(
        tmp_path, callback, model, optimizers=(optimizer, plateau), eval_strategy="steps",
        eval_steps=5, metric_for_best_model="eval_loss",
    )  # fmt: skip
    evaluations = sum("eval_loss" in row for row in trainer.state.log_history)
    assert plateau.last_epoch == evaluations
    assert callback.ledger.predicted_steps > 5


@pytest.mark.parametrize(
    ("argument", "told"),
    [
        ("max_steps", r"^max_steps: .+, got 10. Set TrainingArguments\(max_steps=...\)."),
        ("total_steps", r"^total_steps: .+, got 10. Set TrainingArguments\(max_steps=...\)"),
        ("speed_up", "^HybridPredictCallback: .+, got 'speed_up'. Did you mean speedup?"),
    ],
)
def test_a_wrong_argument_is_named_with_the_place_to_set_it(argument: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        HybridPredictCallback(**{argument: 10})


def test_a_trainer_of_another_framework_is_refused_with_the_callback_for_it(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedSetupError, match="callbacks: expected HybridPredictCallback, "):
        trained(tmp_path, HybridPredict())
    with pytest.raises(UnsupportedSetupError, match="callbacks: expected HybridPredict, "):
        lightning.pytorch.Trainer(callbacks=[HybridPredictCallback()], logger=False)


def test_what_cannot_be_is_refused() -> None:
    one = {"deepspeed": None, "fsdp": [], "parallel_mode": ParallelMode.NOT_PARALLEL}
    refuse(SimpleNamespace(**one))
    asked: dict[str, Any] = {
        "deepspeed": "z3.json", "fsdp": ["full_shard"], "enable_jit_checkpoint": True,
    }  # fmt: skip
    asked["parallel_mode"] = ParallelMode.NOT_DISTRIBUTED
    for name, value in asked.items():
        with pytest.raises(UnsupportedSetupError, match="TrainingArguments"):
            refuse(SimpleNamespace(**{**one, name: value}))


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = find_spec("hybrid_predict.integrations.huggingface")
    assert spec is not None and spec.loader is not None
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r"hybrid_predict\[huggingface\]"):
        spec.loader.exec_module(module_from_spec(spec))


@pytest.mark.parametrize("choice", ["pause", "stop"])
def test_the_metric_of_the_best_model_tells_that_a_run_overfits(
    tmp_path: Path, choice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = iter([1.0, 0.6, 0.4, 0.3, *(0.3 + 0.2 * k for k in range(1, 30))])

    def evaluate(trainer: Any, *args: Any, **kwargs: Any) -> dict[str, float]:
        metrics = {"eval_score": next(values)}
        handler = trainer.callback_handler
        trainer.control = handler.on_evaluate(trainer.args, trainer.state, trainer.control, metrics)
        return metrics

    monkeypatch.setattr(transformers.Trainer, "evaluate", evaluate)
    callback = HybridPredictCallback(**OPTIONS, on_overfit=choice)
    options = {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "score"}
    trainer = trained(tmp_path, callback, greater_is_better=False, **options)
    best = callback.ledger.best
    assert best is not None
    assert (best["metric"], best["value"], best["full_steps"]) == ("eval_score", 0.3, 4)
    assert callback.engine is not None and callback.engine.overfits
    assert (trainer.state.global_step < 15) == (choice == "stop")
    trainer.evaluate()  # after the end, of no interest
    assert callback.ledger.best == best
