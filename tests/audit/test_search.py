"""The search for the largest speedup: what it trains, shares, keeps and answers."""

import json

import pytest
from audit_task import STEPS, Task, config, kept

from hybrid_predict.audit import AuditOutcome, audit, plan_search, search
from hybrid_predict.audit.plan import most_runs
from hybrid_predict.audit.searching import Searching
from hybrid_predict.errors import ConfigError
from hybrid_predict.runs.runtime import Observer

SPEEDUPS = (1.5, 2.0, 3.0)


class Untrained:
    """Finished runs in the place of trained ones: the metric is what a function says."""

    def __init__(self, metric, failure="diverged"):
        self.metric, self.failure = metric, failure
        self.asked = []

    def run(self, config, name, seed):
        speedup = config.speedup
        self.asked.append((name, speedup, seed))
        value = self.metric(name, speedup, seed)
        speedup = 2.5 if speedup == "auto" else speedup
        return {
            "arm": name, "seed": seed, "metric": value, "lengths": {"max_steps": 600},
            "failure": self.failure if value is None else None,
            "full_steps": 600 if name == "full" else 600 / speedup,
        }  # fmt: skip


class Lines(Observer):
    """Everything that a search tells."""

    def __init__(self):
        self.events = []

    def candidate_started(self, arm, speedup):
        self.events.append(("tests", arm, speedup))

    def candidate_finished(self, arm, speedup, finding):
        self.events.append((arm, speedup, finding))

    def run_found(self, run):
        self.events.append(("found", run["arm"], run["seed"]))

    def run_finished(self, run):
        self.events.append(("finished", run["arm"], run["seed"]))

    @property
    def runs(self):
        return [line for line in self.events if line[0] in ("found", "finished")]


def searched(metric, folder, failure="diverged", **options):
    """A search over made runs: its result, what it asked for, and what it told."""
    runs, lines = Untrained(metric, failure), Lines()
    chosen = config(**{"speedups": SPEEDUPS, "seeds": 5, "hybrid": {}, **options})
    return Searching(runs.run, chosen, folder, lines).result(), runs, lines


def metric(borders):
    """As good as full up to an arm's border, above it as bad as short."""

    def value(name, speedup, seed):
        speedup = 2.5 if speedup == "auto" else speedup
        bad = name == "short" or speedup > borders.get(name, 9.0)
        return 1.0 + 0.3 * bad * speedup + 0.01 * seed + 0.001 * (len(name) * seed % 3)

    return lambda name, speedup, seed: value(name, 1.0 if name == "full" else speedup, seed)


@pytest.mark.parametrize(
    ("corrected", "hybrid", "line"),
    [
        (3.0, 1.5, "Trainer(max_steps=200, callbacks=[HybridPredict(speedup=1)])  # with a sch"),
        (1.5, 2.0, "Trainer(max_steps=600, callbacks=[HybridPredict(speedup=2)])"),
        (2.0, 2.0, "Trainer(max_steps=300, callbacks=[HybridPredict(speedup=1)])  # with a sch"),
        (0.0, 0.0, "Trainer(max_steps=600)  # no saving at equal quality was shown"),
    ],
)
def test_each_arm_is_bisected_and_the_largest_saving_wins(corrected, hybrid, line, tmp_path):
    borders = {"corrected": corrected, "hybrid": hybrid}
    result, _, lines = searched(metric(borders), tmp_path)
    assert result.line.startswith(line) and not result.partial
    assert result.best == {arm: border or None for arm, border in borders.items()}
    for arm, border in borders.items():
        mine = [line[2] for line in lines.events if line[:2] == ("tests", arm)]
        assert mine == [2.0, 3.0 if border >= 2 else 1.5]
    expected = AuditOutcome.VERIFIED if corrected or hybrid else AuditOutcome.NO_SAVING
    assert result.outcome is expected


@pytest.mark.parametrize("passes", [True, False])
def test_auto_is_a_candidate_after_the_numbers(passes, tmp_path):
    numbered = metric({"corrected": 1.5, "hybrid": 2.0})

    def value(name, speedup, seed):
        if speedup != "auto":
            return numbered(name, speedup, seed)
        return numbered(name, 1.5 if passes and name == "hybrid" else 4.0, seed)

    result, _, lines = searched(value, tmp_path, speedups=(*SPEEDUPS, "auto"))
    assert [t.speedup for t in result.tried if t.arm == "hybrid"] == [2.0, 3.0, "auto"]
    assert lines.events[-1][:2] == ("hybrid", "auto")
    auto = pytest.approx(2.5) if passes else None
    assert result.best == {"corrected": 1.5, "hybrid": 2.0, "auto": auto}
    chosen = "'auto'" if passes else "2"
    assert f"HybridPredict(speedup={chosen})" in result.line
    assert result.results["level"] == pytest.approx(0.05 / 5)


def test_a_candidate_that_cannot_pass_is_given_up_and_called_so(tmp_path):
    result, runs, lines = searched(metric({"corrected": 0.0, "hybrid": 3.0}), tmp_path)
    first = result.tried[0]
    assert (first.arm, first.speedup, first.verdict.seeds) == ("corrected", 2.0, 3)
    assert first.finding == "given up: inferior on 3 seeds"
    assert first.verdict.outcome is AuditOutcome.NO_SAVING
    assert ("corrected", 2.0, first.finding) in lines.events
    assert ("corrected", 2.0, 3) not in runs.asked
    assert ("hybrid", 2.0, "keeps quality") in lines.events
    assert result.results["tried"][0]["finding"] == first.finding


def test_few_seeds_decide_nothing_though_candidates_are_given_up(tmp_path):
    result, _, _ = searched(metric({"corrected": 0.0, "hybrid": 0.0}), tmp_path, seeds=4)
    assert {t.finding for t in result.tried} == {"given up: inferior on 3 seeds"}
    assert result.outcome is AuditOutcome.UNDECIDED
    assert result.line.endswith("fewer than 5 seeds show none")


@pytest.mark.parametrize(
    ("arm", "seed", "failure", "outcome", "tried"),
    [
        ("full", 1, "diverged", AuditOutcome.UNDECIDED, 1),
        ("corrected", 1, "diverged", AuditOutcome.NO_SAVING, 4),
        ("corrected", 4, "metric not finite", AuditOutcome.NO_SAVING, 4),
    ],
)
def test_a_run_without_a_metric_ends_its_candidate(arm, seed, failure, outcome, tried, tmp_path):
    good = metric({})

    def value(name, speedup, number):
        return None if (name, number) == (arm, seed) else good(name, speedup, number)

    result, runs, _ = searched(value, tmp_path, failure)
    first = result.tried[0]
    assert first.finding == f"given up: {arm} {failure}"
    assert (first.verdict.outcome, first.verdict.seeds) == (outcome, seed)
    assert len(result.tried) == tried
    order = [(name, number) for name, _, number in runs.asked]
    last = order.index((arm, seed))
    assert order[last + 1 :] == [] if arm == "full" else order[last + 1] == ("full", 0)


def test_the_best_seeds_may_still_show_that_plain_training_can_be_shorter(tmp_path):
    """A corrected arm that is inferior is not given up where the short one is better than full."""

    def value(name, speedup, seed):
        ends = {"full": 1.0, "short": 0.9, "corrected": 1.3, "hybrid": 1.3}
        return ends[name] + 0.001 * (len(name) * seed % 3)

    result, _, _ = searched(value, tmp_path)
    assert not any("given up" in t.finding for t in result.tried)
    assert result.line.startswith("Trainer(max_steps=200)  # plain training")


def test_a_search_goes_on_where_it_was_stopped(tmp_path):
    class Stops(Observer):
        def run_finished(self, run):
            raise KeyboardInterrupt

    first, chosen = Task(), config(speedups=(1.5, 3.0))
    stopped = search(first, chosen, tmp_path, observer=Stops())
    assert stopped.partial and stopped.results["tried"] == []
    assert first.calls == [("full", 0)]
    second = Task()
    whole = search(second, chosen, tmp_path)
    assert not whole.partial and ("full", 0) not in second.calls
    assert second.calls.count(("full", 1)) == 1
    again, lines = Task(), Lines()
    repeated = search(again, chosen, tmp_path, observer=lines)
    assert again.calls == []
    assert repeated.results == whole.results
    assert len(lines.runs) == 1 + len(second.calls) <= most_runs(chosen)
    saved = json.loads((tmp_path / "search.json").read_text())
    assert saved["line"] == whole.line and saved["level"] == pytest.approx(0.05 / 4)
    assert {t["arm"] for t in saved["tried"]} == {"corrected", "hybrid"}
    plan = plan_search(Task(), chosen, tmp_path)
    assert plan.done == len(lines.runs)
    assert plan.left < plan_search(Task(), chosen).left == plan.runs == most_runs(chosen)
    with pytest.raises(ConfigError, match=r"other hybrid.*--overwrite"):
        search(Task(), config(speedups=(1.5, 3.0), hybrid={"warmup_steps": 2}), tmp_path)
    anew = Task()
    assert not search(anew, chosen, tmp_path, overwrite=True).partial
    assert anew.calls == [*first.calls, *second.calls]


@pytest.mark.parametrize("speedup", [2.0, 4 / 3])
def test_searches_and_audits_in_one_folder_share_their_runs(speedup, audited):
    task, lines = Task(), Lines()
    chosen = config(speedups=(speedup,), speedup=speedup, seeds=1)
    search(task, chosen, audited, observer=lines)
    assert [name for name, _ in task.calls] == ["short", "corrected", "hybrid"]
    assert lines.runs[0] == ("found", "full", 0)
    assert [line["run"]["arm"] for line in kept(audited)].count("full") == 2
    audit(task, chosen, audited)
    assert len(task.calls) == 3


def test_full_runs_of_another_length_are_refused_before_training(audited):
    longer = Task(max_steps=2 * STEPS)
    with pytest.raises(ConfigError, match="with other max_steps"):
        search(longer, config(speedups=(2.0,), seeds=1), audited)
    assert longer.calls == [("short", 0)]
    assert not (audited / "runs" / "short-2-seed0").exists()


def test_all_candidates_have_to_divide_the_epochs_before_anything_is_trained(tmp_path):
    task = Task(max_steps=-1, max_epochs=4)
    chosen = config(speedups=(1.5, 2.0, 4.0))
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"by the speedup 1\.5, got .4 shortened to 3"):
            search(task, chosen, tmp_path)
    assert set(task.calls) == {("full", 0)}
    assert not (tmp_path / "runs.jsonl").exists()


def test_a_plan_adds_up_the_longest_way_through_the_candidates():
    for count, runs in ((1, 1 + 1 + 2), (3, 1 + 3 + 4), (4, 1 + 4 + 5)):
        assert most_runs(config(speedups=(1.25, 1.5, 2.0, 3.0)[:count])) == 2 * runs
    task = Task()
    plan = plan_search(task, config(speedups=(1.5, 2.0)))
    assert (plan.runs, plan.left, plan.done, plan.tests) == (2 * 7, 2 * 7, 0, 4)
    # 1.5 is tested first, the lower one of two, and then 2 if it passes.
    steps = {1.5: STEPS / 1.5, 2.0: STEPS / 2}
    longest = STEPS + sum(3 * n for n in steps.values())
    assert plan.seconds == pytest.approx(2 * longest * plan.seconds_per_step)
    assert task.calls == [("hybrid", 0)]
    assert "At most 14 runs, for 4 tests of candidates; 0 done" in str(plan)
