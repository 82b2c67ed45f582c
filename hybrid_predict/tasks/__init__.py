"""Small, offline training tasks that show and check the forecasts at work."""

from hybrid_predict.tasks.base import Recipe, Task
from hybrid_predict.tasks.gpt import GPT_LARGE, GPT_SMALL

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        GPT_SMALL,
        GPT_LARGE,
    )
}
"""The benchmark's tasks by name."""

__all__ = ["TASKS", "Recipe", "Task"]
