"""Every row of the compatibility page is tested, and nothing that torch ships is missing."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning_models import SeededLoader, Ungated, fit, same, weights
from torch.optim import lr_scheduler, swa_utils

from compatibility import loaders, loops, manual, models, optimizers, precision, savers, schedulers
from compatibility.manual import Gan
from compatibility.rows import CHECKS
from hybrid_predict import HybridPredict

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


@pytest.mark.filterwarnings(
    "ignore:Using ModelCheckpoint with manual optimization", "ignore:The dirpath has changed"
)
def test_a_gan_resumes_bit_for_bit(tmp_path: Path) -> None:
    def run(folder: str, **more: object) -> tuple[HybridPredict, Gan]:
        plugin = Ungated()
        saver = ModelCheckpoint(tmp_path / folder, "{step}", every_n_train_steps=2, save_top_k=-1)
        _, model = fit([plugin, saver], Gan(), train=SeededLoader(40), max_steps=72, **more)
        return plugin, model

    plugin, model = run("whole")
    paths = sorted((tmp_path / "whole").glob("*.ckpt"), key=lambda p: int(p.stem.split("=")[1]))
    assert len(paths) > 20
    for path in paths[5:-2:12]:
        resumed, again = run(f"from {path.stem}", ckpt_path=str(path), seed=9)
        assert 0 < again.batches < model.batches
        assert same(weights(again), weights(model)), path.name
        assert resumed.ledger.full_steps == plugin.ledger.full_steps == 24
        rates = [[o.param_groups[0]["lr"] for o in m.trainer.optimizers] for m in (model, again)]
        assert rates[0] == rates[1]
