"""States that are not whole are refused with a typed error, and change nothing."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_models import Net, Ungated, fit
from loops import Bench, make_config, same_bits

from hybrid_predict import FittedPredictor, SavingsLedger
from hybrid_predict.errors import CheckpointError
from hybrid_predict.integrations.lightning import KEY


def check(error: CheckpointError) -> None:
    """What was expected, what was found, and what to do."""
    assert re.search("expected .+, (got|but) .+\\. (Resume|With)", str(error), re.DOTALL), error


def wrong_states(state: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The state of an engine without one of its entries, and with an array of another shape."""
    group = "tensors", "groups", 0
    known = "policy", "forecasts", "confidences", 0, 2
    parts = (
        ("policy",),
        ("policy", "limits"),
        ("policy", "forecasts"),
        ("policy", "forecasts", "evidence"),
        known,
        (*known, "skill"),
    )
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
    assert state["policy"]["forecasts"]["confidences"][0][2]["latest"][0] == 10
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
@pytest.mark.parametrize("entry", ["clock", "random", "engine"])
def test_the_callback_loads_a_whole_state_or_nothing(entry: str, tmp_path: Path) -> None:
    path = tmp_path / "any.ckpt"
    trainer, _ = fit([Ungated()], Net("cosine"), max_steps=CUT)
    trainer.save_checkpoint(path)
    checkpoint = torch.load(path, weights_only=True)
    checkpoint[KEY][entry] = None
    torch.save(checkpoint, path)
    model = Net("cosine")
    with pytest.raises(CheckpointError) as caught:
        fit([Ungated()], model, max_steps=CUT + 10, ckpt_path=str(path))
    check(caught.value)
    assert same_bits(dict(model.state_dict()), checkpoint["state_dict"])
