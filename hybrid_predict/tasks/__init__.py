"""Small, offline training tasks that show and check the forecasts at work."""

from hybrid_predict.tasks.autoencoder import AUTOENCODER
from hybrid_predict.tasks.base import Recipe, Task
from hybrid_predict.tasks.burgers import PINN
from hybrid_predict.tasks.digits import CNN, MLP
from hybrid_predict.tasks.gpt import GPT_30M, GPT_124M, GPT_LARGE, GPT_SMALL
from hybrid_predict.tasks.lora import LORA
from hybrid_predict.tasks.photograph import INR

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        GPT_SMALL,
        GPT_LARGE,
        CNN,
        INR,
        MLP,
        LORA,
        PINN,
        AUTOENCODER,
        GPT_30M,
        GPT_124M,
    )
}
"""The benchmark's tasks by name."""

__all__ = ["TASKS", "Recipe", "Task"]
