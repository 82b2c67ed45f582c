"""Rates are searched, runs are kept, and speedups are read off the plain runs of a width."""

import json
from dataclasses import replace
from functools import partial

import pytest

from benchmarks.arms import ARMS
from benchmarks.plan import TUNING, TUNING_SEED, Cell, as_cell
from benchmarks.scale import __main__ as program
from benchmarks.scale import sizes, sizes_table, study, table
from benchmarks.scale.plot import plot
from benchmarks.scale.study import PLAIN, UNBOUNDED, Case, Study, sized
from benchmarks.scale.table import points
from benchmarks.table import NONE
from hybrid_predict.runs.rows import Rows

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


def small(width, rows=2):
    return replace(sized(width, rows), context=16, validation_batches=1, layers=1)


TOY = Case(32, 12, 2, ("corrected", "muon", UNBOUNDED), (8, 12))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("scale") / "scale.jsonl"
    made = []
    Study(Rows(path, as_cell), made.append, small).run(TOY)
    return path, made


def test_a_case_has_plain_runs_of_three_lengths_and_every_arm_with_every_seed(trained):
    _, rows = trained
    shown = [row for row in rows if row["setting"] != TUNING]
    wanted = {(PLAIN, t) for t in (8, 12, 24)} | {(arm, 12) for arm in TOY.arms}
    assert {(row["arm"], row["steps"]) for row in shown} == wanted
    assert len(shown) == 2 * len(wanted)
    assert {row["seed"] for row in shown} == {0, 1}
    assert {row["full_steps"] for row in shown if row["arm"] != PLAIN} == {8}
    assert {(row["width"], row["tokens"]) for row in rows} == {(32, 32)}


def test_rates_are_the_best_ones_tried_at_the_next_shorter_length(trained):
    _, rows = trained
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
    seen = []

    def loss(factor):
        seen.append(factor)
        return losses[factor]

    assert study._least(loss) == best
    assert set(seen) == set(losses)
    assert len(set(seen)) == tried


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


def test_tables_and_figure_show_every_arm(trained, tmp_path):
    path, _ = trained
    rows = list(Rows(path, as_cell).done.values())
    assert table.plain_table(rows).count("\n| 32 ") == 3
    assert table.speedups_table(rows).count("\n| 32 | 12 |") == len(TOY.arms)
    assert "Not done yet: width 64 at T = 600" in table.source(rows)
    plot(rows).savefig(tmp_path / "scale.svg")
    assert (tmp_path / "scale.svg").stat().st_size > 0


@pytest.mark.slow
def test_costs_are_told_for_every_arm(monkeypatch):
    monkeypatch.setattr(study, "sized", small)
    (found,) = study.measure(widths=[32], rows=[2], blocks=2)
    assert found["tokens"] == 32
    counted = {arm: found[arm]["counted"] for arm in study.LOOPS if arm != PLAIN}
    assert 0 < counted["corrected"] <= counted["corrected-any-cost"]
    assert counted["muon"] is counted["normuon"] is None
    foretold = table.share(small(32).model(0), 32)
    assert counted["corrected-any-cost"] == pytest.approx(foretold, rel=0.05)
    shown = table.cost_table({"rows": [json.loads(json.dumps(found))]})
    assert "| 32 | 2 | 32 |" in shown


@pytest.mark.slow
def test_the_program_goes_on_where_it_was(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(program, "CASES", (replace(TOY, arms=("corrected",)),))
    monkeypatch.setattr(program, "Study", partial(Study, task=small))
    program.main(["runs", "--seeds", "1", "--folder", str(tmp_path)])
    assert "gpt-width-32, corrected, T = 12" in capsys.readouterr().out
    program.main(["runs", "plot", "--seeds", "1", "--folder", str(tmp_path)])
    assert capsys.readouterr().out == f"{tmp_path / 'scale.png'}\n"


TINY = sizes.TASKS[0].tiny()


@pytest.mark.parametrize("arm", ["plain", "hybrid", "muon"])
def test_a_long_run_that_is_stopped_goes_on_to_the_same_result(arm, tmp_path, monkeypatch):
    task = replace(TINY, steps=60)
    rate = task.recipe.learning_rate
    cell = Cell(task.name, "two rates", arm, 0, rate, 1.0, True, task.steps, "recipe")
    whole = sizes.trained(cell, task, tmp_path)
    assert list(tmp_path.iterdir()) == []

    class Stopped(Exception):
        pass

    def stop(state, path, save=sizes._save):
        save(state, path)
        raise Stopped

    monkeypatch.setattr(sizes, "_save", stop)
    stops = 0
    while True:
        try:
            again = sizes.trained(cell, task, tmp_path, every=17)
            break
        except Stopped:
            stops += 1
    assert stops == again["parts"] - 1 == (whole["full_steps"] - 1) // 17 > 1
    uneven = ("seconds", "parts")
    kept = [{k: v for k, v in row.items() if k not in uneven} for row in (whole, again)]
    assert kept[0] == kept[1]


def test_sizes_compare_arms_at_the_better_of_two_rates(tmp_path):
    made = []
    store = Rows(tmp_path / "sizes.jsonl", as_cell)
    sizes.Sizes(tmp_path / "unfinished", store, made.append).run(TINY, 1)
    plain = [row for row in made if row["arm"] == PLAIN]
    assert [row["rate"] for row in plain] == list(TINY.recipe.rates)
    best = min(plain, key=lambda row: row["loss"])["rate"]
    others = {row["arm"]: row["rate"] for row in made if row["arm"] != PLAIN}
    assert others == dict.fromkeys(sizes.COMPARED, best)
    sizes.Sizes(tmp_path / "unfinished", store, made.append).run(TINY, 1)
    assert len(made) == 2 + len(sizes.COMPARED)
    lines = sizes_table.table(made).splitlines()[2:]
    assert len(lines) == len(made)
    for line in lines:
        arm, gain, time = (line.split(" | ")[i] for i in (2, 7, 8))
        curve = arm in {ARMS[name].title for name in sizes_table.CURVE}
        assert (gain == NONE) == curve, line
        assert float(time) > 0
    for arm, unknown in (("muon", 1), (PLAIN, len(lines))):
        untimed = [{**row, "seconds": None} if row["arm"] == arm else row for row in made]
        assert sizes_table.table(untimed).count(f"| {NONE} | 1 |") == unknown
    sizes.Sizes(
        tmp_path, store := Rows(tmp_path / "untimed", as_cell), made.append, timed=False
    ).run(TINY, 1)
    assert {row["seconds"] for row in store.done.values()} == {None}
    half = [row for row in made if row["arm"] != "plain-double"]
    assert all(line.split(" | ")[7] == NONE for line in sizes_table.table(half).splitlines()[2:])
    assert "Not measured" in sizes_table.table([])
