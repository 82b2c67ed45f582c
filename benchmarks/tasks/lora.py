"""Fine-tuning a pretrained byte GPT on another kind of text with low-rank adapters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

from torch import Tensor, nn

from benchmarks.tasks.base import Recipe, trained_state
from benchmarks.tasks.gpt import GPT_SMALL, ByteGPTTask
from benchmarks.tasks.stdlib_text import StdlibText
from benchmarks.tasks.text import TextTask
from hybrid_predict.errors import ConfigError

_VALIDATION_EVERY = 4
_BASE_RATE = 0.004  # the best of the grid of the GPT's own task


@lru_cache(maxsize=1)
def load_reference_text() -> StdlibText:
    """The English reference text behind Python's ``help()``, every fourth topic for validation."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise ConfigError(
            "pydoc_data.topics",
            "Python's reference text",
            "no such module",
            "Use a Python installation with its whole standard library.",
        ) from None
    parts = (bytearray(), bytearray())
    for k, name in enumerate(sorted(topics)):
        held_out = k % _VALIDATION_EVERY == _VALIDATION_EVERY - 1
        parts[held_out].extend(topics[name].encode())
    return StdlibText.of(*parts)


class LowRankLinear(nn.Module):
    r"""A frozen linear layer with a trained low-rank term (Hu et al., 2021, LoRA).

    .. math:: y = W x + b + \frac{\alpha}{r} B A x

    A starts as PyTorch starts a linear layer, B at zero.
    """

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)
        self.scale = alpha / rank

    def forward(self, x: Tensor) -> Tensor:
        """Outputs of shape [..., out] for inputs of shape [..., in]."""
        output: Tensor = self.base(x) + self.scale * self.up(self.down(x))
        return output


@dataclass(frozen=True, kw_only=True)
class LowRankTask(TextTask):
    """Adapt a GPT that knows Python's source text to Python's reference text.

    Every linear layer inside the blocks gets an adapter. The GPT itself is trained first, once per
    process.
    """

    kinds: ClassVar = {"*.up.weight": "hidden"}
    small: ClassVar = {"base_steps": 12, "validation_batches": 1}

    rank: int = 8
    alpha: float = 16.0
    base_steps: int = 600
    batch_size: int = 8
    validation_batches: int = 16

    def base(self) -> ByteGPTTask:
        """The task that the GPT is trained on first."""
        recipe = replace(GPT_SMALL.recipe, learning_rate=_BASE_RATE)
        return replace(GPT_SMALL, steps=self.base_steps, recipe=recipe)

    def net(self) -> nn.Module:
        model = self.base().net()
        model.load_state_dict(trained_state(self.base()))
        model.requires_grad_(False)
        for block in model.blocks:
            for name, layer in list(block.named_children()):
                if isinstance(layer, nn.Linear):
                    setattr(block, name, LowRankLinear(layer, self.rank, self.alpha))
        return model

    def window(self) -> int:
        return self.base().context

    def data(self) -> StdlibText:
        return load_reference_text()

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "base": self.base().to_dict()}


LORA = LowRankTask(
    name="lora",
    title="low-rank adapters on a byte GPT",
    steps=600,
    recipe=Recipe(learning_rate=1e-3, rates=(0.004, 0.008, 0.016, 0.032), weight_decay=0.0),
)
