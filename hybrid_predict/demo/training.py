"""A byte-level GPT on the standard library's source text, trained by Lightning: the demo's task."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from time import thread_time
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from hybrid_predict.accounts.clock import Clock
from hybrid_predict.config import HybridConfig
from hybrid_predict.demo.byte_gpt import ByteGPT, ByteGPTConfig
from hybrid_predict.demo.schedule import linear_schedule
from hybrid_predict.demo.text import StdlibText, sample_batch, validation_batches
from hybrid_predict.errors import ConfigError
from hybrid_predict.model.kinds import hidden_and_rest
from hybrid_predict.runs.runtime import interruptible

if TYPE_CHECKING:
    import lightning.pytorch as pl

Batch = tuple[Tensor, Tensor]
OnStep = Callable[[int, float], None]


@dataclass(frozen=True, kw_only=True)
class DemoRecipe:
    """What is trained and how, the same for every arm of the demo.

    Args:
        layers: Decoder blocks.
        heads: Attention heads.
        width: Width of the residual stream.
        context: Bytes in a window.
        batch_size: Windows in a batch.
        steps: Steps of the ``full`` arm, at least 20.
        learning_rate: Peak learning rate of AdamW.
        betas: AdamW's decay rates.
        weight_decay: AdamW's weight decay, on all parameters.
        gradient_clip: Norm that gradients are clipped to.
        warmup_fraction: Share of the schedule in which the learning rate rises linearly; then it
            falls linearly to zero.
        validation_windows: Windows behind the final validation loss.
        curve_windows: Windows behind each point of the validation curve.
        curve_points: Points of the validation curve.

    Raises:
        ConfigError: If a value is out of range.
    """

    layers: int = 3
    heads: int = 2
    width: int = 64
    context: int = 64
    batch_size: int = 32
    steps: int = 1800
    learning_rate: float = 0.0113
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.1
    gradient_clip: float = 1.0
    warmup_fraction: float = 0.05
    validation_windows: int = 2048
    curve_windows: int = 256
    curve_points: int = 8

    def __post_init__(self) -> None:
        if self.steps < 20:
            raise ConfigError("steps", "an integer, at least 20", self.steps)
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise ConfigError("learning_rate", "a finite number above 0", self.learning_rate)
        for name in ("validation_windows", "curve_windows"):
            if getattr(self, name) < self.batch_size:
                raise ConfigError(name, f"at least a batch of {self.batch_size}", self.batch_size)

    @classmethod
    def quick(cls) -> DemoRecipe:
        """A third of the steps, their own best rate, a quarter of the validation windows."""
        return cls(steps=600, learning_rate=0.008, validation_windows=512)

    def to_dict(self) -> dict[str, Any]:
        """The recipe as plain data."""
        return {**asdict(self), "betas": list(self.betas)}


@dataclass(frozen=True)
class Arm:
    """One of the runs that are compared.

    Args:
        name: What results files and figures call it.
        steps: Steps of its schedule, the Trainer's ``max_steps``.
        speedup: The callback's speedup, 1 for corrected updates alone; None trains without it.
        hidden_factor: Multiplies the learning rate of the hidden matrices.
    """

    name: str
    steps: int
    speedup: float | None = None
    hidden_factor: float = 1.0

    @property
    def planned_full_steps(self) -> int:
        """Full steps if no predicted step is undone."""
        if self.speedup is None:
            return self.steps
        config = HybridConfig(speedup=self.speedup, total_steps=self.steps)
        return self.steps - Clock(config).planned


class TrainingBatches(IterableDataset[Batch]):
    """Random windows without end, the same ones for the same seed.

    Args:
        data: Training bytes, uint8 of shape [num_bytes].
        recipe: Gives the size of a batch.
        seed: Decides which windows are drawn.
    """

    def __init__(self, data: Tensor, recipe: DemoRecipe, seed: int) -> None:
        self._data = data
        self._recipe = recipe
        self._seed = seed

    def __iter__(self) -> Iterator[Batch]:
        """Draw from the start, whoever else draws random numbers."""
        generator = torch.Generator().manual_seed(self._seed)
        size, context = self._recipe.batch_size, self._recipe.context
        while True:
            yield sample_batch(self._data, size, context, generator)


def held_out_batches(text: StdlibText, recipe: DemoRecipe, windows: int) -> list[Batch]:
    """Batches of fixed, evenly spaced validation windows."""
    size = recipe.batch_size
    return validation_batches(text.val, size, recipe.context, windows // size)


@torch.no_grad()
def validation_loss(model: nn.Module, batches: Sequence[Batch]) -> float:
    """Mean cross-entropy per byte in nats; leaves the model as it was."""
    training = model.training
    model.eval()
    losses = [F.cross_entropy(model(x).flatten(0, 1), y.flatten()) for x, y in batches]
    model.train(training)
    return float(torch.stack(losses).mean())


def build_module(
    recipe: DemoRecipe, total_steps: int, seed: int, hidden_factor: float = 1.0
) -> pl.LightningModule:
    """An ordinary LightningModule, which knows nothing of the callback.

    Args:
        recipe: Model and optimizer.
        total_steps: Steps of the schedule.
        seed: Decides the initial weights.
        hidden_factor: Multiplies the learning rate of the hidden matrices.

    Returns:
        The module, freshly initialised; the global random state is left alone.
    """
    import lightning.pytorch as pl

    class StdlibGPT(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            shape = (recipe.layers, recipe.heads, recipe.width, recipe.context)
            names = ("layers", "heads", "width", "context")
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                self.model = ByteGPT(ByteGPTConfig(**dict(zip(names, shape, strict=True))))

        def forward(self, tokens: Tensor) -> Tensor:
            logits: Tensor = self.model(tokens)
            return logits

        def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
            tokens, targets = batch
            loss = F.cross_entropy(self(tokens).flatten(0, 1), targets.flatten())
            self.log("train_loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(
                _groups(self.model, recipe.learning_rate, hidden_factor),
                lr=recipe.learning_rate,
                betas=recipe.betas,
                weight_decay=recipe.weight_decay,
            )
            factor = linear_schedule(total_steps, recipe.warmup_fraction)
            scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
            return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

    return StdlibGPT()


def _groups(model: nn.Module, rate: float, hidden_factor: float) -> list[dict[str, Any]]:
    """One group of all parameters, or the hidden matrices in a group of their own."""
    if hidden_factor == 1.0:
        return [{"params": list(model.parameters())}]
    hidden, rest = hidden_and_rest(model)
    return [{"params": rest}, {"params": hidden, "lr": hidden_factor * rate}]


class Meter:
    """Counts full steps and the seconds in them, the validation curve left out.

    Seconds are processor time of the training thread, so that other work on the machine, which
    never meets all arms alike, does not count.

    Args:
        arm: The arm that runs.
        batches: What the validation curve is computed on.
        points: Points of the curve.
        on_step: Is told full steps and training loss at every tenth full step.
    """

    def __init__(self, arm: Arm, batches: list[Batch], points: int, on_step: OnStep) -> None:
        self._batches = batches
        self._every = max(1, math.ceil(arm.planned_full_steps / points))
        self._planned = arm.planned_full_steps
        self._on_step = on_step
        self._resumed = 0.0
        self.full_steps = 0
        self.seconds = 0.0
        self.curve: list[tuple[int, float]] = []

    def start(self, trainer: Any, module: Any) -> None:
        """Start the clock; hook ``on_train_start``."""
        self._resumed = thread_time()

    def after_batch(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
        """Count one full step; hook ``on_train_batch_end``."""
        self.seconds += thread_time() - self._resumed
        self.full_steps += 1
        if self.full_steps % self._every == 0 or self.full_steps == self._planned:
            self.curve.append((self.full_steps, validation_loss(module, self._batches)))
            if trainer.logger is not None:
                trainer.logger.log_metrics({"curve_val_loss": self.curve[-1][1]}, self.full_steps)
        if self.full_steps % 10 == 0:
            self._on_step(self.full_steps, float(outputs["loss"]))
        self._resumed = thread_time()


def train_arm(
    recipe: DemoRecipe,
    arm: Arm,
    seed: int,
    text: StdlibText,
    logger: Any,
    on_step: OnStep,
    log_dir: str | None = None,
) -> dict[str, Any]:
    """Train one arm from one seed with a Lightning Trainer.

    Args:
        recipe: What is trained.
        arm: The arm.
        seed: Decides initial weights and batches.
        text: Training and validation bytes.
        logger: The Trainer's logger, or None.
        on_step: Is told full steps and training loss at every tenth full step.
        log_dir: Where the callback's event log is written; None writes none.

    Returns:
        The run's entry of the results file.

    Raises:
        KeyboardInterrupt: If the user ended the run.
    """
    from lightning.pytorch.callbacks import LambdaCallback

    from hybrid_predict.integrations.lightning import HybridPredict

    module = build_module(recipe, arm.steps, seed, arm.hidden_factor)
    hybrid = (
        HybridPredict(speedup=arm.speedup, log_dir=log_dir) if arm.speedup is not None else None
    )
    curve_batches = held_out_batches(text, recipe, recipe.curve_windows)
    meter = Meter(arm, curve_batches, recipe.curve_points, on_step)
    watch = LambdaCallback(on_train_start=meter.start, on_train_batch_end=meter.after_batch)
    trainer = _trainer(recipe, arm, [watch] if hybrid is None else [hybrid, watch], logger)
    with interruptible():
        trainer.fit(module, DataLoader(TrainingBatches(text.train, recipe, seed), batch_size=None))
    val_loss = validation_loss(module, held_out_batches(text, recipe, recipe.validation_windows))
    ledger = hybrid.ledger.summary() if hybrid is not None else None
    return _entry(arm, seed, meter, trainer.global_step, val_loss, ledger)


def _entry(
    arm: Arm, seed: int, meter: Meter, steps: int, val_loss: float, ledger: dict[str, Any] | None
) -> dict[str, Any]:
    """What the results file holds of a run."""
    return {
        "arm": arm.name,
        "seed": seed,
        "full_steps": meter.full_steps,
        "predicted_steps": ledger["predicted_steps"] if ledger else 0,
        "undone_steps": ledger["undone_steps"] if ledger else 0,
        "steps": steps,
        "seconds": meter.seconds,
        "threads": torch.get_num_threads(),
        "seconds_per_full_step": meter.seconds / meter.full_steps,
        "overhead_fraction": ledger["overhead_fraction"] if ledger else None,
        "val_loss": val_loss,
        "curve": [list(point) for point in meter.curve],
        "ledger": ledger,
    }


def _trainer(recipe: DemoRecipe, arm: Arm, callbacks: list[pl.Callback], logger: Any) -> pl.Trainer:
    import lightning.pytorch as pl

    return pl.Trainer(
        max_steps=arm.steps,
        gradient_clip_val=recipe.gradient_clip,
        callbacks=callbacks,
        logger=logger or False,
        log_every_n_steps=max(1, min(50, arm.planned_full_steps // 10)),
        accelerator="cpu",
        devices=1,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
