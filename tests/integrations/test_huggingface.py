"""The callback in a Trainer of Hugging Face transformers."""

from __future__ import annotations

import contextlib
import copy
import shutil
import sys
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from damage import damages
from loops import same_bits
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from hybrid_predict import (
    CheckpointError,
    ConfigError,
    HybridConfig,
    HybridEngine,
    MissingExtraError,
    Phase,
    UnsupportedSetupError,
)

transformers = pytest.importorskip("transformers")

from huggingface_models import (  # noqa: E402
    OPTIONS,
    SIZE,
    STEPS,
    data,
    gpt,
    schedule,
    trained,
)
from transformers.training_args import ParallelMode  # noqa: E402

from hybrid_predict.integrations.huggingface import (  # noqa: E402
    FILE,
    HybridPredictCallback,
    _load,
    refuse,
)


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
            for _ in range(engine.after_step(sum(losses)).ticks):
                scheduler.step()
    return model, engine


@pytest.mark.parametrize(
    ("window", "bf16"), [(1, False), (5, False), (1, True)], ids=["plain", "accumulated", "bf16"]
)
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


def test_the_graph_of_the_loss_tells_the_head(tmp_path: Path) -> None:
    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(16, 64)
            self.body = nn.Sequential(nn.Embedding(64, 8), nn.Linear(8, 16), nn.Linear(16, 16))

        def forward(self, input_ids: Any, labels: Any) -> dict[str, Any]:
            logits = self.head(self.body(input_ids))
            return {"loss": nn.functional.cross_entropy(logits.transpose(1, 2), labels)}

    torch.manual_seed(0)
    callback = HybridPredictCallback(**OPTIONS)
    trained(tmp_path, callback, Backwards())
    mapper = callback.engine.mapper
    kinds = dict(zip(mapper.names, mapper.kinds, strict=True))
    assert kinds["head.weight"] == "head"
    assert kinds["body.1.weight"] == kinds["body.2.weight"] == "hidden"


def test_ends_as_the_trainer_ends_with_a_last_evaluation_and_checkpoint(tmp_path: Path) -> None:
    callback = HybridPredictCallback(**OPTIONS)
    every = {"save_strategy": "steps", "save_steps": 8, "eval_strategy": "steps", "eval_steps": 8}
    trainer = trained(tmp_path, callback, **every)
    last = trainer.state.global_step
    assert last < STEPS and last % 8
    saved = sorted(int(p.name.split("-")[1]) for p in tmp_path.glob("checkpoint-*"))
    assert saved == [8, 16, last]
    evaluated = [row["step"] for row in trainer.state.log_history if "eval_loss" in row]
    assert evaluated == saved


def test_resumes_bit_for_bit(tmp_path: Path) -> None:
    saving = {"save_strategy": "steps", "save_steps": 7}
    whole = trained(tmp_path, HybridPredictCallback(**OPTIONS), **saving)
    for path in (tmp_path / "checkpoint-14", str(tmp_path / "checkpoint-7")):
        callback = HybridPredictCallback(**OPTIONS)
        resumed = trained(tmp_path, callback, resume=str(path), **saving)
        assert callback.ledger.full_steps == resumed.state.global_step == whole.state.global_step
        assert same_bits(resumed.model.state_dict(), whole.model.state_dict())


def test_a_checkpoint_is_told_from_that_of_another_run(tmp_path: Path) -> None:
    saving = {"save_strategy": "steps", "save_steps": 14}
    whole = trained(tmp_path / "a", HybridPredictCallback(**OPTIONS), **saving)
    other = trained(tmp_path / "b", HybridPredictCallback(**OPTIONS), batches=8, **saving)
    assert not same_bits(whole.model.state_dict(), other.model.state_dict())
    path = str(tmp_path / "a" / "checkpoint-14")
    with pytest.raises(CheckpointError, match="resume_from_checkpoint"):
        trained(tmp_path / "b", HybridPredictCallback(**OPTIONS), resume=path, **saving)
    named = {"resume_from_checkpoint": path, **saving}
    resumed = trained(
        tmp_path / "b", HybridPredictCallback(**OPTIONS), resume=path, batches=10, **named
    )
    assert same_bits(resumed.model.state_dict(), whole.model.state_dict())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a checkpoint."""
    folder = tmp_path_factory.mktemp("whole")
    saving = {"save_strategy": "steps", "save_steps": 14}
    trained(folder, HybridPredictCallback(**OPTIONS), **saving)
    return folder


FOREIGN = [
    b"text", b"[1]", b"PK\x03\x04", b"\x80\x04.", torch.zeros(2), {"model": {}}, [], Path("/tmp"),
    *(slice(kept) for kept in (0, 1, 100, -100, -1)),
]  # fmt: skip
"""Contents of a file that the plug-in has not written, or of which a part is left."""


@pytest.mark.parametrize("foreign", FOREIGN, ids=str)
def test_a_torn_or_foreign_file_is_refused_and_leaves_nothing_behind(
    tmp_path: Path, whole: Path, foreign: Any
) -> None:
    path = shutil.copytree(whole / "checkpoint-14", tmp_path / "checkpoint-14")
    if isinstance(foreign, slice):
        (path / FILE).write_bytes((path / FILE).read_bytes()[foreign])
    elif isinstance(foreign, bytes):
        (path / FILE).write_bytes(foreign)
    else:
        torch.save(foreign, path / FILE)
    callback, model = HybridPredictCallback(**OPTIONS), gpt()
    with pytest.raises(CheckpointError, match=r"expected .+, (got|but) .+\. Resume from another"):
        trained(tmp_path, callback, model, resume=str(path))
    assert callback.engine is None and callback._hook is None
    assert not model._forward_hooks and not model._state_dict_pre_hooks


def test_a_damaged_file_is_refused_or_goes_on(tmp_path: Path, whole: Path) -> None:
    path = whole / "checkpoint-14" / FILE
    saved = torch.load(path, weights_only=True)
    engine = saved.pop("engine")
    state = transformers.TrainerState.load_from_json(str(path.with_name("trainer_state.json")))
    args = SimpleNamespace(resume_from_checkpoint=None, output_dir=str(tmp_path))
    (tmp_path / "checkpoint-14").mkdir()
    taken = []
    for name, damaged in damages({**saved, "engine": {}}):
        given = {**damaged, "engine": engine} if damaged.get("engine") == {} else damaged
        torch.save(given, tmp_path / "checkpoint-14" / FILE)
        with contextlib.suppress(CheckpointError):
            taken.append((name, _load(args, state)))
    assert [name for name, _ in taken] == ["run: a string", "start: 0"]
    assert [found is None for _, found in taken] == [True, False]


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
    for how in ({"enabled": False}, {"updates": {}, "speedup": 1}):
        off = trained(tmp_path, HybridPredictCallback(**how))
        assert off.state.global_step == plain.state.global_step == STEPS
        assert same_bits(off.model.state_dict(), plain.model.state_dict())


class Interrupts(transformers.TrainerCallback):
    """Stops training by an error inside the first verifying step."""

    def __init__(self, watched: HybridPredictCallback) -> None:
        self.watched = watched
        self.before: dict[str, Tensor] = {}

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.before = {k: v.detach().clone() for k, v in kwargs["model"].named_parameters()}

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        engine = self.watched.engine
        assert engine is not None and engine._step is not None
        if engine._step.phase is Phase.PREDICT:
            raise KeyboardInterrupt


def test_weights_saved_after_an_interruption_are_verified_ones(tmp_path: Path) -> None:
    callback, model = HybridPredictCallback(**OPTIONS), gpt()
    stop = Interrupts(callback)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, callback, model, also=[stop])
    moved = {k: v.detach().clone() for k, v in model.named_parameters()}
    assert not same_bits(moved, stop.before)
    model.save_pretrained(tmp_path / "saved")
    assert same_bits({k: v.detach() for k, v in model.named_parameters()}, moved)
    saved = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "saved")
    assert same_bits({k: v.detach() for k, v in saved.named_parameters()}, stop.before)
    model.load_state_dict(model.state_dict())
    assert same_bits({k: v.detach() for k, v in model.named_parameters()}, stop.before)


class Reads(transformers.TrainerCallback):
    """Reads the weights between backward pass and update, as an average of weights does."""

    def __init__(self, watched: HybridPredictCallback) -> None:
        self.watched = watched
        self.verified: list[bool] = []
        self.unmoved: list[bool] = []
        self.before: dict[str, Tensor] = {}

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.before = {k: v.clone() for k, v in kwargs["model"].state_dict().items()}

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model, engine = kwargs["model"], self.watched.engine
        now = [p.detach().clone() for p in model.parameters()]
        read = dict(model.state_dict())
        if engine is not None and engine._state.unread:
            self.verified.append(same_bits(read, self.before))
        self.unmoved.append(all(map(torch.equal, now, model.parameters())))


def test_reading_the_weights_inside_a_step_changes_nothing(tmp_path: Path) -> None:
    ends = []
    for read in (False, True):
        callback = HybridPredictCallback(**OPTIONS)
        reader = Reads(callback)
        trainer = trained(tmp_path, callback, also=[reader] if read else [])
        ends.append((trainer.model.state_dict(), trainer.state.global_step))
    assert same_bits(*ends)
    assert len(reader.verified) > 5
    assert all(reader.verified) and all(reader.unmoved)


class Copies(transformers.TrainerCallback):
    """Copies the model in every step, and runs the copy."""

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        row = data(1)[0]["input_ids"][None]
        copy.deepcopy(kwargs["model"])(input_ids=row, labels=row)


def test_a_copy_of_the_model_takes_no_part_in_the_run(tmp_path: Path) -> None:
    plain = trained(tmp_path, HybridPredictCallback(**OPTIONS))
    watched = trained(tmp_path, HybridPredictCallback(**OPTIONS), also=[Copies()])
    assert same_bits(watched.model.state_dict(), plain.model.state_dict())


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


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="total_steps"):
        HybridPredictCallback(total_steps=10)
    with pytest.raises(ConfigError, match="speed_up"):
        HybridPredictCallback(speed_up=2.0)
    one = {"deepspeed": None, "fsdp": [], "parallel_mode": ParallelMode.NOT_PARALLEL}
    refuse(SimpleNamespace(**one))
    asked: dict[str, Any] = {"deepspeed": "z3.json", "fsdp": ["full_shard"]}
    asked["parallel_mode"] = ParallelMode.NOT_DISTRIBUTED
    for name, value in asked.items():
        with pytest.raises(UnsupportedSetupError, match="TrainingArguments"):
            refuse(SimpleNamespace(**{**one, name: value}))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_adapters_of_peft_train_and_resume(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")

    def adapted() -> nn.Module:
        config = peft.LoraConfig(r=4, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True)
        return peft.get_peft_model(gpt(), config)

    saving = {"save_strategy": "steps", "save_steps": 7}
    whole, callback = adapted(), HybridPredictCallback(**OPTIONS)
    frozen = {k: v.detach().clone() for k, v in whole.named_parameters() if not v.requires_grad}
    trained(tmp_path, callback, whole, **saving)
    assert callback.ledger.predicted_steps > 5
    assert same_bits({k: dict(whole.named_parameters())[k].detach() for k in frozen}, frozen)
    resumed = adapted()
    path = str(tmp_path / "checkpoint-14")
    trained(tmp_path, HybridPredictCallback(**OPTIONS), resumed, resume=path, **saving)
    assert same_bits(resumed.state_dict(), whole.state_dict())


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = find_spec("hybrid_predict.integrations.huggingface")
    assert spec is not None and spec.loader is not None
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r"hybrid_predict\[huggingface\]"):
        spec.loader.exec_module(module_from_spec(spec))
