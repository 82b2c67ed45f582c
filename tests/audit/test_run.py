"""Audits from end to end: what they write, resume and restore."""

import json
import math
import re
import signal

import lightning as L
import pytest
import torch
from audit_task import STEPS, Interrupting, Task, config, keep, kept
from lightning_models import Net, loader

from hybrid_predict.audit import Observer, audit
from hybrid_predict.audit.page import UNITS, audit_page, curves_figure
from hybrid_predict.audit.results import make_results
from hybrid_predict.errors import ConfigError
from hybrid_predict.runs.evidence import ARMS, CORRECTED, FULL, HYBRID, SHORT
from hybrid_predict.runs.runtime import locked

pytestmark = pytest.mark.filterwarnings("ignore:The number of training batches")


def test_arms_are_trained_seed_by_seed_from_the_same_random_states(finished):
    _, task, _ = finished
    assert task.calls == [(name, seed) for seed in (0, 1) for name in ARMS]
    for values in (task.first_weights, task.orders):
        assert (len(set(map(str, values[:4]))), len(set(map(str, values[4:])))) == (1, 1)
        assert values[0] != values[4]


def test_what_is_written(finished):
    result, _, folder = finished
    names = {".lock", "report.html", "results.json", "runs", "runs.jsonl"}
    assert {path.name for path in folder.iterdir()} == names
    expected = [(name, seed) for seed in (0, 1) for name in ARMS]
    assert [(line["run"]["arm"], line["run"]["seed"]) for line in kept(folder)] == expected
    logs = sorted(path.parent.name for path in (folder / "runs").rglob("hybrid_predict.jsonl"))
    assert logs == [f"{name}-1.5-seed{seed}" for name in (CORRECTED, HYBRID) for seed in (0, 1)]
    results = json.loads((folder / "results.json").read_text())
    assert results == result.results
    assert set(results) == {
        "schema", "partial", "planned_runs", "environment", "config", "hybrid_config",
        "depends_on", "notes", "runs", "summary", "paired", "verdict",
    }  # fmt: skip
    assert (results["schema"], results["partial"], results["planned_runs"]) == (9, False, 8)
    assert {"cpu", "cpu_count", "gpu", "torch", "lightning"} <= results["environment"].keys()
    assert results["verdict"]["outcome"] == result.outcome.value == "undecided"
    counts = {
        FULL: (18, 0, 18), SHORT: (12, 0, 12), CORRECTED: (12, 0, 12), HYBRID: (12, 6, 18),
    }  # fmt: skip
    for run in results["runs"]:
        found = (run["full_steps"], run["predicted_steps"], run["steps"])
        assert found == counts[run["arm"]] and run["undone_steps"] == 0
        assert (run["corrected_steps"] > 0) == (run["arm"] in (CORRECTED, HYBRID))
        assert run["seconds"] > 0 and math.isfinite(run["metric"]) and run["failure"] is None
    assert result.verdict.saving == pytest.approx(1 / 3)


def test_metric_is_that_of_the_final_weights(finished, tmp_path):
    result, _, _ = finished
    L.seed_everything(1, verbose=False)
    model = Net()
    torch.rand(())  # as the task does
    options = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = L.Trainer(max_steps=STEPS, default_root_dir=tmp_path, accelerator="cpu", **options)
    trainer.fit(model, loader(), loader(2))
    trainer.validate(model, loader(2), verbose=False)
    (run,) = (r for r in result.results["runs"] if (r["arm"], r["seed"]) == (FULL, 1))
    assert run["metric"] == pytest.approx(float(trainer.callback_metrics["val_loss"]))


def test_the_last_point_of_a_line_is_where_its_run_has_ended(finished):
    results = finished[0].results
    for unit, field in zip(UNITS, ("full_steps", "seconds"), strict=True):
        (axes,) = curves_figure(results, unit).axes
        ends = [line.get_xdata()[-1] for line in axes.lines]
        assert ends == pytest.approx([run[field] for run in results["runs"]])


def test_report_holds_the_verdict_and_loads_nothing(finished):
    result, _, folder = finished
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert result.verdict.headline[1:] in page
    assert "hybrid - 0.8 full - 0.2 control" in page
    assert page.count("data:image/svg+xml;base64,") == len(UNITS)
    assert all(note in page for note in result.results["notes"])
    assert not re.search(r"<script|<link|@import|url\(|href=|https?:", page)
    assert "Partial results" not in page


AUTO = {"speedup": "auto", "hybrid": {"warmup_steps": 1}, "seeds": 1}


class SlowNet(Net):
    """A net at a rate so low that forecasts last."""

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def test_with_auto_short_arms_take_as_many_full_steps_as_the_hybrid_arm_took(tmp_path):
    task = Task(SlowNet, max_steps=120)
    result = audit(task, config(**AUTO), tmp_path)
    order = (FULL, HYBRID, SHORT, CORRECTED)
    assert task.calls == [(name, 0) for name in order]
    runs = {run["arm"]: run for run in result.results["runs"]}
    hybrid = runs[HYBRID]
    assert hybrid["speedup"] == "auto" and hybrid["predicted_steps"] > 0
    for name in (SHORT, CORRECTED):
        assert runs[name]["full_steps"] == hybrid["full_steps"]
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "as many full steps as <em>hybrid</em> took" in page


def test_finished_arms_are_not_trained_again_and_seeds_and_judging_may_change(finished, audited):
    before, task = finished[0], Task()
    after = audit(task, config(retain=0.5, alpha=0.1, margin=0.2), audited)
    assert task.calls == []
    assert after.results["runs"] == before.results["runs"]
    assert "lose less than 0.2" in after.verdict.text
    fewer = audit(task, config(seeds=1), audited)
    assert [run["seed"] for run in fewer.results["runs"]] == [0, 0, 0, 0]

    def others(line):
        return (line["run"]["arm"], line["run"]["seed"]) != (SHORT, 1)

    keep(audited, list(filter(others, kept(audited))))
    audit(task, config(), audited)
    assert task.calls == [(SHORT, 1)]


class Diverging(Net):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return loss * float("nan") if self.trainer.max_steps == STEPS else loss


def test_diverged_run_is_recorded(tmp_path, monkeypatch):
    monkeypatch.undo()  # its figures can be drawn
    result = audit(Task(Diverging), config(seeds=1), tmp_path)
    ends = {run["arm"]: (run["metric"], run["failure"]) for run in result.results["runs"]}
    assert ends[FULL] == (None, "diverged")
    assert ends[SHORT] == (pytest.approx(1, abs=1), None)
    assert "the full arm has no finite metric on 1 of 1 seeds" in result.verdict.headline
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "1 diverged" in page


def test_ctrl_c_leaves_a_partial_report_and_the_next_call_goes_on(tmp_path):
    handler = signal.getsignal(signal.SIGINT)
    result = audit(Task(), config(seeds=1), tmp_path, observer=Interrupting())
    assert signal.getsignal(signal.SIGINT) is handler
    assert result.partial
    assert (len(result.results["runs"]), result.verdict.seeds) == (1, 0)
    assert "Partial results" in (tmp_path / "report.html").read_text(encoding="utf-8")
    task = Task()
    assert not audit(task, config(seeds=1), tmp_path).partial
    assert task.calls == [(SHORT, 0), (CORRECTED, 0), (HYBRID, 0)]
    assert "Partial results" not in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_ctrl_c_right_after_a_run_leaves_it_in_the_result(tmp_path):
    class Stops(Observer):
        def run_finished(self, run, trained):
            raise KeyboardInterrupt

    result = audit(Task(), config(seeds=1), tmp_path, observer=Stops())
    assert result.partial
    assert [run["arm"] for run in result.results["runs"]] == [FULL]


def test_two_audits_in_one_folder_are_refused(tmp_path):
    task = Task()
    with locked(tmp_path), pytest.raises(ConfigError, match="no other run is writing to"):
        audit(task, config(), tmp_path)
    assert task.calls == []


def test_a_line_that_a_crash_has_cut_off_is_skipped(audited, caplog):
    with (audited / "runs.jsonl").open("ab") as file:
        file.write(b'{"run": ')
    task = Task()
    assert not audit(task, config(), audited).partial
    assert task.calls == []
    assert "is not a finished run; it is skipped" in caplog.text


def made_up(
    hybrid, mode="min", corrected=1.1, hybrid_steps=12, best=(), seconds=None, ledger=None,
    **options
):  # fmt: skip
    """Results of five seeds that nobody trained; ``seconds`` by arm, and a ledger of all."""
    sign = 1 if mode == "min" else -1
    base = {FULL: (1.0, 18), SHORT: (1.2, 12), CORRECTED: (corrected, 12),
            HYBRID: (hybrid, hybrid_steps)}  # fmt: skip
    runs = [
        {
            "arm": arm, "seed": k, "full_steps": steps, "undone_steps": 0,
            "predicted_steps": 18 - steps if arm == HYBRID else 0,
            "curve": list(best) if arm == HYBRID else [], "steps": steps,
            "seconds": (seconds or {}).get(arm, 1.0),
            "failure": None,
            "corrected_steps": 0 if arm in (FULL, SHORT) else steps, "ledger": ledger,
            "metric": sign * (value + 0.001 * ((k + place) % 5 - 2)),
        }
        for k in range(5) for place, (arm, (value, steps)) in enumerate(base.items())
    ]  # fmt: skip
    return make_results(config(seeds=5, mode=mode, **options), {}, runs)


@pytest.mark.parametrize(
    ("seconds", "headline", "note"),
    [
        ({HYBRID: 0.75}, "33 % fewer full steps, 25 % fewer seconds, ", "took 0.75 times"),
        ({HYBRID: 1.5}, "33 % fewer full steps, 50 % more seconds, ", "took 1.50 times"),
        ({CORRECTED: 0.1}, "33 % fewer full steps, val_loss better by", "do not compare them"),
    ],
    ids=["fewer", "more", "disturbed"],
)
def test_the_headline_tells_seconds_unless_they_were_disturbed(seconds, headline, note):
    results, verdict = made_up(1.0, seconds=seconds)
    assert headline in verdict.headline
    assert note in results["notes"][2]


@pytest.mark.parametrize(
    ("steps", "reason", "told"),
    [
        (12, "no predicted steps while forecasts do not last", ""),
        (18, "no predicted steps while forecasts do not last", "In 5 of 5 hybrid runs, at first "),
        (12, "predicted steps were undone", "In 5 of 5 hybrid runs, at first full steps 3 to 9, "),
    ],
    ids=["pauses", "never", "others"],
)
def test_notes_tell_events_but_not_pauses_of_a_run_that_was_predicted(steps, reason, told):
    event = {"step": 3, "last": 9, "count": 4, "reason": reason}
    results, _ = made_up(1.0, hybrid_steps=steps, ledger={"events": [event]})
    assert len(results["notes"]) == 3 + bool(told)
    assert results["notes"][-1].startswith(told)


@pytest.mark.parametrize(("mode", "sign"), [("min", 1), ("max", -1)])
def test_the_best_validations_may_be_compared_in_place_of_the_last(mode, sign):
    best = [[3, sign * 1.3], [6, sign * 0.9], [9, None], [12, sign * 1.4]]
    last, verdict = made_up(1.4, mode, best=best)
    assert verdict.outcome.value == "no saving"
    assert last["summary"][HYBRID]["best"] == {"full_steps": 6, "metric": sign * 0.9}
    assert last["summary"][FULL]["best"] is None
    results, verdict = made_up(1.4, mode, best=best, compare="best")
    assert verdict.outcome.value == "verified"
    assert results["summary"][HYBRID]["metric"]["mean"] == pytest.approx(sign * 0.9)
    assert f"{sign * 0.9:g}, 6" in audit_page(results)


@pytest.mark.parametrize(
    ("corrected", "hybrid", "mode", "readings", "advised", "outcome"),
    [
        (1.1, 1.0, "min", ("better", "better"), "", "verified"),
        (1.0, 1.1, "max", ("better", "worse"), "alone is better", "no saving"),
        (1.1, 1.1, "min", ("better", "no difference that these seeds can show"), "may do as well",
         "no saving"),
        (1.3, 1.2, "max", ("worse", "better"), "", "no saving"),
    ],
)  # fmt: skip
def test_verdict_and_what_each_mechanism_earned(
    corrected, hybrid, mode, readings, advised, outcome
):
    results, verdict = made_up(hybrid, mode, corrected)
    assert verdict.outcome.value == outcome
    text = audit_page(results)
    assert verdict.headline[1:] in text
    assert ("credited to hybrid_predict" in text) == (outcome == "verified")
    sign = 1 if mode == "min" else -1
    correction = results["paired"]["corrected - short"]
    assert correction["mean"] == pytest.approx(sign * (corrected - 1.2))
    assert correction["lower"] < correction["mean"] < correction["upper"]
    for note, reading, gain in zip(
        results["notes"], readings, (1.2 - corrected, corrected - hybrid), strict=False
    ):
        assert note.endswith(f": {reading}.")
        assert f" gained {gain:+.3g} " in note
    notes = " ".join(results["notes"])
    assert advised in notes
    assert bool(advised) == ("HybridPredict(speedup=1) for 12 full" in notes)
