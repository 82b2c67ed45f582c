"""Makes the optimizers of an arm from a model, the recipe of a task, and rates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial

from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from benchmarks import peers
from benchmarks.tasks import Recipe
from hybrid_predict.model.kinds import classify


class AroundOptimizers:
    """Several optimizers as one; committed runs have a digest of its name and arguments."""

    def __init__(self, optimizers: Optimizer | Sequence[Optimizer]) -> None:
        self.optimizers = (optimizers,) if isinstance(optimizers, Optimizer) else tuple(optimizers)

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def step(self) -> None:
        """Step every optimizer."""
        for optimizer in self.optimizers:
            optimizer.step()


@dataclass(frozen=True)
class Rates:
    """Learning rate of all parameters, and its factor for the hidden matrices."""

    base: float
    hidden: float = 1.0

    def times(self, what: str, factor: float) -> Rates:
        """Return rates with ``what``, ``base`` or ``hidden``, multiplied by a factor."""
        if what == "base":
            return Rates(self.base * factor, self.hidden)
        return Rates(self.base, self.hidden * factor)


Build = Callable[[nn.Module, Recipe, Rates, int], list[Optimizer]]
"""Function from model, recipe, rates and steps of the schedule to optimizers."""


def adamw(
    model: nn.Module, recipe: Recipe, rates: Rates, updates: int, *, beta1: float | None = None
) -> list[Optimizer]:
    """Return AdamW with the hidden matrices in a group of their own."""
    betas = (beta1 or recipe.betas[0], recipe.betas[1])
    hidden, rest = hidden_and_rest(model)
    groups = [
        {"params": members, "lr": rate}
        for members, rate in ((rest, rates.base), (hidden, rates.base * rates.hidden))
        if members
    ]
    return [AdamW(groups, betas=betas, weight_decay=recipe.weight_decay, fused=True)]


def _of_hidden(name: str, make: Callable[..., Optimizer]) -> Build:
    """Make a peer for the hidden matrices, and AdamW for the rest if there is any."""

    def build(model: nn.Module, recipe: Recipe, rates: Rates, updates: int) -> list[Optimizer]:
        hidden, rest = hidden_and_rest(model)
        peer = make(hidden, lr=rates.base * rates.hidden, weight_decay=recipe.weight_decay)
        if not rest:
            return [peer]
        decay = recipe.weight_decay
        adam = AdamW(rest, lr=rates.base, betas=recipe.betas, weight_decay=decay, fused=True)
        return [peer, adam]

    build.__qualname__ = name  # committed runs have a digest of it
    return build


muon = _of_hidden("muon", partial(peers.Muon, adjust_lr_fn="match_rms_adamw"))
normuon = _of_hidden("normuon", peers.normuon)
soap = _of_hidden("soap", peers.soap)
soap_muon = _of_hidden("soap_muon", peers.SOAPMuon)


def hidden_and_rest(model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """Return the trained hidden matrices, and the other trained parameters."""
    kinds = known_kinds(model)
    wanted = {n: p for n, p in model.named_parameters() if p.requires_grad}
    hidden: list[Tensor] = [p for name, p in wanted.items() if kinds[name] == "hidden"]
    return hidden, [p for name, p in wanted.items() if kinds[name] != "hidden"]


def known_kinds(model: nn.Module) -> dict[str, str]:
    """Return the kinds of a task's parameters by name, without a loss that shows them."""
    named = dict(model.named_parameters())
    kinds = classify(model)
    told: Mapping[str, str] = getattr(model, "kinds", {})
    found = {}
    for name, p in named.items():
        patterns = [kind for pattern, kind in told.items() if fnmatchcase(name, pattern)]
        found[name] = patterns[0] if patterns and kinds[id(p)] != "vector" else kinds[id(p)]
    return found
