"""Small training tasks of the benchmark; none needs a network."""

from benchmarks.tasks.autoencoder import AUTOENCODER
from benchmarks.tasks.base import Recipe, Task
from benchmarks.tasks.burgers import PINN
from benchmarks.tasks.control import PPO
from benchmarks.tasks.digits import CNN, MLP, RESNET
from benchmarks.tasks.encoder import ENCODER
from benchmarks.tasks.gpt import GPT_30M, GPT_124M, GPT_SMALL
from benchmarks.tasks.lora import LORA
from benchmarks.tasks.photograph import COORDINATES, INR
from benchmarks.tasks.tabular import TABULAR
from benchmarks.tasks.text import GRU

FRESH = (RESNET, GRU, ENCODER, PPO, COORDINATES, TABULAR)
"""Tasks whose recipes were fixed before the plug-in was run on them; nothing is tuned on them."""

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        GPT_SMALL,
        CNN,
        INR,
        MLP,
        LORA,
        PINN,
        AUTOENCODER,
        GPT_30M,
        GPT_124M,
        *FRESH,
    )
}

__all__ = ["FRESH", "TASKS", "Recipe", "Task"]
