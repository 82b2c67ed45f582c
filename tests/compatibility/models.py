"""Rows: what the weights belong to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import BackboneFinetuning, Callback
from lightning_models import Recorded, fit, same, weights
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from compatibility.rows import row
from compatibility.subject import EPOCHS, Run, Subject, every_kind, mlp, refused, train


def predicts(body: nn.Module, *names: str, plugin: Recorded | None = None) -> Run:
    """A sound run whose predicted steps move these parameters alone."""
    run = train(Subject(body), plugin=plugin).sound()
    assert run.predicted == {f"net.{name}" for name in names}
    return run


class Tokens(nn.Module):
    """Reads inputs as tokens of a vocabulary of 11."""

    def __init__(self, tied: bool = False, sparse: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8, sparse=sparse)
        self.inner = nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        if tied:
            self.head.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        tokens = (x * 3).long().abs() % 11
        return self.head(torch.tanh(self.inner(self.table(tokens)).mean(1)))


@row("tied weights")
def tied(folder: Path) -> None:
    body, names = Tokens(tied=True), ("table.weight", "inner.weight", "inner.bias")
    run = predicts(body, *names, plugin=every_kind())
    assert run.model.net.head.weight is run.model.net.table.weight


@row("frozen layers")
def frozen(folder: Path) -> None:
    body = mlp()
    body[0].requires_grad_(False)
    kept = body[0].weight.clone()
    run = predicts(body, "2.weight")
    assert torch.equal(run.weights["net.0.weight"], kept)


@row("low-rank adapters")
def adapters(folder: Path) -> None:
    class Adapted(nn.Module):
        def __init__(self, base: nn.Linear) -> None:
            super().__init__()
            self.base = base.requires_grad_(False)
            self.down = nn.Linear(base.in_features, 4, bias=False)
            self.up = nn.Linear(4, base.out_features, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.base(x) + self.up(self.down(x))

    body = nn.Sequential(
        Adapted(nn.Linear(8, 16)), nn.Tanh(), Adapted(nn.Linear(16, 16)), nn.Tanh(),
        nn.Linear(16, 3).requires_grad_(False),
    )  # fmt: skip
    predicts(body, "0.down.weight", "0.up.weight", "2.down.weight", "2.up.weight")


def moved_early(run: Run) -> set[str]:
    """The parameters that predicted steps have moved in the first epochs."""
    records = [r for r in run.plugin.records if r.gradients and r.step < 12]
    return {name for record in records for name in record.gradients.alignments}


class Unfreeze(Callback):
    """Trains the first layer from the fourth epoch on."""

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        if trainer.current_epoch == 3:
            module.net[0].requires_grad_(True)


@row("layers unfrozen on the way")
def unfreezes(folder: Path) -> None:
    body = mlp()
    kept = body[0].requires_grad_(False).weight.clone()
    run = train(Subject(body), [Unfreeze()], **EPOCHS).sound()
    assert run.predicted == {"net.0.weight", "net.2.weight"}
    assert "net.0.weight" not in moved_early(run)
    assert not torch.equal(run.weights["net.0.weight"], kept)


@row("`BackboneFinetuning`")
def backbone(folder: Path) -> None:
    class WithBackbone(Subject):
        def __init__(self) -> None:
            super().__init__(mlp(outputs=16))
            self.backbone = self.net
            self.top = mlp()
            self.top[0] = nn.Linear(16, 16)

        def loss(self, batch: Any) -> Tensor:
            (x,) = batch
            return (self.top(self.backbone(x)) - x.sum(1, keepdim=True).sin()).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=1e-2)

    model = WithBackbone()
    before = model.net[2].weight.clone()
    run = train(model, [BackboneFinetuning(unfreeze_backbone_at_epoch=3)], **EPOCHS).sound()
    assert run.predicted == {f"{n}.weight" for n in ("top.0", "top.2", "net.0", "net.2", "net.4")}
    assert "net.0.weight" not in moved_early(run)
    assert not torch.equal(run.weights["net.2.weight"], before)


@row("batch norm and dropout")
def batch_norm(folder: Path) -> None:
    train(Subject(), plugin=every_kind()).sound()


@row("`spectral_norm`")
def spectral_norm(folder: Path) -> None:
    body = mlp()
    body[2] = parametrizations.spectral_norm(body[2])
    run = train(Subject(body)).sound()
    assert "net.2.parametrizations.weight.original" in run.predicted


def lazy() -> nn.Module:
    return nn.Sequential(
        nn.LazyLinear(16), nn.Tanh(), nn.LazyLinear(16), nn.Tanh(), nn.LazyLinear(1)
    )


@row("lazy modules")
def lazy_modules(folder: Path) -> None:
    seen = lazy()
    seen(torch.zeros(16, 8))
    for body in (seen, lazy()):
        predicts(body, "0.weight", "2.weight")


refused(
    "lazy modules that no forward pass has seen",
    "initialised.*one batch",
    lambda: Subject(lazy()),
    num_sanity_val_steps=0,
)


@row("sparse embedding gradients")
def sparse(folder: Path) -> None:
    body = Tokens(sparse=True)
    body.inner.requires_grad_(False)
    body.head.requires_grad_(False)

    subject = Subject(body, lambda p: torch.optim.SparseAdam([body.table.weight], lr=1e-2))
    run = train(subject, plugin=every_kind()).sound()
    assert run.predicted == {"net.table.weight"}
    train(Subject(Tokens(sparse=True), lambda p: torch.optim.SGD(p, lr=1e-2))).sound()


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.randn(8, 8, dtype=torch.complex64) / 4)
        self.out = mlp()

    def forward(self, x: Tensor) -> Tensor:
        return self.out((x.to(torch.complex64) @ self.mix).abs())


@row("complex parameters")
def complex_parameters(folder: Path) -> None:
    run = train(Subject(Complex()), plugin=every_kind()).sound()
    assert "net.mix" not in run.predicted
    assert "net.out.2.weight" in run.predicted


@row("parameters without gradient")
def unused(folder: Path) -> None:
    class WithUnused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.unused = mlp(), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x)

    body = WithUnused()
    kept = body.unused.weight.clone()
    run = train(Subject(body), plugin=every_kind()).sound()
    assert not any("unused" in name for name in run.predicted)
    assert torch.equal(run.weights["net.unused.weight"], kept)


@row("layers skipped at random")
def skipped(folder: Path) -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
            self.out, self.calls = nn.Linear(8, 1), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += self.training
            for k, layer in enumerate(self.layers):
                x = x if k and self.calls % 3 == k else torch.tanh(layer(x))
            return self.out(x)

    train(Subject(Deep())).sound()


@row("`torch.compile`d inner module")
def compiled(folder: Path) -> None:
    def body(graphs: list[Any]) -> Any:
        def backend(graph: Any, inputs: Any) -> Any:
            graphs.append(graph)
            return graph.forward

        torch._dynamo.reset()
        return torch.compile(mlp(), backend=backend)

    plain: list[Any] = []
    hybrid: list[Any] = []
    fit([], Subject(body(plain)), max_steps=36)
    predicts(body(hybrid), "_orig_mod.0.weight", "_orig_mod.2.weight")
    assert len(plain) == len(hybrid) > 0


@row("activation checkpointing")
def recomputed(folder: Path) -> None:
    class Checkpointed(nn.Module):
        def __init__(self, use: bool) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.body, self.use = mlp(), use

        def forward(self, x: Tensor) -> Tensor:
            if not self.use:
                return self.body(x)
            return checkpoint(self.body, x, use_reentrant=False)

    left, right = (train(Subject(Checkpointed(use))).sound().model for use in (False, True))
    assert same(weights(left), weights(right))
