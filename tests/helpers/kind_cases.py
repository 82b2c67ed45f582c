"""Networks with a loss, and the kinds of their matrices as the loss shows them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from cases import TiedLM
from torch import Tensor, nn

from hybrid_predict.model.cost import Watching
from hybrid_predict.model.kinds import classify, matrix_index, resolve
from hybrid_predict.model.uses import MatrixUses

Loss = Callable[[Any], Tensor]


def rows(n: int = 8, width: int = 6) -> Tensor:
    return torch.linspace(-1, 1, n * width).reshape(n, width)


def words() -> Tensor:
    return torch.arange(8).reshape(2, 4) % 11


class CountDecoder(nn.Module):
    """A decoder like scVI's: the output in a Sequential, a bare matrix, layers that are unused."""

    def __init__(self) -> None:
        super().__init__()
        self.px_decoder = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
        self.px_scale_decoder = nn.Sequential(nn.Linear(8, 12), nn.Softmax(-1))
        self.px_r_decoder, self.px_dropout_decoder = nn.Linear(8, 12), nn.Linear(8, 12)
        self.px_r = nn.Parameter(torch.zeros(12, 2))

    def forward(self, x: Tensor) -> Tensor:
        scale = self.px_scale_decoder(self.px_decoder(x))
        spread = F.linear(F.one_hot(torch.arange(len(x)) % 2, 2).float(), self.px_r)
        return scale.log() * spread.exp()


class Attending(nn.Module):
    """Attention whose fused path is taken, positions, and two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.where = nn.Parameter(torch.zeros(4, 8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.out, self.value = nn.Linear(8, 11), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.embed(x) + self.where
        h = h + self.attention(h, h, h, need_weights=False)[0]
        h = h + self.mlp(h)
        return self.out(h), self.value(h)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = nn.LSTM(6, 5, 2, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x.reshape(2, 4, 6))[0])


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.mu, self.logvar = nn.Linear(6, 8), nn.Linear(8, 2), nn.Linear(8, 2)
        self.decode, self.out = nn.Linear(2, 8), nn.Linear(8, 6)

    def loss(self, x: Tensor) -> Tensor:
        h = F.relu(self.encode(x))
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.ones_like(mu) * (logvar / 2).exp()
        divergence = (mu.square() + logvar.exp() - logvar).mean()
        return (self.out(F.relu(self.decode(z))) - x).square().mean() + divergence


class LowRank(nn.Module):
    """A frozen weight with a trained low-rank term beside it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(outputs, inputs), requires_grad=False)
        self.down, self.up = nn.Parameter(rows(2, inputs)), nn.Parameter(rows(outputs, 2))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight) + F.linear(F.linear(x, self.down), self.up)


def adapted(head: nn.Module) -> nn.Module:
    return nn.Sequential(LowRank(6, 8), nn.Tanh(), LowRank(8, 8), nn.Tanh(), head)


def normed() -> nn.Module:
    norm = nn.utils.parametrizations
    first, last = norm.spectral_norm(nn.Linear(6, 8)), norm.weight_norm(nn.Linear(8, 3))
    return nn.Sequential(first, nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), last)


def square(model: nn.Module) -> Tensor:
    return model(rows()).square().mean()


def of_words(model: nn.Module) -> Tensor:
    out = model(words())
    parts = out if isinstance(out, tuple) else (out,)
    return sum(o.square().mean() for o in parts)


def mlp(*widths: int) -> nn.Sequential:
    layers = (part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.Tanh()))
    return nn.Sequential(*layers)


def of_half_precision(model: nn.Module) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return square(model)


class Recomputed(nn.Module):
    """A part of the network is computed again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp(6, 8, 8)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        again = torch.utils.checkpoint.checkpoint
        return self.out(again(self.inner, x.requires_grad_(), use_reentrant=False))


def chain(**children: nn.Module) -> nn.Module:
    net = nn.Sequential()
    for name, child in children.items():
        net.add_module(name, child)
    return net


def two_outputs(first: nn.Module, second: nn.Module) -> nn.Module:
    return nn.ModuleDict({"trunk": mlp(6, 8, 8), "first": first, "second": second})


def of_outputs(*names: str) -> Loss:
    def loss(model: Any) -> Tensor:
        inner = model["trunk"](rows())
        return sum((model[name](inner).square().mean() for name in names), torch.zeros(()))

    return loss


def of_teacher(model: Any) -> Tensor:
    return (model["net"](rows()) - model["teacher"](rows())).square().mean()


def of_target(model: Any) -> Tensor:
    """A target from the network's outputs that no gradient goes through."""
    found = model["net"](rows())
    with torch.no_grad():
        target = model["other"](found)
    return (found - target).square().mean()


def frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(False)


@dataclass(frozen=True)
class KindCase:
    """A network, its loss, the names of all trained matrices that are not hidden, by kind."""

    build: Callable[[], nn.Module]
    head: list[str]
    loss: Loss = square
    embedding: list[str] = field(default_factory=list)


CASES = {
    "count decoder": KindCase(
        CountDecoder, ["px_dropout_decoder.weight", "px_r", "px_scale_decoder.0.weight"]
    ),
    "attention": KindCase(Attending, ["out.weight", "value.weight"], of_words, ["embed.weight"]),
    "tied": KindCase(TiedLM, [], of_words, ["embedding.weight"]),
    "lstm": KindCase(Recurrent, ["out.weight"]),
    "autoencoder": KindCase(Autoencoder, ["out.weight"], lambda net: net.loss(rows())),
    "adapters": KindCase(lambda: adapted(nn.Linear(8, 3)), ["4.weight"]),
    "normed weights": KindCase(normed, ["4.parametrizations.weight.original1"]),
    "half precision": KindCase(lambda: mlp(6, 8, 8, 3), ["4.weight"], of_half_precision),
    "checkpointing": KindCase(Recomputed, ["out.weight"]),
    "policy and value": KindCase(
        lambda: two_outputs(nn.Linear(8, 4), nn.Linear(8, 1)),
        ["first.weight", "second.weight"],
        of_outputs("first", "second"),
    ),
    "frozen head": KindCase(lambda: chain(net=mlp(6, 8, 8), head=frozen(nn.Linear(8, 3))), []),
    "teacher": KindCase(
        lambda: nn.ModuleDict({"net": mlp(6, 8, 3), "teacher": frozen(mlp(6, 8, 3))}),
        ["net.2.weight"],
        of_teacher,
    ),
    "a target without gradient": KindCase(
        lambda: nn.ModuleDict({"net": mlp(6, 8, 3), "other": frozen(nn.Linear(3, 3))}),
        ["net.2.weight"],
        of_target,
    ),
    "one matrix": KindCase(lambda: nn.Linear(6, 3), []),
}


def resolved(model: nn.Module, loss: Loss, after: bool = True) -> tuple[dict[str, str], list[str]]:
    """Kinds of the trained matrices by name, and what was not seen.

    The loss is observed before or after its backward pass.
    """
    index = matrix_index(model, {})
    uses = MatrixUses(model)
    with Watching(uses.see):
        value = loss(model)
        value.backward() if after else None
        uses.add(value)
        value.backward() if not after else None
    with_gradient = {id(p) for p in model.parameters() if p.grad is not None}
    kinds, unseen = resolve(classify(model), uses.findings, index, with_gradient)
    named = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
    by_name = {name: kinds[key] for key, name in named.items() if kinds[key] != "vector"}
    return by_name, sorted(named[key] for key in unseen)
