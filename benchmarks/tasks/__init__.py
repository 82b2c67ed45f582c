"""Small training tasks of the benchmark; none needs a network."""

from benchmarks.tasks.base import Recipe, Task
from benchmarks.tasks.burgers import PINN
from benchmarks.tasks.control import PPO
from benchmarks.tasks.digits import CNN, ENCODER, MLP, RESNET
from benchmarks.tasks.images import AUTOENCODER, COORDINATES, INR
from benchmarks.tasks.language import GPT_SMALL, GRU, LORA
from benchmarks.tasks.tabular import TABULAR

FRESH = (RESNET, GRU, ENCODER, PPO, COORDINATES, TABULAR)
"""Tasks whose recipes were fixed before the plug-in was run on them; nothing is tuned on them."""

_KNOWN = (GPT_SMALL, CNN, INR, MLP, LORA, PINN, AUTOENCODER)

TASKS: dict[str, Task] = {task.name: task for task in (*_KNOWN, *FRESH)}

__all__ = ["FRESH", "TASKS", "Recipe", "Task"]
