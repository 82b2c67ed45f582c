"""Every damaged entry of a saved state is refused with a typed error, or the run goes on whole."""

from __future__ import annotations

import copy
import logging
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from damage import damages
from lightning.pytorch.callbacks import Callback
from lightning_models import Net, Ungated, fit
from loops import Bench, make_config, same_bits

from hybrid_predict import FittedPredictor, HybridPredict
from hybrid_predict.errors import CheckpointError
from hybrid_predict.integrations.lightning_start import KEY

CONFIG = make_config(
    total_steps=80, cooldown_steps=2, predictors={"hidden": FittedPredictor(gated=False)}
)


@pytest.fixture(scope="module")
def saved() -> tuple[Bench, dict[str, Any]]:
    """A run with skill and an open window, and its state."""
    one = Bench(CONFIG)
    one.train(34)
    state = one.engine.state_dict()
    assert state["tensors"]["latest"]
    return one, state


def again(one: Bench) -> Bench:
    """A run with the same weights and optimizer, and an engine of its own."""
    two = Bench(CONFIG)
    two.model.load_state_dict(one.model.state_dict())
    two.optimizer.load_state_dict(copy.deepcopy(one.optimizer.state_dict()))
    two.taken = one.taken
    return two


def check(error: CheckpointError) -> None:
    """What was expected, what was found, and what to do."""
    assert re.search("expected .+, (got|but) .+\\. (Resume|With)", str(error), re.DOTALL), error


def numbers(bench: Bench) -> Any:
    return bench.model.state_dict(), bench.optimizer.state_dict()


PARTS = (
    "version", "names", "kinds", "undecided", "ranks", "total", "plain", "ledger", "tensors",
    "limits", "evidence",
)  # fmt: skip


def test_these_are_all_parts(saved: tuple[Bench, dict[str, Any]]) -> None:
    assert set(saved[1]) == set(PARTS)


SLOW = ("tensors",)


@pytest.mark.parametrize(
    "part", [pytest.param(x, marks=pytest.mark.slow if x in SLOW else ()) for x in PARTS]
)
def test_an_engine_refuses_its_state_or_goes_on(
    saved: tuple[Bench, dict[str, Any]], part: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "hybrid_predict")
    one, state = saved
    whole = copy.deepcopy(state)
    two, wrong, refused = again(one), [], 0
    own, before = two.engine.state_dict(), copy.deepcopy(numbers(two))
    for name, damaged in damages({part: state[part]}):
        given = {k: v for k, v in state.items() if k != part} | damaged
        try:
            two.engine.load_state_dict(given)
        except CheckpointError as error:
            refused += 1
            check(error)
            if not same_bits((two.engine.state_dict(), numbers(two)), (own, before)):
                wrong.append(f"{name}: not as it was")
            continue
        while two.taken < one.taken + 3 and not two.engine.done:
            two.step()
        two.engine.state_dict()
        assert str(two.engine.ledger)
        if not all(p.isfinite().all() for p in two.model.parameters()):
            wrong.append(f"{name}: weights")
        two = again(one)
    assert wrong == []
    assert refused
    assert same_bits(state, whole)  # loading does not write to it


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
