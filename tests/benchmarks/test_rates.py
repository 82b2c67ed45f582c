"""Runs at shares of the best rate are made once, and their gain is read off plain runs."""

from dataclasses import replace

import pytest

from benchmarks import load
from benchmarks.plan import Selection, as_cell
from benchmarks.rates import plan as study
from benchmarks.rates import table
from benchmarks.rates.gains import COMPARED, Ratio, points
from benchmarks.tasks import TASKS

TASK = "mlp"


def cell(arm, length, share=0.1, seed=0):
    return study.cell(TASK, arm, seed, study.best_rates()[TASK] * share, length)


def row(arm, length, loss, full_steps=None, predicted=0, **where):
    made = cell(arm, length, **where)
    full = full_steps or round(TASKS[TASK].steps * length)
    counts = {"full_steps": full, "predicted_steps": predicted, "advance": predicted / full}
    return {**vars(made), **counts, "loss": loss}


ROWS = [
    *(row("plain", length, loss) for length, loss in ((0.5, 3.0), (1, 2.0), (2, 1.0), (4, 0.5))),
    *(row("corrected", length, loss) for length, loss in ((0.25, 3.0), (0.5, 2.0), (1, 1.0))),
    row("auto", 1, 1.0, full_steps=200, predicted=600),
    *(row("plain", length, loss, share=1.0) for length, loss in ((0.5, 1.5), (1, 1.0))),
]


def test_gain_is_the_plain_steps_for_the_same_loss_over_the_full_steps():
    steps = TASKS[TASK].steps
    found = {(p.arm, p.share): p for p in points(ROWS)}
    plain, corrected, auto = (found[arm, 0.1] for arm in COMPARED)
    assert (plain.gain, plain.beside_tuned.bound) == (Ratio(1.0), "≤")
    assert plain.beside_tuned.value == pytest.approx(0.5)
    assert (corrected.arm, corrected.share, corrected.full_steps) == ("corrected", 0.1, steps)
    assert corrected.gain.value == pytest.approx(2.0)
    assert corrected.beside_corrected == Ratio(1.0)
    assert (auto.arm, auto.full_steps, auto.predicted_steps) == ("auto", 200, 600)
    assert auto.gain.value == pytest.approx(2 * steps / 200)
    assert auto.beside_corrected.value == auto.beside_tuned.value == pytest.approx(steps / 200)


def test_untuned_arms_are_compared_with_tuned_plain_training():
    guessed = [
        vars(study.cell(TASK, arm, 0, rate, 1, study.GUESSED))
        | {"loss": 1.25, "full_steps": TASKS[TASK].steps, "predicted_steps": 0}
        for arm in ("prodigy", "plain")
        for rate in study.UNTUNED[arm]
    ]
    guessed[0]["loss"] = None
    lines = table.untuned([*ROWS, *guessed]).splitlines()[2:]
    assert [line.split(" | ")[1] for line in lines] == ["0.0003", "0.001", "1"]
    assert "0.71" in lines[0]
    assert "Prodigy" in lines[2]
    assert f"≤0.50 ({TASK})" in lines[2]


def test_the_plan_has_every_run_once():
    cells = list(study.RatesPlan(Selection(tasks=(TASK,), seeds=2)).keys({}))
    assert len(cells) == len(set(cells))
    places = len(study.SHARES) + len(study.STEADY_SHARES)
    rates = sum(map(len, study.UNTUNED.values()))
    assert len(cells) == 2 * (places * sum(map(len, study.LENGTHS.values())) + rates)
    fewer = study.RatesPlan(Selection(tasks=(TASK,), arms=("auto",), settings=("constant",)))
    assert {(c.arm, c.setting, c.decay) for c in fewer.keys({})} == {("auto", "constant", False)}


def test_every_committed_run_is_in_the_plan():
    def place(cell):
        return replace(cell, recipe="")

    planned = {place(cell) for cell in study.RatesPlan(Selection()).keys({})}
    assert planned == {place(as_cell(row)) for row in load("rates.jsonl")}
