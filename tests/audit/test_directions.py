"""The choice of a direction before a search: what it trains, shares, keeps and answers."""

import json
from dataclasses import replace

import pytest
from audit_task import Task, config, kept

from hybrid_predict import SpectralUpdate
from hybrid_predict.audit import audit, plan_search, search
from hybrid_predict.audit.config import direction_name
from hybrid_predict.audit.plan import most_runs
from hybrid_predict.audit.searching import COMPARED, Searching, number_of_tests
from hybrid_predict.audit.store import RunStore, cell
from hybrid_predict.errors import ConfigError
from hybrid_predict.runs.runtime import Observer

NO_ROOT = SpectralUpdate(longest=0)
OWN_LENGTH = SpectralUpdate(bound=1.0)
NAMES = ("spectral", "SpectralUpdate(longest=0)", "SpectralUpdate(bound=1.0)")


def compared(metrics, folder, **options):
    """A search over made runs of three directions, and the runs that each was asked for."""
    chosen = config(
        speedups=(1.5, 2.0, 3.0),
        seeds=5,
        hybrid={},
        directions=("spectral", NO_ROOT, OWN_LENGTH),
        **options,
    )
    asked = {name: [] for name in NAMES}

    def run(config, arm, seed):
        name = direction_name(config.hybrid_config().updates["hidden"])
        asked[name].append((arm, config.speedup, seed))
        value = metrics[name] if arm == "corrected" else 1.0 + 0.3 * (arm == "short")
        return {
            "arm": arm,
            "seed": seed,
            "metric": value and value + 0.001 * seed * len(arm),
            "lengths": {"max_steps": 600},
            "failure": "diverged" if value is None else None,
            "full_steps": 600 if arm == "full" else 600 / config.speedup,
        }

    searching = Searching(run, chosen, folder, Observer())
    return searching.result(), asked


@pytest.mark.parametrize(
    ("metrics", "order", "mode"),
    [
        ((1.0, 0.5, 0.7), (1, 2, 0), "min"),
        ((1.0, 0.5, 0.7), (0, 2, 1), "max"),
        ((1.0, None, 0.7), (2, 0, 1), "min"),
        ((None, None, None), (0, 1, 2), "min"),
    ],
)
def test_a_search_goes_on_with_the_best_direction(metrics, order, mode, tmp_path):
    metrics = dict(zip(NAMES, metrics, strict=True))
    result, asked = compared(metrics, tmp_path, mode=mode)
    ordered = [NAMES[k] for k in order]
    assert [d.name for d in result.directions] == ordered
    for name in ordered[1:]:
        seeds = 1 if metrics[name] is None else COMPARED
        wanted = [("corrected", 2.0, seed) for seed in range(seeds)]
        # A full run of the first direction shows before all others whether lengths fit.
        assert asked[name] == [("full", 2.0, 0)] * (name == NAMES[0]) + wanted
    assert {arm for arm, _, _ in asked[ordered[0]]} >= {"full", "short", "corrected"}
    saved = json.loads((tmp_path / "search.json").read_text())
    assert [d["name"] for d in saved["directions"]] == ordered
    assert saved["level"] == pytest.approx(0.05 / (3 * 2 * 2))


def test_the_line_names_the_direction(tmp_path):
    result, _ = compared({NAMES[0]: 0.9, NAMES[1]: 0.5, NAMES[2]: 0.8}, tmp_path)
    assert f"updates={{'hidden': {NO_ROOT!r}}}" in result.line


def test_directions_share_plain_runs_and_a_search_goes_on(tmp_path):
    chosen = config(speedups=(1.5,), directions=("spectral", NO_ROOT))
    task = Task()
    plan = plan_search(Task(), chosen, tmp_path)
    result = search(task, chosen, tmp_path)
    # Two seeds of two directions, one of which also has a hybrid arm.
    assert len(task.calls) == plan.runs == plan.left == most_runs(chosen) == 2 * (2 + 2 + 1)
    assert plan.tests == number_of_tests(chosen) == 2 * 2
    assert task.calls.count(("full", 0)) == 1
    assert len({line["run"]["update"] for line in kept(tmp_path)}) == 3  # none, and two
    alone = Task()  # an audit of one of them finds its runs
    audit(
        alone, replace(chosen, hybrid={**chosen.hybrid, "updates": {"hidden": NO_ROOT}}), tmp_path
    )
    assert {name for name, _ in alone.calls} <= {"hybrid"}
    again = Task()
    assert search(again, chosen, tmp_path).results == result.results
    assert again.calls == []
    after = plan_search(Task(), chosen, tmp_path)
    assert (after.done, after.left) == (plan.runs, 0)
    anew = Task()
    assert not search(anew, chosen, tmp_path, overwrite=True).partial
    assert sorted(anew.calls) == sorted(task.calls)


def test_runs_with_other_updates_have_folders_of_their_own(tmp_path):
    updates = ({}, {"hidden": "spectral"}, {"hidden": NO_ROOT})
    configs = [config(hybrid={"updates": each}) for each in updates]
    store = RunStore(tmp_path, configs[0])
    assert len({store.place(cell(each, "corrected", 0)) for each in configs}) == 3


def test_lengths_are_refused_before_directions_are_compared(tmp_path):
    task, chosen = Task(), config(speedups=(1.5, 7.0), directions=("spectral", NO_ROOT))
    with pytest.raises(ConfigError, match="by the speedup 7"):
        search(task, chosen, tmp_path)
    assert task.calls == [("full", 0)]


@pytest.mark.parametrize(
    ("directions", "message"),
    [
        (("spectral", "muon"), "expected one of spectral, or an"),
        (("spectral", "spectral"), "directions: expected updates that differ"),
        (("spectral", SpectralUpdate()), "directions: expected updates that differ"),
        ("spectral", "directions: expected a list of updates"),
    ],
)
def test_unusable_directions_are_refused(directions, message):
    with pytest.raises(ConfigError, match=message):
        config(directions=directions)


def test_directions_need_a_number_to_be_compared_at():
    with pytest.raises(ConfigError, match="speedups: expected a number among them"):
        config(speedups=("auto",), directions=("spectral", NO_ROOT))


def test_a_given_update_is_told_by_what_differs_from_its_defaults():
    chosen = config(directions=(NO_ROOT, SpectralUpdate(decay=0.9, share=0.5)))
    assert list(chosen.by_direction()) == [
        "SpectralUpdate(longest=0)", "SpectralUpdate(share=0.5, decay=0.9)",
    ]  # fmt: skip
