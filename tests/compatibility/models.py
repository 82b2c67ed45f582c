"""Rows: what the weights belong to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import BackboneFinetuning, Callback
from lightning_models import Recorded, fit
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

from compatibility.rows import Table
from compatibility.subject import EVERY_KIND, Run, Subject, adamw, mlp, refuses, train
from hybrid_predict import UnsupportedSetupError

TABLE = Table("model")


def every_kind() -> Recorded:
    return Recorded(config=EVERY_KIND)


def names(run: Run) -> set[str]:
    return run.predicted


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


@TABLE.row(
    "tied weights",
    "`head.weight = embedding.weight`",
    note="one parameter, an embedding",
)
def tied(folder: Path) -> None:
    run = train(Subject(Tokens(tied=True)), plugin=every_kind()).sound()
    assert names(run) == {"net.table.weight", "net.inner.weight", "net.inner.bias"}
    assert run.model.net.head.weight is run.model.net.table.weight


@TABLE.row("frozen layers", "`layer.requires_grad_(False)`", note="left alone")
def frozen(folder: Path) -> None:
    body = mlp()
    body[0].requires_grad_(False)
    kept = body[0].weight.clone()
    run = train(Subject(body)).sound()
    assert names(run) == {"net.2.weight"}
    assert torch.equal(body[0].weight, kept)


@TABLE.row(
    "low-rank adapters",
    "frozen matrices with trained factors",
    note="both factors are hidden matrices; where the network goes on frozen none is the head",
    proof="model/test_kinds.py"
    "::test_the_head_is_sought_among_trained_matrices_unless_the_network_goes_on_frozen",
)
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
    run = train(Subject(body)).sound()
    assert names(run) == {f"net.{k}.{part}.weight" for k in (0, 2) for part in ("down", "up")}


def unfreezes(folder: Path) -> None:
    class Unfreeze(Callback):
        def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
            if trainer.current_epoch == 3:
                module.net[0].requires_grad_(True)

    body = mlp()
    body[0].requires_grad_(False)
    kept = body[0].weight.clone()
    subject = Subject(body, optimizer=lambda p: adamw(p))
    run = train(subject, [Unfreeze()], max_epochs=6, limit_train_batches=6).sound()
    assert names(run) == {"net.0.weight", "net.2.weight"}
    first = [r.gradients.alignments for r in run.plugin.records if r.gradients and r.step < 12]
    assert not any("net.0.weight" in alignments for alignments in first)
    assert not torch.equal(body[0].weight, kept)


TABLE.add(
    "layers unfrozen on the way", "`requires_grad_(True)` after some epochs", unfreezes,
    note="corrected and predicted from their next full step on",
)  # fmt: skip


@TABLE.row(
    "`BackboneFinetuning`",
    "`callbacks=[BackboneFinetuning(...)]`",
    note="parameters added to the optimizer later are corrected and predicted from then on",
)
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
    callback = BackboneFinetuning(unfreeze_backbone_at_epoch=3)
    run = train(model, [callback], max_epochs=6, limit_train_batches=6).sound()
    assert names(run) == {f"{n}.weight" for n in ("top.0", "top.2", "net.0", "net.2", "net.4")}
    first = [r.gradients.alignments for r in run.plugin.records if r.gradients and r.step < 12]
    assert not any("net.0.weight" in alignments for alignments in first)
    assert not torch.equal(model.net[2].weight, before)


@TABLE.row(
    "batch norm and dropout",
    "`BatchNorm1d`, `Dropout`",
    note="statistics of an undone step are put back",
    proof="integrations/test_lightning_safety.py"
    "::test_a_broken_batch_right_after_predicted_steps_leaves_no_trace",
)
def batch_norm(folder: Path) -> None:
    train(Subject()).sound()
    train(Subject(), plugin=every_kind()).sound()


class Excited(nn.Module):
    """A residual block whose channels are weighed by what is in them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(width, width, 3, padding=1), nn.GroupNorm(2, width), nn.Mish(),
            nn.Conv1d(width, width, 3, padding=1), nn.GroupNorm(2, width),
        )  # fmt: skip
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool1d(1), nn.Conv1d(width, 4, 1), nn.Mish(), nn.Conv1d(4, width, 1),
            nn.Sigmoid(),
        )  # fmt: skip
        self.end = nn.Mish()

    def forward(self, x: Tensor) -> Tensor:
        found = self.body(x)
        return self.end(x + self.squeeze(found) * found)


@TABLE.row(
    "squeeze-excitation residual net, `GroupNorm`, `Mish`",
    "blocks of convolutions beside the identity, weighed by a gate",
    note="convolutions and both layers of each gate are hidden matrices",
)
def squeeze_excitation(folder: Path) -> None:
    body = nn.Sequential(
        nn.Unflatten(1, (1, 8)), nn.Conv1d(1, 8, 3, padding=1), Excited(8), Excited(8),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 1),
    )  # fmt: skip
    run = train(Subject(body)).sound()
    gates = {f"net.{k}.squeeze.{j}.weight" for k in (2, 3) for j in (1, 3)}
    inner = {f"net.{k}.body.{j}.weight" for k in (2, 3) for j in (0, 3)}
    assert names(run) == {"net.1.weight", *inner, *gates}


@TABLE.row(
    "`spectral_norm`",
    "`parametrizations.spectral_norm(layer)`",
    note="the underlying matrix is corrected and predicted",
)
def spectral_norm(folder: Path) -> None:
    body = mlp()
    body[2] = parametrizations.spectral_norm(body[2])
    run = train(Subject(body)).sound()
    assert "net.2.parametrizations.weight.original" in names(run)


class Symmetric(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).mT


@TABLE.row(
    "parametrizations",
    "`parametrize.register_parametrization(...)`",
    note="the underlying matrix is corrected and predicted",
)
def parametrized(folder: Path) -> None:
    body = mlp()
    parametrize.register_parametrization(body[2], "weight", Symmetric())
    body[0] = parametrizations.weight_norm(body[0])
    run = train(Subject(body)).sound()
    assert "net.2.parametrizations.weight.original" in names(run)
    assert torch.equal(body[2].weight, body[2].weight.mT)


def lazy() -> nn.Module:
    return nn.Sequential(
        nn.LazyLinear(16), nn.Tanh(), nn.LazyLinear(16), nn.Tanh(), nn.LazyLinear(1)
    )


@TABLE.row(
    "lazy modules",
    "`nn.LazyLinear(...)`, after Lightning's sanity check or a forward pass",
)
def lazy_modules(folder: Path) -> None:
    body = lazy()
    body(torch.zeros(16, 8))
    run = train(Subject(body)).sound()
    assert names(run) == {"net.0.weight", "net.2.weight"}
    run = train(Subject(lazy())).sound()
    assert names(run) == {"net.0.weight", "net.2.weight"}


@TABLE.row(
    "lazy modules that no forward pass has seen",
    "`nn.LazyLinear(...)`, `num_sanity_val_steps=0`",
    outcome="UnsupportedSetupError",
    note="run one batch through the model before `fit`",
)
def lazy_unseen(folder: Path) -> None:
    refuses(UnsupportedSetupError, "initialised.*one batch", Subject(lazy()),
            num_sanity_val_steps=0)  # fmt: skip


@TABLE.row(
    "sparse embedding gradients",
    "`nn.Embedding(sparse=True)` with `SparseAdam` or `SGD`",
    note="moved by predicted steps only if embeddings are given a predictor, and then densely",
)
def sparse(folder: Path) -> None:
    body = Tokens(sparse=True)
    body.inner.requires_grad_(False)
    body.head.requires_grad_(False)

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SparseAdam([body.table.weight], lr=1e-2)

    run = train(Subject(body, optimizer), plugin=every_kind()).sound()
    assert names(run) == {"net.table.weight"}
    train(Subject(Tokens(sparse=True), lambda p: torch.optim.SGD(p, lr=1e-2))).sound()


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.randn(8, 8, dtype=torch.complex64) / 4)
        self.out = mlp()

    def forward(self, x: Tensor) -> Tensor:
        return self.out((x.to(torch.complex64) @ self.mix).abs())


@TABLE.row(
    "complex parameters",
    "`nn.Parameter(torch.randn(8, 8, dtype=torch.complex64))`",
    note="trained as always",
)
def complex_parameters(folder: Path) -> None:
    for plugin in (Recorded(), every_kind()):
        run = train(Subject(Complex()), plugin=plugin).sound()
        assert "net.mix" not in names(run)
        assert "net.out.2.weight" in names(run)


@TABLE.row("parameters without elements", "`nn.Linear(5, 0)`", note="nothing happens to them")
def empty(folder: Path) -> None:
    class WithEmpty(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.none = mlp(), nn.Linear(8, 1)
            self.none.weight = nn.Parameter(torch.empty(0, 8))
            self.none.bias = nn.Parameter(torch.empty(0))

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x) + self.none(x).sum(1, keepdim=True)

    run = train(Subject(WithEmpty())).sound()
    assert names(run) == {"net.body.0.weight", "net.body.2.weight"}
    train(Subject(WithEmpty()), plugin=every_kind()).sound()


@TABLE.row(
    "parameters without gradient",
    "a parameter that the loss does not depend on",
    note="nothing happens to it",
)
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
    assert not any("unused" in name for name in names(run))
    assert torch.equal(body.unused.weight, kept)


@TABLE.row(
    "layers skipped at random",
    "stochastic depth",
    note="a layer that a step skips is moved by predicted steps, and not updated, as always",
)
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


@TABLE.row(
    "`torch.compile`d inner module",
    "`self.net = torch.compile(net)`",
    note="predicted steps cause no recompilation",
)
def compiled(folder: Path) -> None:
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    counts = []
    for plugin in (None, Recorded()):
        graphs.clear()
        torch._dynamo.reset()
        subject = Subject(torch.compile(mlp(), backend=backend))
        if plugin is None:
            fit([], subject, max_steps=36)
        else:
            run = train(subject, plugin=plugin).sound()
            assert names(run) == {"net._orig_mod.0.weight", "net._orig_mod.2.weight"}
        counts.append(len(graphs))
    assert counts[0] == counts[1] > 0


@TABLE.row(
    "activation checkpointing",
    "`torch.utils.checkpoint.checkpoint(...)`",
    note="recomputation sees the same weights",
)
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

    runs = [train(Subject(Checkpointed(use))).sound() for use in (False, True)]
    ends = [dict(run.model.named_parameters()) for run in runs]
    assert all(torch.equal(ends[0][name], p) for name, p in ends[1].items())
