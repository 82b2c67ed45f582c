"""States that are not whole are refused with a typed error, and change nothing."""

from __future__ import annotations

import copy
import logging
import random
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from damage import damages
from lightning.pytorch.callbacks import Callback
from lightning_models import Net, Ungated, fit
from loops import Bench, make_config, same_bits

from hybrid_predict import FittedPredictor, HybridPredict, SavingsLedger
from hybrid_predict.errors import CheckpointError
from hybrid_predict.integrations.lightning import KEY


def check(error: CheckpointError) -> None:
    """What was expected, what was found, and what to do."""
    assert re.search("expected .+, (got|but) .+\\. (Resume|With)", str(error), re.DOTALL), error


def wrong_states(state: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The state of an engine without one of its entries, and with an array of another shape."""
    group = "tensors", "groups", 0
    known = "policy", "confidences", 0, 2
    parts = ("policy",), ("policy", "limits"), ("policy", "evidence"), known, (*known, "skill")
    for path in ((), ("tensors",), *parts, group, (*group, "windows", 0)):
        for name in part_of(state, path):
            wrong = copy.deepcopy(state)
            del part_of(wrong, path)[name]
            yield wrong
    for name in {field.name for field in fields(SavingsLedger)} - {"startup_seconds"}:
        yield {**state, "ledger": {k: v for k, v in state["ledger"].items() if k != name}}
    wrong = copy.deepcopy(state)
    wrong["tensors"]["groups"][0]["average"][0] = torch.zeros(3, 5)
    yield wrong


def part_of(state: Any, path: tuple[Any, ...]) -> Any:
    return part_of(state[path[0]], path[1:]) if path else state


def test_an_engine_loads_a_whole_state_or_nothing() -> None:
    bench = Bench(make_config(total_steps=80, predictors={"hidden": FittedPredictor(gated=False)}))
    bench.train(34)
    state = bench.engine.state_dict()
    assert state["policy"]["confidences"][0][2]["latest"][0] == 10
    assert state["tensors"]["groups"][0]["windows"][0]["forecast"]
    whole = copy.deepcopy((state, bench.model.state_dict(), bench.optimizer.state_dict()))
    for wrong in wrong_states(state):
        with pytest.raises(CheckpointError) as caught:
            bench.engine.load_state_dict(wrong)
        check(caught.value)
        left = bench.engine.state_dict(), bench.model.state_dict(), bench.optimizer.state_dict()
        assert same_bits(left, whole)


CUT = 20
"""Full steps before the checkpoint."""


@pytest.mark.filterwarnings("ignore")
def test_the_callback_loads_a_whole_state_or_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    path = tmp_path / "any.ckpt"
    trainer, _ = fit([Ungated()], Net("cosine"), max_steps=CUT)
    trainer.save_checkpoint(path)
    checkpoint = torch.load(path, weights_only=True)
    parts = {name: checkpoint[KEY][name] for name in ("clock", "random")}
    broken = {"clock": ("removed", "None", "a string", "a tensor"), "random.0.": ("removed",)}
    damaged = [
        (name, {**state, "engine": checkpoint[KEY]["engine"]})
        for name, state in damages(parts)
        if any(name.startswith(part) and name.endswith(how) for part, how in broken.items())
    ]
    damaged += [(n, {**parts, **state}) for n, state in damages({"engine": {}})]
    plugin = Ungated()
    tries = Tries(plugin, damaged)
    fit([plugin, tries], Net("cosine"), max_steps=CUT + 10, ckpt_path=str(path))
    assert [name for name, _ in damaged if name not in tries.refused] == []
    assert len(damaged) > 50
    assert plugin.ledger.steps == CUT + 10


class Tries(Callback):
    """Loads states at the start of training, and counts those that are refused without a trace."""

    def __init__(self, plugin: HybridPredict, states: list[tuple[str, Any]]) -> None:
        self.plugin, self.states = plugin, states
        self.refused: list[str] = []

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        whole: dict[str, Any] = {}
        self.plugin.on_save_checkpoint(trainer, pl_module, whole)
        self.plugin._end(trainer, "stopped")
        before = self._seen(trainer, pl_module)
        for name, state in self.states:
            try:
                self.plugin.on_load_checkpoint(trainer, pl_module, {KEY: state})
                self.plugin.on_train_start(trainer, pl_module)
            except CheckpointError as error:
                check(error)
                if same_bits(self._seen(trainer, pl_module), before):
                    self.refused.append(name)
            self.plugin._end(trainer, "stopped")
        self.plugin.on_load_checkpoint(trainer, pl_module, whole)
        self.plugin.on_train_start(trainer, pl_module)

    @staticmethod
    def _seen(trainer: Any, module: Any) -> Any:
        random_states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
        optimizers = [one.state_dict() for one in trainer.optimizers]
        found = module.state_dict(), optimizers, trainer.global_step, random_states
        return copy.deepcopy(found)
