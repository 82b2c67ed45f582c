"""Rates are searched, runs are kept, and speedups are read off the plain runs of a width."""

from dataclasses import replace

import pytest

from benchmarks import load
from benchmarks.plan import Selection, as_cell
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
