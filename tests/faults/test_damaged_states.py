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
from hybrid_predict.integrations.lightning_start import KEY


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


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A checkpoint of a run with predicted steps."""
    path = tmp_path_factory.mktemp("whole") / "whole.ckpt"
    trainer, _ = fit([Ungated()], Net("cosine"), max_steps=CUT)
    trainer.save_checkpoint(path)
    found = torch.load(path, weights_only=True)
    assert found[KEY]["clock"]["ahead"]
    return found


class Tries(Callback):
    """Loads states at the start of training, and puts them aside that are not refused."""

    def __init__(self, plugin: HybridPredict, states: list[tuple[str, Any]]) -> None:
        self.plugin, self.states = plugin, states
        self.taken: list[tuple[str, Any]] = []
        self.wrong: list[str] = []

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.plugin._detach(trainer)
        for name, state in self.states:
            before = self._seen(trainer, pl_module)
            try:
                self.plugin.on_load_checkpoint(trainer, pl_module, {KEY: state})
                self.plugin.on_train_start(trainer, pl_module)
            except CheckpointError as error:
                check(error)
                self.plugin._detach(trainer)
                if not same_bits(self._seen(trainer, pl_module), before):
                    self.wrong.append(name)
            else:
                self.plugin._detach(trainer)
                self.plugin._clock.set_global_step(CUT)
                self.taken.append((name, state))
        trainer.should_stop = True

    @staticmethod
    def _seen(trainer: Any, module: Any) -> Any:
        random_states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
        optimizers = [one.state_dict() for one in trainer.optimizers]
        found = module.state_dict(), optimizers, trainer.global_step, random_states
        return copy.deepcopy(found)


@pytest.mark.filterwarnings("ignore")
def test_the_callback_refuses_its_state_or_goes_on(
    checkpoint: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    state = checkpoint[KEY]
    around = {name: state[name] for name in ("clock", "random")}
    states = [(name, {**damaged, "engine": state["engine"]}) for name, damaged in damages(around)]
    states += [(name, {**around, **damaged}) for name, damaged in damages({"engine": {}})]
    path = tmp_path / "any.ckpt"
    torch.save(checkpoint, path)
    plugin = Ungated()
    tries = Tries(plugin, states)
    fit([plugin, tries], Net("cosine"), max_steps=CUT + 10, ckpt_path=str(path))
    assert tries.wrong == []
    assert len(tries.taken) < len(states) / 3
    # The others have no part in training.
    for name, taken in [pair for pair in tries.taken if pair[0].startswith("clock")][::3]:
        torch.save({**checkpoint, KEY: taken}, path)
        _, model = fit([Ungated()], Net("cosine"), max_steps=CUT + 10, ckpt_path=str(path))
        assert all(p.isfinite().all() for p in model.parameters()), name
