"""The training loop that tests share, with and without an engine."""

import copy
import io
import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from cases import EVERY_KIND, MODELS, OPTIMIZERS
from torch import Tensor, nn

from hybrid_predict import HybridConfig, HybridEngine, StepRecord
from hybrid_predict.config import KINDS
from hybrid_predict.policy.confidence import Confidence, Skill
from hybrid_predict.tensors.random_states import random_states, set_random_states

Spoiler = Callable[[nn.Module, Tensor], Tensor]


def make_config(**changes: Any) -> HybridConfig:
    """A short run that predicts every kind, every other step from the fourth on.

    Batches are tiny here, so that corrected updates take more operations than full steps.
    """
    defaults: dict[str, Any] = {
        "total_steps": 30,
        "warmup_steps": 2,
        "cooldown_steps": 1,
        "max_overhead": 100.0,
        "predictors": EVERY_KIND,
    }
    if "speedup" not in changes:
        defaults.update(full_steps=1, predict_steps=1)
    return HybridConfig(**{**defaults, **changes})


def hurry(engine: HybridEngine, advance: float = 1.5) -> None:
    """Make an engine with ``speedup="auto"`` believe that forecasts of every kind last."""
    policy = engine._policy
    for kind in KINDS:
        for k in range(len(engine.optimizer.optimizers)):
            skill = Skill(count=2, mean=0.5)
            known = Confidence(skill=skill, best=0.8, persistence=1.0, measured=1, advance=advance)
            policy.confidences[kind, k] = known
    policy.decide()


def full_step(
    engine: HybridEngine | None,
    optimizers: Sequence[torch.optim.Optimizer],
    loss: Callable[[], Tensor],
    between: Callable[[], None] = lambda: None,
) -> StepRecord | None:
    """One full step, a plain one without an engine; ``between`` is called after backward."""
    if engine:
        engine.before_step()
    found = loss()
    found.backward()
    between()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    return engine.after_step(found) if engine else None


class Bench:
    """A seeded model with its optimizer and batches; with an engine if there is a configuration."""

    def __init__(
        self,
        config: HybridConfig | None = None,
        model: str = "mlp",
        optimizer: str = "adamw",
        device: str = "cpu",
    ) -> None:
        for seed in (random.seed, np.random.seed, torch.manual_seed):
            seed(7)
        self.case = MODELS[model]
        self.device = torch.device(device)
        self.model = self.case.build().to(self.device)
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = OPTIMIZERS[optimizer](trained)
        self.engine = HybridEngine(self.model, self.optimizer, config) if config else None
        self.taken = 0

    def loss(self) -> Tensor:
        inputs, targets = self.case.batch(self.taken)
        return self.case.loss(self.model, (inputs.to(self.device), targets.to(self.device)))

    def step(self, spoil: Spoiler | None = None, clip: bool = False) -> StepRecord | None:
        """One full step on the next batch."""
        if self.engine:
            self.engine.before_step()
        loss = self.loss()
        loss = spoil(self.model, loss) if spoil else loss
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.taken += 1
        return self.engine.after_step(loss) if self.engine else None

    def train(self, steps: int) -> list[StepRecord | None]:
        return [self.step() for _ in range(steps)]

    def finish(self) -> list[StepRecord]:
        """Full steps until the engine's run is done."""
        records = []
        while not self.engine.done:
            records.append(self.step())
        return records

    @property
    def reasons(self) -> list[str]:
        """Reasons of the ledger's events."""
        return [event["reason"] for event in self.engine.ledger.events]

    def kept(self) -> tuple[Any, Any]:
        """Copies of weights and buffers, and of the optimizer's state."""
        trace = self.trace()
        return trace["model"], trace["optimizer"]

    def trace(self) -> dict[str, Any]:
        """Copies of everything that training changes as it is, random states included."""
        every = {"remove_duplicate": False}
        named = [*self.model.named_parameters(**every), *self.model.named_buffers(**every)]
        return copy.deepcopy(
            {
                "model": {name: tensor.detach() for name, tensor in named},
                "optimizer": self.optimizer.state_dict(),
                "torch": torch.get_rng_state(),
                "numpy": np.random.get_state(legacy=False)["state"]["pos"],
                "python": random.getstate(),
            }
        )


def save(bench: Bench) -> bytes:
    """A run as it is, random states included."""
    buffer = io.BytesIO()
    state = {
        "model": bench.model.state_dict(),
        "optimizer": bench.optimizer.state_dict(),
        "engine": bench.engine.state_dict(),
        "random": random_states(),
        "taken": bench.taken,
    }
    torch.save(state, buffer)
    return buffer.getvalue()


def loaded(saved: bytes) -> dict[str, Any]:
    return torch.load(io.BytesIO(saved), weights_only=True)


def load(
    saved: bytes, config: HybridConfig | None, model: str = "mlp", optimizer: str = "adamw"
) -> Bench:
    """The run that was saved."""
    state, bench = loaded(saved), Bench(config, model, optimizer)
    bench.model.load_state_dict(state["model"])
    bench.optimizer.load_state_dict(state["optimizer"])
    if bench.engine:
        bench.engine.load_state_dict(state["engine"])
    set_random_states(state["random"])
    bench.taken = state["taken"]
    return bench


class Run:
    """A plain loop around any model, which notes how the weights move.

    Args:
        model: The model; its weights are seeded by the caller.
        optimizer: Its optimizer, or several.
        config: Of its engine; None for a run without one.
        loss: Takes the model and the number of the batch.

    Attributes:
        between: How far each weight moved right before each full step, by name.
        inside: How far each weight moved in it.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        config: HybridConfig | None,
        loss: Callable[[nn.Module, int], Tensor],
    ) -> None:
        self.model, self.optimizer, self.loss = model, optimizer, loss
        self.opened: dict[str, Tensor] = {}
        self.engine = HybridEngine(model, optimizer, config) if config else None
        self.records: list[Any] = []
        self.between: list[dict[str, Tensor]] = []
        self.inside: list[dict[str, Tensor]] = []

    def step(self) -> Any:
        start = weights(self.model)
        optimizers = self.optimizer if isinstance(self.optimizer, list) else [self.optimizer]
        self.records.append(full_step(self.engine, optimizers, self._loss))
        closed = weights(self.model)
        self.between.append({n: self.opened[n] - x for n, x in start.items()})
        self.inside.append({n: closed[n] - x for n, x in self.opened.items()})
        return self.records[-1]

    def _loss(self) -> Tensor:
        self.opened = weights(self.model)
        return self.loss(self.model, len(self.records))

    def train(self, steps: int) -> "Run":
        for _ in range(steps):
            self.step()
        return self

    def finish(self) -> "Run":
        while not self.engine.done:
            self.step()
        return self

    @property
    def moved_between(self) -> set[str]:
        """Names of the weights that moved right before the last full step."""
        return {name for name, moved in self.between[-1].items() if moved.any()}

    @property
    def moved_inside(self) -> set[str]:
        """Names of the weights that moved in the last full step."""
        return {name for name, moved in self.inside[-1].items() if moved.any()}

    @property
    def reasons(self) -> list[str]:
        """Reasons of the ledger's events."""
        return [event["reason"] for event in self.engine.ledger.events]


def spoil_with(factor: float = 1.0, offset: float = 0.0) -> Spoiler:
    """Makes a loss non-finite: a NaN factor spoils every gradient, an offset only the loss."""
    return lambda model, loss: loss * factor + offset


def spoil_one_gradient(model: nn.Module, loss: Tensor) -> Tensor:
    """Leaves the loss alone and puts one infinite entry into the last parameter's gradient."""
    *_, target = (p for p in model.parameters() if p.requires_grad)

    def hook(gradient: Tensor) -> Tensor:
        handle.remove()
        spoiled = gradient.clone()
        spoiled.view(-1)[0] = float("inf")
        return spoiled

    handle = target.register_hook(hook)
    return loss


NAN = float("nan")
INF = float("inf")

SPOILERS: dict[str, Spoiler] = {
    "nan-loss": spoil_with(factor=NAN),
    "inf-loss-only": spoil_with(offset=INF),
    "inf-loss": spoil_with(factor=INF),
    "one-gradient": spoil_one_gradient,
}


def same_bits(left: Any, right: Any) -> bool:
    """Whether two nested containers are equal, tensors bit for bit."""
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        return (
            left.shape == right.shape
            and left.dtype == right.dtype
            and left.device.type == right.device.type
            and (left.is_meta or torch.equal(_bytes(left), _bytes(right)))
        )
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same_bits(left[k], right[k]) for k in left)
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        pairs = zip(left, right, strict=False)
        return len(left) == len(right) and all(same_bits(x, y) for x, y in pairs)
    both_nan = left != left and right != right
    return type(left) is type(right) and (left == right or both_nan)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def net(*widths: int) -> nn.Sequential:
    """A seeded network of linear layers of these widths, with Tanh between them."""
    torch.manual_seed(0)
    layers = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*layers[:-1])


def normal(k: int, *shape: int) -> Tensor:
    """Normal numbers, the same for the same k."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(k))


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Copies of the parameters."""
    return {name: p.detach().clone() for name, p in model.named_parameters()}
