"""Digests of what a result depends on: its recipe, and the code that made it."""

from __future__ import annotations

import ast
import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

import hybrid_predict
from benchmarks.arms import ARMS, Arm
from benchmarks.tasks import Task
from hybrid_predict.forecast.predictors import make_predictor
from hybrid_predict.updates import make_update

_ASIDE = {"audit", "cli", "demo", "errors.py", "functional", "integrations", "runs"}
"""Folders and files of the package that no result depends on."""


def recipe_digest(task: Task, arm: Arm) -> str:
    """Return 12 hexadecimal digits over task and arm, without learning rates."""
    described = task.to_dict()
    for name in ("learning_rate", "rates"):  # a cell names the rate that it uses
        described["recipe"].pop(name)
    plain: dict[str, Any] = {"task": described, "arm": arm.describe()}
    if (config := arm.config(task.steps)) is not None:
        updates = {kind: make_update(u) for kind, u in config.updates.items()}
        predictors = {kind: make_predictor(p) for kind, p in config.chosen_predictors.items()}
        plain["plugin"] = [config.to_dict(), repr(updates), repr(predictors)]
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:12]


def code_digest(arm: str) -> str:
    """Return 12 hexadecimal digits over the code that an arm runs, and the version of torch.

    Comments do not count.
    """
    return _digest(plugin=ARMS[arm].plugin is not None)


@lru_cache
def _digest(*, plugin: bool) -> str:
    digest = hashlib.sha256(torch.__version__.encode())
    here = Path(__file__).parent
    package = Path(hybrid_predict.__file__).parent
    sources = [here / "optimizers.py", here / "train.py", *sorted((here / "tasks").rglob("*.py"))]
    for path in sorted(package.rglob("*.py")) if plugin else ():
        if not _ASIDE & set(path.relative_to(package).parts):
            sources.append(path)
    for path in sources:
        code = ast.dump(ast.parse(path.read_text("utf-8")))
        digest.update(f"{path.name}{code}".encode())
    return digest.hexdigest()[:12]
