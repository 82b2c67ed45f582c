"""Rows: every optimizer that torch ships, and how several are used."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import schedulefree
import torch
from torch import Tensor, nn, optim

from compatibility.rows import row, rows
from compatibility.subject import Subject, every_kind, fails_without_us, mlp, refused, train

Make = Callable[[Any], optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "`SGD`": lambda p: optim.SGD(p, lr=1e-2),
    "`SGD`, momentum": lambda p: optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True),
    "`SGD`, fused": lambda p: optim.SGD(p, lr=1e-2, momentum=0.9, fused=True),
    "`Adam`": lambda p: optim.Adam(p, lr=1e-2, foreach=False),
    "`Adam`, foreach": lambda p: optim.Adam(p, lr=1e-2, foreach=True),
    "`Adam`, fused": lambda p: optim.Adam(p, lr=1e-2, fused=True),
    "`Adam`, amsgrad": lambda p: optim.Adam(p, lr=1e-2, amsgrad=True),
    "`AdamW`": lambda p: optim.AdamW(p, lr=1e-2, foreach=False),
    "`AdamW`, foreach": lambda p: optim.AdamW(p, lr=1e-2, foreach=True),
    "`AdamW`, fused": lambda p: optim.AdamW(p, lr=1e-2, fused=True),
    "`AdamW`, rate as a tensor": lambda p: optim.AdamW(p, lr=torch.tensor(1e-2)),
    "`NAdam`": lambda p: optim.NAdam(p, lr=1e-2),
    "`RAdam`": lambda p: optim.RAdam(p, lr=1e-2),
    "`Adamax`": lambda p: optim.Adamax(p, lr=1e-2),
    "`ASGD`": lambda p: optim.ASGD(p, lr=1e-2),
    "`Adadelta`": lambda p: optim.Adadelta(p, lr=1.0),
    "`RMSprop`": lambda p: optim.RMSprop(p, lr=1e-3, momentum=0.5, centered=True),
    "`Rprop`": lambda p: optim.Rprop(p, lr=1e-3),
    "`Adagrad`": lambda p: optim.Adagrad(p, lr=1e-2),
    "`Adagrad`, fused": lambda p: optim.Adagrad(p, lr=1e-2, fused=True),
}


@rows({name: [make] for name, make in OPTIMIZERS.items()})
def trains(make: Make, folder: Path) -> None:
    train(Subject(optimizer=make), plugin=every_kind()).sound()


class Anchored(optim.SGD):
    """Pulls weights back to where they were at first, as L2-SP and proximal methods do."""

    def step(self, closure: Any = None) -> Any:
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for p in group["params"]:
                anchor = self.state[p].setdefault("anchor", p.detach().clone())
                p.grad.add_(p.detach() - anchor, alpha=0.1)
        super().step()
        return loss


@row("`Adafactor`", partial(optim.Adafactor, lr=1e-2), "grow with the weights")
@row(
    "an optimizer that pulls weights to a stored point",
    partial(Anchored, lr=1e-2),
    "decay could not be found out",
)
def left_alone(make: Make, reason: str, folder: Path) -> None:
    ledger = train(Subject(optimizer=make), plugin=every_kind()).sound().ledger
    assert ledger.corrected_steps == 0
    assert any(reason in event["reason"] for event in ledger.events)


@row("an optimizer that goes along gradients")
def uphill(folder: Path) -> None:
    def negative(p: Any) -> optim.Optimizer:
        optimizer = optim.SGD(p, lr=1e-3)
        optimizer.param_groups[0]["lr"] = -1e-3
        return optimizer

    for make in (partial(optim.SGD, lr=1e-3, maximize=True), negative):
        ledger = train(Subject(optimizer=make)).sound().ledger
        assert ledger.corrected_steps > 0


@row("`Muon`")
def muon(folder: Path) -> None:
    train(Subject(mlp(bias=False), optimizer=lambda p: optim.Muon(p, lr=1e-2))).sound()


@row("`SparseAdam`")
def sparse_adam(folder: Path) -> None:
    class Bag(nn.EmbeddingBag):
        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward((x * 3).long().abs() % 11).sum(1, keepdim=True)

    subject = Subject(Bag(11, 8, sparse=True), lambda p: optim.SparseAdam(p, lr=1e-2))
    train(subject, plugin=every_kind()).sound()


@row("`Adam(capturable=True)`")
def capturable(folder: Path) -> str:
    subject = Subject(optimizer=lambda p: optim.Adam(p, lr=1e-2, capturable=True))
    return fails_without_us(AssertionError, "capturable", subject)


@row("several parameter groups")
def groups(folder: Path) -> None:
    def make(parameters: list[nn.Parameter]) -> optim.Optimizer:
        matrices = {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1}
        rest = {"params": [p for p in parameters if p.dim() <= 1], "lr": 1e-4}
        return optim.AdamW([matrices, rest], lr=1e-2)

    run = train(Subject(optimizer=make)).sound()
    assert len(run.trainer.optimizers[0].param_groups) == 2


@row("several optimizers, automatic optimization")
def several(folder: Path) -> str:
    class Two(Subject):
        def configure_optimizers(self) -> Any:
            return [optim.SGD([p], lr=1e-2) for p in self.parameters()]

    return fails_without_us(RuntimeError, "multiple optimizers", Two())


class Slow(optim.SGD):
    """Moves weights back to slow ones, as Ranger21 does, once in many updates."""

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                slow = state.setdefault("lookahead_params", p.detach().clone())
                state["count"] = state.get("count", 0) + 1
                if state["count"] % 50 == 0:
                    p.data.copy_(slow.lerp_(p.detach(), 0.5))
        return loss


REFUSED: dict[str, tuple[Make, str]] = {
    "`LBFGS`": (lambda p: optim.LBFGS(p), "runs the model several times inside one step"),
    "Schedule-Free": (
        lambda p: schedulefree.AdamWScheduleFree(p, lr=1e-2), "keeps a second set of weights",
    ),
    "Lookahead": (
        lambda p: type("Lookahead", (optim.SGD,), {})(p, lr=1e-2), "keeps a second set of weights",
    ),
    "an optimizer with slow weights in its state": (
        lambda p: Slow(p, lr=1e-2), "moves weights back, as with a second copy",
    ),
    "SAM": (lambda p: type("SAM", (optim.SGD,), {})(p, lr=1e-2), "moves the weights itself"),
}  # fmt: skip

for _name, (_make, _reason) in REFUSED.items():
    refused(_name, f"optimizer: .*{_reason}", partial(Subject, optimizer=_make))
