"""Validations tell whether a run overfits; it then trains as without the plug-in, or ends."""

import json

import pytest
import torch
from loops import Bench, load, make_config, same_bits, save, spoil_with

from hybrid_predict import SavingsLedger
from hybrid_predict.errors import ConfigError
from hybrid_predict.policy.overfitting import OVERFITS

FALLING = [1.0, 0.6, 0.4, 0.3]
RISING = [0.5, 0.7, 0.9, 1.1, 1.3]
CONFIG = {"total_steps": 60, "warmup_steps": 2}


def validated(values, **changes):
    """A run whose loss falls, with a validation after every full step, and its records."""
    bench = Bench(make_config(**CONFIG, **changes))
    return bench, go_on(bench, values)


def go_on(bench, values):
    records = []
    for value in values:
        if bench.engine.done:
            break
        records.append(bench.step(spoil_with(offset=-0.1 * bench.taken)))
        bench.engine.observe_validation(value)
    return records


def test_a_run_that_overfits_is_trained_as_without_the_plugin():
    bench, records = validated(FALLING + RISING)
    assert any(record.predicted for record in records)
    ledger = bench.engine.ledger
    assert ledger.best == {"metric": "val_loss", "value": 0.3, "step": 5, "full_steps": 4}
    assert bench.engine.overfits
    (event,) = [event for event in ledger.events if event["reason"].startswith(OVERFITS)]
    assert "best val_loss 0.3 after 5 steps, 4 of them full" in event["reason"]
    corrected = ledger.corrected_steps
    assert [bench.step().predicted for _ in range(6)] == [0] * 6
    assert ledger.corrected_steps == corrected


def test_it_goes_on_when_validation_is_best_again():
    bench, _ = validated([*FALLING, *RISING, 0.1, 0.1, 0.1])
    assert not bench.engine.overfits
    assert "val_loss is the best again" in bench.reasons
    assert any(bench.step().predicted for _ in range(6))


def test_a_run_may_end_when_it_overfits():
    bench, records = validated(FALLING + 9 * RISING, on_overfit="stop")
    assert bench.engine.done and len(records) < len(FALLING + RISING)
    assert bench.engine.ledger.steps < 60
    for _ in range(4):  # a Trainer may go on to its min_epochs
        bench.engine.observe_validation(0.0)
    assert bench.engine.done


def test_a_run_may_not_end_for_overfitting_if_its_loss_is_not_watched():
    with pytest.raises(ConfigError, match="on_overfit: expected 'pause' or 'ignore'"):
        make_config(on_overfit="stop", watch_loss=False)


def test_it_can_be_ignored():
    ignoring, records = validated(FALLING + RISING, on_overfit="ignore")
    unseen = Bench(make_config(**CONFIG))
    unseen.train(len(records))
    assert any(record.predicted for record in records[-3:])
    assert same_bits(ignoring.trace(), unseen.trace())
    assert not ignoring.engine.overfits
    assert ignoring.engine.ledger.best["value"] == 0.3


@pytest.mark.parametrize("before", [3, 6, 9])
def test_a_saved_run_goes_on_alike(before):
    values = FALLING + RISING
    config = make_config(**CONFIG)
    whole, _ = validated(values)
    whole.train(3)
    part, _ = validated(values[:before])
    resumed = load(save(part), config)
    go_on(resumed, values[before:])
    resumed.train(3)
    assert same_bits(whole.trace(), resumed.trace())
    assert resumed.engine.overfits
    assert resumed.engine.ledger.events == whole.engine.ledger.events


def test_larger_values_may_be_better_and_another_metric_begins_anew():
    bench = Bench(make_config(**CONFIG))
    for value in (0.2, 0.8, 0.5, float("nan")):
        bench.step()
        bench.engine.observe_validation(torch.tensor(value), "accuracy", larger_is_better=True)
    assert bench.engine.ledger.best["value"] == pytest.approx(0.8)
    bench.engine.observe_validation(3.0)
    assert bench.engine.ledger.best["metric"] == "val_loss"
    text = "validations have another metric from now on, val_loss in place of accuracy"
    assert text in bench.reasons
    known = json.loads(json.dumps(bench.engine.ledger.summary()))
    assert SavingsLedger.from_dict(known) == bench.engine.ledger


@pytest.mark.parametrize("value", ["0.3", None, torch.zeros(2)])
def test_a_value_that_is_no_number_is_refused(value):
    bench = Bench(make_config(**CONFIG))
    with pytest.raises(ConfigError, match="value: expected a number"):
        bench.engine.observe_validation(value)
