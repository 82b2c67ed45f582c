"""The search for the largest speedup: what it trains, shares, keeps and answers."""

import json

import pytest
from audit_task import Task, config

from hybrid_predict.audit import AuditOutcome, Observer, search
from hybrid_predict.audit.run import Runs
from hybrid_predict.audit.search import most_runs

SPEEDUPS = (1.5, 2.0, 3.0)


class Lines(Observer):
    """Everything that a search tells."""

    def __init__(self):
        self.tested = []
        self.runs = []

    def candidate_finished(self, arm, speedup, finding):
        self.tested.append((arm, speedup, finding))

    def run_finished(self, run, trained):
        self.runs.append((trained, run["arm"], run["seed"]))


@pytest.fixture
def searched(tmp_path, monkeypatch):
    """Search over made runs; return the result and what it told.

    The metric of a run is what a function of arm, speedup and seed says.
    """

    def run(metric, **options):
        def get(self, config, name, seed):
            return {
                "arm": name,
                "seed": seed,
                "metric": metric(name, config.speedup, seed),
                "failure": None,
                "curve": [],
                "full_steps": 600 if name == "full" else 600 / config.speedup,
            }

        monkeypatch.setattr(Runs, "get", get)
        lines = Lines()
        chosen = config(**{"speedups": SPEEDUPS, "seeds": 5, "hybrid": {}, **options})
        return search(None, chosen, tmp_path, observer=lines), lines

    return run


def metric(borders):
    """As good as full up to an arm's border, above it as bad as short."""

    def value(name, speedup, seed):
        speedup = 1.0 if name == "full" else speedup
        bad = name == "short" or speedup > borders.get(name, 9.0)
        return 1.0 + 0.3 * bad * speedup + 0.01 * seed + 0.001 * (len(name) * seed % 3)

    return value


@pytest.mark.parametrize(
    ("corrected", "hybrid", "line"),
    [
        (3.0, 1.5, "HybridPredict(speedup=1)  # in a run, and with a schedule, shorter by 3"),
        (1.0, 1.5, "HybridPredict(speedup=1.5)"),
        (0.0, 0.0, "# no saving at equal quality was shown"),
    ],
)
def test_each_arm_is_bisected_and_the_largest_saving_wins(corrected, hybrid, line, searched):
    borders = {"corrected": corrected, "hybrid": hybrid}
    result, lines = searched(metric(borders))
    assert result.line.startswith(line) and not result.partial
    for arm, border in borders.items():
        tested = [speedup for name, speedup, _ in lines.tested if name == arm]
        assert tested == [2.0, 3.0 if border >= 2 else 1.5]
    expected = AuditOutcome.VERIFIED if corrected or hybrid else AuditOutcome.NO_SAVING
    assert result.outcome is expected


def test_fewer_than_five_seeds_show_no_saving(searched):
    good = metric({"corrected": 0.0, "hybrid": 3.0})
    result, _ = searched(good, seeds=4)
    assert result.line.endswith("fewer than 5 seeds show none")
    assert result.outcome is AuditOutcome.UNDECIDED


def test_a_search_goes_on_where_it_was_stopped(tmp_path):
    class Stops(Observer):
        def run_finished(self, run, trained):
            raise KeyboardInterrupt

    first, chosen = Task(), config(speedups=(1.5, 3.0))
    stopped = search(first, chosen, tmp_path, observer=Stops())
    assert stopped.partial and stopped.results["tried"] == []
    assert first.calls == [("full", 0)]
    second = Task()
    whole = search(second, chosen, tmp_path)
    assert not whole.partial and ("full", 0) not in second.calls
    again, lines = Task(), Lines()
    repeated = search(again, chosen, tmp_path, observer=lines)
    assert again.calls == []
    assert repeated.results == whole.results
    assert len(lines.runs) == 1 + len(second.calls) <= most_runs(chosen)
    saved = json.loads((tmp_path / "search.json").read_text())
    assert saved["line"] == whole.line and saved["level"] == pytest.approx(0.05 / 4)
    assert {t["arm"] for t in saved["tried"]} == {"corrected", "hybrid"}
