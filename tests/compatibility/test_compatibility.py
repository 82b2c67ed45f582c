"""Every row of the compatibility page is tested, and nothing that torch ships is missing."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
import torch
from torch.optim import lr_scheduler, swa_utils

from compatibility import loaders, loops, manual, models, optimizers, precision, savers, schedulers
from compatibility.rows import CHECKS

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
HEAD = "| set-up | what you write | outcome | note |"
MODULES = (loaders, loops, manual, models, optimizers, precision, savers, schedulers)


def outcomes() -> dict[str, str]:
    """Outcomes by set-up, from the tables of the page."""
    tables = PAGE.read_text().split(HEAD)[1:]
    lines = [line for table in tables for line in table.split("\n\n")[0].splitlines()[2:]]
    cells = [line.strip("|").split(" | ") for line in lines]
    assert len({row[0].strip() for row in cells}) == len(cells)
    return {row[0].strip(): row[2] for row in cells}


OUTCOMES = outcomes()


@pytest.mark.parametrize("name", OUTCOMES)
def test_row(name: str, tmp_path: Path) -> None:
    outcome = CHECKS[name](tmp_path)
    assert (outcome if isinstance(outcome, str) else "works") == OUTCOMES[name]


def test_every_check_has_a_row() -> None:
    assert CHECKS.keys() == OUTCOMES.keys()


def shipped(module: object, base: type) -> set[str]:
    """Public classes of a module that inherit from a base."""
    classes = {n: c for n, c in vars(module).items() if inspect.isclass(c) and n[0] != "_"}
    return {n for n, c in classes.items() if issubclass(c, base) and c is not base}


def test_everything_that_torch_ships_has_a_row() -> None:
    base = lr_scheduler.LRScheduler
    classes = shipped(lr_scheduler, base) | shipped(swa_utils, base) - {"LRScheduler"}
    classes |= shipped(torch.optim, torch.optim.Optimizer)
    assert classes <= {word for name in OUTCOMES for word in re.findall(r"`(\w+)", name)}
