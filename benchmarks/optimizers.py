"""Makes the optimizers of an arm from a model, the recipe of a task, and rates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from benchmarks.peers import libraries
from benchmarks.peers.dowg import DoWG
from benchmarks.peers.gpa import GPAAdamW
from benchmarks.peers.muon import Muon, SOAPMuon
from benchmarks.tasks import Recipe
from hybrid_predict.torch.kinds import classify


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


def muon(model: nn.Module, recipe: Recipe, rates: Rates, updates: int) -> list[Optimizer]:
    """Return Muon for the hidden matrices, AdamW for the rest."""
    return _split(model, recipe, rates, partial(Muon, adjust_lr_fn="match_rms_adamw"))


def normuon(model: nn.Module, recipe: Recipe, rates: Rates, updates: int) -> list[Optimizer]:
    """Return NorMuon for the hidden matrices, AdamW for the rest."""
    return _split(model, recipe, rates, libraries.normuon)


def soap(model: nn.Module, recipe: Recipe, rates: Rates, updates: int) -> list[Optimizer]:
    """Return SOAP for the hidden matrices, AdamW for the rest."""
    return _split(model, recipe, rates, libraries.soap)


def soap_muon(model: nn.Module, recipe: Recipe, rates: Rates, updates: int) -> list[Optimizer]:
    """Return SOAP-Muon for the hidden matrices, AdamW for the rest."""
    return _split(model, recipe, rates, SOAPMuon)


def kron(model: nn.Module, recipe: Recipe, rates: Rates, updates: int) -> list[Optimizer]:
    """Return Kron for the hidden matrices, AdamW for the rest."""
    return _split(model, recipe, rates, libraries.kron)


def _split(
    model: nn.Module, recipe: Recipe, rates: Rates, make: Callable[..., Optimizer]
) -> list[Optimizer]:
    """Return one optimizer for the hidden matrices, and AdamW for the rest if there is any."""
    hidden, rest = hidden_and_rest(model)
    peer = make(hidden, lr=rates.base * rates.hidden, weight_decay=recipe.weight_decay)
    if not rest:
        return [peer]
    other = AdamW(
        rest, lr=rates.base, betas=recipe.betas, weight_decay=recipe.weight_decay, fused=True
    )
    return [peer, other]


def ademamix(
    model: nn.Module,
    recipe: Recipe,
    rates: Rates,
    updates: int,
    *,
    alpha: float = 5.0,
    beta3: float = 0.999,
) -> list[Optimizer]:
    """Return AdEMAMix for all parameters; its slow average gains weight over the whole run."""
    betas = (*recipe.betas, beta3)
    peer = libraries.ademamix(
        trainable(model), rates.base, recipe.weight_decay, betas, alpha, updates
    )
    return [peer]


def gpa(model: nn.Module, recipe: Recipe, rates: Rates, updates: int) -> list[Optimizer]:
    """Return GPA-AdamW for all parameters."""
    peer = GPAAdamW(
        trainable(model),
        lr=rates.base,
        betas=recipe.betas,
        weight_decay=recipe.weight_decay,
        fused=True,
    )
    return [peer]


def free(model: nn.Module, recipe: Recipe, rates: Rates, updates: int) -> list[Optimizer]:
    """Return Schedule-Free AdamW for all parameters, with its own warm-up."""
    peer = libraries.schedule_free(
        trainable(model),
        lr=rates.base,
        betas=recipe.betas,
        weight_decay=recipe.weight_decay,
        warmup_steps=max(1, round(recipe.warmup_fraction * updates)),
    )
    return [peer]


def prodigy(model: nn.Module, recipe: Recipe, rates: Rates, updates: int) -> list[Optimizer]:
    """Return Prodigy for all parameters."""
    return _free_of_rates(model, recipe, rates, libraries.prodigy)


def d_adapt_adam(model: nn.Module, recipe: Recipe, rates: Rates, updates: int) -> list[Optimizer]:
    """Return D-Adaptation over AdamW for all parameters."""
    return _free_of_rates(model, recipe, rates, libraries.d_adapt_adam)


def mechanic(model: nn.Module, recipe: Recipe, rates: Rates, updates: int) -> list[Optimizer]:
    """Return Mechanic over AdamW for all parameters."""
    return _free_of_rates(model, recipe, rates, libraries.mechanic)


def _free_of_rates(
    model: nn.Module, recipe: Recipe, rates: Rates, make: Callable[..., Optimizer]
) -> list[Optimizer]:
    options = {"weight_decay": recipe.weight_decay, "betas": recipe.betas}
    return [make(trainable(model), rates.base, **options)]


def dowg(model: nn.Module, recipe: Recipe, rates: Rates, updates: int) -> list[Optimizer]:
    """Return DoWG for all parameters; it has no weight decay."""
    return [DoWG(trainable(model), rates.base)]


def trainable(model: nn.Module) -> list[Tensor]:
    """Return the parameters that require a gradient."""
    return [p for p in model.parameters() if p.requires_grad]


def hidden_and_rest(model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """Return the trained hidden matrices, and the other trained parameters."""
    kinds = classify(model)
    wanted: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
    hidden = [p for p in wanted if kinds[id(p)] == "hidden"]
    return hidden, [p for p in wanted if kinds[id(p)] != "hidden"]
