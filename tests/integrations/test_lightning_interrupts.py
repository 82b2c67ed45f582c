"""Ctrl-C or SIGTERM in any hook: nothing unverified is left or saved. SLURM's between steps."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.core.hooks import CheckpointHooks, ModelHooks
from lightning_models import Net, SeededLoader, Ungated, fit, same, weights
from slurm import job
from witness import Witness

from hybrid_predict import HybridPredict

pytestmark = pytest.mark.filterwarnings(
    "ignore:Checkpoint directory .* exists and is not empty", "ignore:The dirpath has changed"
)

STEPS, SAVED = 18, 5
ELSEWHERE = ("on_test_", "on_predict_", "on_exception", "configure_", "state_key", "load_state_")
"""Hooks of other loops, of what an interrupt leads to, and those without a use here."""


def hooks(*classes: type) -> list[str]:
    """The public methods of these classes that a training run calls."""
    named = {n: getattr(c, n) for c in classes for n in vars(c) if not n.startswith("_")}
    return sorted(n for n, f in named.items() if callable(f) and not n.startswith(ELSEWHERE))


STEP = (
    "training_step", "validation_step", "optimizer_step", "optimizer_zero_grad",
    "lr_scheduler_step", "configure_gradient_clipping", "backward", "configure_optimizers",
)  # fmt: skip
PLUGIN = [name for name in hooks(Callback) if name in vars(HybridPredict)]
OWNERS: dict[str, tuple[type, list[str]]] = {
    "plug-in": (Ungated, PLUGIN),
    "module": (Net, [*hooks(ModelHooks, CheckpointHooks), *STEP]),
    "callback": (Callback, hooks(Callback)),
}


class Run:
    """A run in which one call of one hook, of one owner, does something more.

    Without an owner the calls of all hooks of all owners are counted.
    """

    def __init__(
        self, folder: Path, owner: str = "", name: str = "", act: Callable[[], None] | None = None,
        at: int = 0,
    ) -> None:  # fmt: skip
        self.act, self.at, self.calls = act, at, Counter[tuple[str, str]]()
        classes = {}
        for key, (cls, names) in OWNERS.items():
            if key == owner or not owner:
                hooked = {n: self._hook(key, n) for n in names if n == name or not owner}
                cls = type(key, (cls,), hooked)
            classes[key] = cls
        self.witness, self.callback = Witness(), classes["plug-in"](max_overhead=100)
        save = ModelCheckpoint(folder, "{step}", every_n_train_steps=SAVED, save_top_k=-1)
        self.callbacks = [self.callback, self.witness, classes["callback"](), save]
        self.model = classes["module"]()

    def _hook(self, owner: str, name: str) -> Callable[..., Any]:
        plain = getattr(OWNERS[owner][0], name)

        def hook(this: Any, *args: Any, **kwargs: Any) -> Any:
            self.calls[owner, name] += 1
            if self.act is not None and self.calls[owner, name] == self.at:
                self.act()
            return plain(this, *args, **kwargs)

        return hook

    def fit(self, path: Path | None, **options: Any) -> None:
        self.trainer, _ = fit(
            self.callbacks, self.model, train=SeededLoader(7), max_steps=STEPS,
            val_check_interval=3, num_sanity_val_steps=1, ckpt_path=path and str(path),
            **options,
        )  # fmt: skip

    def check_let_go(self) -> None:
        """Nothing unverified, no hook, no counting mode, an optimizer that fits the weights."""
        assert self.witness.unmoved(self.model)
        assert torch._C._len_torch_dispatch_stack() == 0
        engine = self.callback.engine
        if engine is None:
            return
        assert not engine.in_step
        (optimizer,) = engine.optimizer.optimizers
        assert not optimizer._optimizer_step_pre_hooks
        assert len(optimizer._optimizer_step_post_hooks) <= 1  # the witness's own
        assert len({float(state["step"]) for state in optimizer.state.values()}) <= 1


def ctrl_c() -> None:
    raise KeyboardInterrupt


def sigterm() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def requeue() -> None:
    os.kill(os.getpid(), signal.SIGUSR1)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run, Run]:
    """A folder, a run from the start, and the run that goes on from its first checkpoint."""
    folder = tmp_path_factory.mktemp("runs")
    fresh, whole = Run(folder / "saved"), Run(folder / "whole")
    fresh.fit(None)
    whole.fit(folder / "saved" / f"step={SAVED}.ckpt")
    assert sum(whole.witness.moved) > 3
    return folder, fresh, whole


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    """Lightning ignores further Ctrl-C once it has met one."""
    kept = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, kept)


QUICK = {
    "module": ("training_step", "optimizer_step", "backward", "on_save_checkpoint"),
    "plug-in": ("on_train_batch_start", "on_train_batch_end"),
    "callback": ("on_train_batch_start",),
}
"""Hooks in which every change is interrupted; the others are slow."""

PLACES = [
    pytest.param(owner, name, ctrl_c, marks=() if name in QUICK[owner] else pytest.mark.slow)
    for owner, (_, names) in OWNERS.items()
    for name in names
]
PLACES += [("module", "training_step", sigterm), ("plug-in", "on_train_batch_end", sigterm)]


@pytest.mark.parametrize(("owner", "name", "act"), PLACES)
def test_an_interrupt_leaves_nothing_unverified_and_a_save_goes_on_from_there(
    runs: tuple[Path, Run, Run], owner: str, name: str, act: Any
) -> None:
    (folder, fresh, whole), key = runs, (owner, name)
    saved = folder / "saved" / f"step={SAVED}.ckpt"
    start = saved if whole.calls[key] else None  # the sanity check comes at the start only
    calls = whole.calls[key] or fresh.calls[key]
    run = Run(folder / "interrupted", owner, name, act, at=calls - calls // 3)
    with pytest.raises(SystemExit):
        run.fit(start)
    assert run.calls[key] == run.at > 0
    run.check_let_go()
    run.model.train()
    run.fit(saved)
    run.check_let_go()
    assert same(weights(run.model), weights(whole.model))
    assert not any(type(c).__name__ == "MissedCheckpoints" for c in run.trainer.callbacks)


def test_a_signal_to_requeue_between_steps_saves_what_goes_on_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in job(tmp_path).items():
        monkeypatch.setenv(name, value)
    run = Run(tmp_path / "first", "callback", "on_train_batch_end", requeue, at=8)
    run.fit(None, default_root_dir=tmp_path)  # Lightning goes on until the cluster ends the job
    assert (tmp_path / "told").read_text() == "requeue 4321\n"
    again = Run(tmp_path / "again")
    again.fit(None, default_root_dir=tmp_path)  # it finds hpc_ckpt_1.ckpt itself
    assert again.model.batches == run.model.batches - 8
    assert same(weights(again.model), weights(run.model))
