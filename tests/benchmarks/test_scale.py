"""Rates are searched, runs are kept, and speedups are read off the plain runs of a width."""

from dataclasses import replace

import pytest

from benchmarks import load
from benchmarks.plan import TUNING, TUNING_SEED, Selection, as_cell
from benchmarks.scale import plan as study
from benchmarks.scale import table
from benchmarks.scale.plan import PLAIN, UNBOUNDED, Case, ScalePlan, sized
from benchmarks.scale.plot import plot
from benchmarks.scale.table import points

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


def small(width):
    return replace(sized(width), batch_size=2, context=16, validation_batches=1, layers=1)


TOY = Case(32, 12, 2, ("corrected", "muon", UNBOUNDED), (8, 12))


@pytest.fixture(scope="module")
def rows():
    plan, done = ScalePlan(Selection(), (TOY,), small), {}
    while ready := plan.ready(done):
        done.update({cell: plan.work(cell) for cell in ready})
    return list(done.values())


def test_every_committed_run_is_in_the_plan():
    committed = {place(as_cell(row)): row for row in load("scale.jsonl")}

    class Done(dict):
        def __contains__(self, cell):
            return place(cell) in committed

        def __getitem__(self, cell):
            return committed[place(cell)]

    assert {place(cell) for cell in ScalePlan(Selection()).keys(Done())} == committed.keys()


def place(cell):
    return replace(cell, recipe="")


def test_a_case_has_plain_runs_of_three_lengths_and_every_arm_with_every_seed(rows):
    shown = [row for row in rows if row["setting"] != TUNING]
    wanted = {(PLAIN, t) for t in (8, 12, 24)} | {(arm, 12) for arm in TOY.arms}
    assert {(row["arm"], row["steps"]) for row in shown} == wanted
    assert len(shown) == 2 * len(wanted)
    assert {row["seed"] for row in shown} == {0, 1}
    assert {row["full_steps"] for row in shown if row["arm"] != PLAIN} == {8}
    assert {(row["width"], row["tokens"]) for row in rows} == {(32, 32)}


def test_rates_are_the_best_ones_tried_at_the_next_shorter_length(rows):
    trials = [row for row in rows if row["setting"] == TUNING]
    assert {row["seed"] for row in trials} == {TUNING_SEED}

    def best(arm, steps):
        tried = [row for row in trials if (row["arm"], row["steps"]) == (arm, steps)]
        assert 3 <= len(tried) <= study.TRIALS
        found = min(tried, key=lambda row: row["loss"])
        return found["rate"], found["hidden"]

    def used(arm, steps):
        return {
            (row["rate"], row["hidden"])
            for row in rows
            if (row["arm"], row["steps"], row["setting"]) == (arm, steps, "tuned")
        }

    assert used(PLAIN, 8) == {best(PLAIN, 8)}
    assert used(PLAIN, 12) == used(PLAIN, 24) == {best(PLAIN, 12)}
    # Of 12 steps eight are full ones.
    assert used("corrected", 12) == used(UNBOUNDED, 12) == {best("corrected", 12)}
    assert used("muon", 12) == {best("muon", 12)}
    assert {row["rate"] for row in trials if row["arm"] == "muon"} == {best(PLAIN, 8)[0]}


@pytest.mark.parametrize(
    ("losses", "best", "tried"),
    [
        ({0.5: 2, 1: 1, 2: 2}, 1, 3),
        ({0.5: 3, 1: 2, 2: 1, 4: 2}, 2, 4),
        ({0.5: 3, 1: 4, 2: 5, 0.25: 2, 0.125: 1}, 0.125, 5),
        ({0.5: float("inf"), 1: float("inf"), 2: 1, 4: float("inf")}, 2, 4),
    ],
)
def test_the_grid_moves_while_its_best_rate_is_at_an_end(losses, best, tried):
    seen = set()

    def known(factors):
        seen.update(factors)
        return [losses[factor] for factor in factors]

    assert study.least(known) == best
    assert seen == set(losses)
    assert len(seen) == tried


def row(arm, steps, seed, loss, full_steps=None, width=64):
    full = full_steps or (steps if arm == PLAIN else round(steps / 1.5))
    return {
        "task": "t", "setting": "tuned", "arm": arm, "seed": seed, "rate": 0.004, "hidden": 1.0,
        "decay": True, "steps": steps, "recipe": "r", "loss": loss, "full_steps": full,
        "predicted_steps": 0, "seconds": 1.0, "width": width, "parameters": 200_000,
        "tokens": 512, "code": "c",
    }  # fmt: skip


CURVE = {400: 4.0, 600: 3.0, 1200: 2.0, 2400: 1.0}


@pytest.mark.parametrize(
    ("loss", "value", "bound"),
    [(3.0, 1.5, ""), (0.5, 6.0, "≥"), (None, 1.0, "≤")],
)
def test_speedups_are_read_off_all_plain_runs_of_the_width(loss, value, bound):
    rows = [row(PLAIN, t, seed, y) for t, y in CURVE.items() for seed in (0, 1)]
    rows += [row("corrected", 600, seed, loss) for seed in (0, 1)]
    rows += [row(PLAIN, 600, seed, 0.0, width=32) for seed in (0, 1)]
    found = next(p for p in points(rows) if p.arm == "corrected")
    assert found.speedup.value == pytest.approx(value)
    assert (found.speedup.bound, found.speedup.seeds, len(found.rows)) == (bound, 2, 2)
    assert found.tokens == pytest.approx(400 * 512 / 200_000)


def test_tables_and_figure_show_every_arm(rows, tmp_path):
    assert table.plain_table(rows).count("\n| 32 ") == 3
    assert table.speedups_table(rows).count("\n| 32 | 12 |") == len(TOY.arms)
    assert "Not done yet: width 64 at T = 600" in table.source(rows)
    plot(rows).savefig(tmp_path / "scale.svg")
    assert (tmp_path / "scale.svg").stat().st_size > 0
