"""What the rows train, and what they assert about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning_models import Net, Recorded, fit
from loops import same_bits
from torch import Tensor, nn
from torch.optim import Optimizer
from witness import Witness, parameters

from compatibility.rows import CHECKS
from hybrid_predict import HybridConfig, MomentumPredictor, SavingsLedger
from hybrid_predict.config import KINDS
from hybrid_predict.errors import UnsupportedSetupError
from hybrid_predict.ranks import processes
from hybrid_predict.ranks.shards import full_tensor, local

STEPS = 36
"""Steps of a row's run; 24 full steps at the default speedup."""

LENGTHS = {"max_steps", "max_epochs"}

EPOCHS: dict[str, Any] = {"max_epochs": 6, "limit_train_batches": 6}
"""As long a run, bounded by epochs."""

EVERY_KIND = HybridConfig(predictors=dict.fromkeys(KINDS, MomentumPredictor(gated=False)))
"""Predicted steps that move parameters of every kind."""


def every_kind() -> Recorded:
    return Recorded(config=EVERY_KIND)


MakeOptimizer = Callable[[list[nn.Parameter]], Optimizer]
ADAMW: MakeOptimizer = partial(torch.optim.AdamW, lr=1e-2)


class Subject(Net):
    """A net of the row's own for (16, 8) inputs, with its own optimizer and scheduler."""

    def __init__(
        self,
        body: nn.Module | None = None,
        optimizer: MakeOptimizer = ADAMW,
        scheduler: Callable[[Optimizer, int], Any] | None = None,
        interval: str = "step",
        frequency: int = 1,
    ) -> None:
        super().__init__("none", interval, frequency)
        self.net = self.net if body is None else body
        self.make_optimizer, self.make_scheduler = optimizer, scheduler
        self.momenta: dict[int, Any] = {}

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        group = self.trainer.optimizers[0].param_groups[0]
        self.momenta[self.trainer.global_step] = group.get("momentum", group.get("betas"))
        return super().training_step(batch, batch_idx)

    def configure_optimizers(self) -> Any:
        optimizer = self.make_optimizer(list(self.parameters()))
        if self.make_scheduler is None:
            return optimizer
        scheduler = self.make_scheduler(optimizer, int(self.trainer.estimated_stepping_batches))
        entry = {"scheduler": scheduler, "interval": self.interval, "monitor": "val_loss",
                 "frequency": self.frequency}  # fmt: skip
        return {"optimizer": optimizer, "lr_scheduler": entry}


def mlp(width: int = 16, outputs: int = 1, **kwargs: Any) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(8, width, **kwargs), nn.Tanh(), nn.Linear(width, width, **kwargs), nn.Tanh(),
        nn.Linear(width, outputs, **kwargs),
    )  # fmt: skip


@dataclass
class Run:
    trainer: L.Trainer
    model: Any
    plugin: Recorded
    witness: Witness

    @property
    def ledger(self) -> SavingsLedger:
        return self.plugin.ledger

    @property
    def predicted(self) -> set[str]:
        """Names of the parameters that predicted steps have moved."""
        return {name for r in self.plugin.records if r.gradients for name in r.gradients.alignments}

    @property
    def weights(self) -> dict[str, Tensor]:
        """The whole parameters by name; every rank has to ask for them."""
        return {n: full_tensor(local(p), p) for n, p in parameters(self.model).items()}

    def sound(
        self, steps: int = STEPS, *, full_steps: int | None = None, global_step: int | None = None
    ) -> Run:
        """Assert what holds for every row that works."""
        ledger, wanted = self.ledger, round(steps / 1.5) if full_steps is None else full_steps
        assert ledger.steps == steps == ledger.full_steps + ledger.predicted_steps
        assert self.trainer.global_step == (steps if global_step is None else global_step)
        assert ledger.full_steps == wanted
        assert (ledger.predicted_steps > 0) == any(self.witness.moved)
        weights = self.weights
        assert all(torch.isfinite(torch.view_as_real(p) if p.is_complex() else p).all()
                   for p in weights.values())  # fmt: skip
        assert {*(self.witness.watched or ("batch end", "end"))} <= self.witness.seen.keys()
        assert all(all(seen) for seen in self.witness.seen.values())
        counts = (ledger.full_steps, ledger.predicted_steps, ledger.undone_steps)
        first, *others = processes.gather((weights, counts))
        assert all(same_bits(first, other) for other in others), "the ranks differ"
        return self


def train(
    model: Net | None = None,
    callbacks: Sequence[Callback] = (),
    *,
    plugin: Recorded | None = None,
    witness: Witness | None = None,
    watched: Sequence[str] = (),
    **kwargs: Any,
) -> Run:
    """Train with the plug-in listed first; 36 steps unless the length is given.

    In the hooks that are ``watched`` the weights of the last update are expected: in all, unless a
    callback puts other weights into the model for some.
    """
    plugin, witness = plugin or Recorded(), witness or Witness()
    witness.watched = tuple(watched)
    trainer, trained = fit([plugin, witness, *callbacks], model or Subject(), **_bounded(kwargs))
    return Run(trainer, trained, plugin, witness)


def _bounded(kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments with the rows' length, unless they have one."""
    return kwargs if kwargs.keys() & LENGTHS else {**kwargs, "max_steps": STEPS}


def cosine() -> Net:
    return Net("cosine")


def follows(
    make: Callable[[], Net] = cosine,
    callbacks: Sequence[Callback] = (),
    *,
    plugin: Recorded | None = None,
    steps: int = STEPS,
    global_step: int | None = None,
    **kwargs: Any,
) -> Run:
    """A sound run whose rate at every step is that of the run without plug-in and callbacks."""
    run = train(make(), callbacks, plugin=plugin, **kwargs).sound(steps, global_step=global_step)
    _, plain = fit([], make(), **{**_bounded(kwargs), "limit_val_batches": 0})
    assert len(set(plain.rates.values())) > 1
    assert run.model.rates.items() <= plain.rates.items()
    if isinstance(plain, Subject):
        assert all(plain.momenta[step] == m for step, m in run.model.momenta.items())
    return run


def warned(match: str) -> AbstractContextManager[Any]:
    """Expect a warning of Lightning, which only the first rank gives."""
    return nullcontext() if processes.rank() else pytest.warns(UserWarning, match=match)


def refuses(words: str, model: Net | None = None, **kwargs: Any) -> str:
    """Assert that training with the plug-in is refused in these words; return the outcome."""
    with pytest.raises(UnsupportedSetupError, match=words):
        train(model, **kwargs)
    return "refused: `UnsupportedSetupError`"


def refused(name: str, words: str, make: Callable[[], Net] = Subject, **kwargs: Any) -> None:
    """Add a row that is refused in these words."""
    CHECKS[name] = lambda folder: refuses(words, make(), **kwargs)


def fails_without_us(error: type[Exception], words: str, model: Net, **kwargs: Any) -> str:
    """Assert that torch or Lightning itself refuses the set-up; return the outcome."""
    with pytest.raises(error, match=words):
        fit([], model, **{"max_steps": 2, **kwargs})
    return "not applicable"
