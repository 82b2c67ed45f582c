"""Audits from end to end: what they write, resume and restore."""

import json
import logging
import math
import os
import random
import re
import signal

import lightning as L
import numpy as np
import pytest
import torch
from audit_task import STEPS, Interrupting, Task, config, keep, kept
from lightning_models import Net, loader

from hybrid_predict.audit import AuditOutcome, audit, page, plan_audit
from hybrid_predict.audit.notes import gains
from hybrid_predict.audit.page import audit_page, curves_figure
from hybrid_predict.audit.results import make_results
from hybrid_predict.errors import ConfigError
from hybrid_predict.integrations import reporter
from hybrid_predict.policy.policy import NO_SKILL, NOT_LASTING
from hybrid_predict.runs.evidence import ARMS, CORRECTED, FULL, HYBRID, SHORT

pytestmark = pytest.mark.filterwarnings("ignore:The number of training batches")


def test_arms_are_trained_seed_by_seed_from_the_same_random_states(finished):
    _, task, _ = finished
    assert task.calls == [(name, seed) for seed in (0, 1) for name in ARMS]
    for values in (task.first_weights, task.orders):
        assert (len(set(map(str, values[:4]))), len(set(map(str, values[4:])))) == (1, 1)
        assert values[0] != values[4]


def test_what_is_written(finished):
    result, _, folder = finished
    names = {
        ".lock", "mlartifacts", "mlflow.db", "report.html", "results.json", "runs", "runs.jsonl",
    }  # fmt: skip
    assert {path.name for path in folder.iterdir()} == names
    expected = [(name, seed) for seed in (0, 1) for name in ARMS]
    assert [(line["run"]["arm"], line["run"]["seed"]) for line in kept(folder)] == expected
    logs = sorted(path.parent.name for path in (folder / "runs").rglob("hybrid_predict.jsonl"))
    assert logs == [f"{name}-1.5-seed{seed}" for name in (CORRECTED, HYBRID) for seed in (0, 1)]
    results = json.loads((folder / "results.json").read_text())
    assert results == result.results
    assert set(results) == {
        "schema", "partial", "planned_runs", "seeds", "environment", "config", "hybrid_config",
        "depends_on", "notes", "runs", "summary", "paired", "plain_steps_to_reach", "earned",
        "verdict",
    }  # fmt: skip
    assert (results["schema"], results["partial"], results["planned_runs"]) == (7, False, 8)
    assert results["seeds"] == [0, 1]
    assert {"cpu", "cpu_count", "gpu", "torch", "lightning"} <= results["environment"].keys()
    assert results["verdict"]["outcome"] == result.outcome.value == "undecided"


def test_counts_of_every_arm(finished):
    result, _, _ = finished
    expected = {
        FULL: (18, 0, 18), SHORT: (12, 0, 12), CORRECTED: (12, 0, 12), HYBRID: (12, 6, 18),
    }  # fmt: skip
    for run in result.results["runs"]:
        counts = (run["full_steps"], run["predicted_steps"], run["steps"])
        assert counts == expected[run["arm"]]
        assert run["undone_steps"] == 0
        assert (run["corrected_steps"] > 0) == (run["arm"] in (CORRECTED, HYBRID))
        assert run["left_out"] == []
        assert run["seconds"] > 0
        assert math.isfinite(run["metric"])
        assert run["failure"] is None
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


def test_curves_end_with_the_run_and_go_over_seconds_too(finished):
    """In training, validation comes after an epoch of 16 full steps, which short arms lack."""
    result, _, _ = finished
    for run in result.results["runs"]:
        metrics, losses = run["metric_curve"], run["curve"]
        assert metrics[-1] == [run["full_steps"], run["seconds"], run["metric"]]
        steps = [at for at, _, _ in metrics]
        assert steps == ([16, 18] if run["arm"] == FULL else [12])
        seconds = [at for _, at, _ in losses]
        assert seconds[0] > 0 and seconds == sorted(seconds) and seconds[-1] <= run["seconds"]
    figure = curves_figure(result.results, "curve", "seconds")
    ends = [max(line.get_xdata()) for line in figure.axes[0].lines]
    assert sorted(ends) == sorted(run["curve"][-1][1] for run in result.results["runs"])


def test_report_holds_the_verdict_and_loads_nothing(finished):
    result, _, folder = finished
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert result.verdict.headline[1:] in page
    assert "hybrid - 0.8 full - 0.2 control" in page
    assert page.count("data:image/svg+xml;base64,") == 4 + 4  # of the audit, of a run
    assert all(gain["reading"] in page for gain in result.results["earned"].values())
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
        assert runs[name]["scale"] == 120 / hybrid["full_steps"]
    assert any('With "auto" the hybrid arm took' in note for note in result.results["notes"])
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "as many full steps as <em>hybrid</em> took" in page
    again = Task(SlowNet, max_steps=120)
    resumed = audit(again, config(**AUTO), tmp_path)
    assert not again.calls
    assert resumed.results["runs"] == result.results["runs"]


def test_auto_needs_a_length_that_can_be_shortened_finely(tmp_path):
    task = Task(max_steps=-1, max_epochs=20)
    with pytest.raises(ConfigError, match='max_epochs: expected at least 40 with speedup "auto"'):
        audit(task, config(**AUTO), tmp_path)
    assert task.calls == [(FULL, 0)]


def test_finished_arms_are_not_trained_again_and_seeds_and_judging_may_change(finished, audited):
    before, task = finished[0], Task()
    after = audit(task, config(retain=0.5, alpha=0.1, margin=0.2), audited)
    assert task.calls == []
    assert after.results["runs"] == before.results["runs"]
    assert after.verdict.line == 0.2 != before.verdict.line
    fewer = audit(task, config(seeds=1), audited)
    assert [run["seed"] for run in fewer.results["runs"]] == [0, 0, 0, 0]

    def others(line):
        return (line["run"]["arm"], line["run"]["seed"]) != (SHORT, 1)

    keep(audited, list(filter(others, kept(audited))))
    audit(task, config(), audited)
    assert task.calls == [(SHORT, 1)]


def settings():
    return [
        random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist(),
        torch.are_deterministic_algorithms_enabled(), torch.get_default_dtype(),
        torch.get_num_threads(), torch.backends.cudnn.benchmark,
        {k: v for k, v in os.environ.items() if k.startswith(("PL_", "CUBLAS"))},
    ]  # fmt: skip


@pytest.mark.parametrize("call", [audit, plan_audit])
def test_random_states_and_settings_are_those_of_before(tmp_path, call):
    class Messy(Task):
        def __call__(self, arm):
            torch.backends.cudnn.benchmark = True
            torch.set_num_threads(2)
            return super().__call__(arm)

    before = settings()
    call(Messy(deterministic=True), config(seeds=1), tmp_path)
    assert settings() == before


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
    assert "the full arm diverged on 1 of 1 seeds" in result.verdict.text
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


def test_no_arm_warns_that_it_is_slow(tmp_path):
    """The audit compares seconds at its end."""

    class Stops(Task):
        def __call__(self, arm):
            raise OSError(f"warns: {reporter._slow_logger.isEnabledFor(logging.WARNING)}")

    with pytest.raises(OSError, match="warns: False"):
        audit(Stops(), config(), tmp_path)
    assert reporter._slow_logger.isEnabledFor(logging.WARNING)


def test_error_of_the_model_keeps_what_is_done_and_comes_out(tmp_path):
    class Broken(Task):
        def __call__(self, arm):
            if arm.name == CORRECTED:
                raise OSError("the disk is gone")
            return super().__call__(arm)

    with pytest.raises(OSError, match="the disk is gone"):
        audit(Broken(), config(), tmp_path)
    assert json.loads((tmp_path / "results.json").read_text())["partial"]
    assert len(kept(tmp_path)) == 2


def test_epochs_are_rounded_up_and_that_is_noted():
    results, _ = made_up(1.0, short_steps=14)
    assert any("14 full steps instead of 12" in note for note in results["notes"])
    assert any("times as long as the full arm" in note for note in results["notes"])


def made_up(
    hybrid, seeds=5, mode="min", corrected=1.1, hybrid_steps=12, short_steps=12, idle=0,
    plain=(FULL, SHORT), events=(), metric="val_loss",
):  # fmt: skip
    """Results of runs that nobody trained."""
    listed = [{"reason": reason, "step": 4, "count": 9} for reason in events]
    ledger = {"events": listed} if events else None
    sign = 1 if mode == "min" else -1
    base = {
        FULL: (1.0, 18), SHORT: (1.2, short_steps), CORRECTED: (corrected, short_steps),
        HYBRID: (hybrid, hybrid_steps),
    }  # fmt: skip
    runs = [
        {
            "arm": arm, "seed": k, "full_steps": steps, "undone_steps": 0,
            "predicted_steps": max(1, 18 - steps) if arm == HYBRID and k >= idle else 0,
            "curve": [], "metric_curve": [],
            "steps": steps, "seconds": 1.0, "total_steps": 18, "threads": 1, "failure": None,
            "corrected_steps": 0 if arm in plain else steps, "left_out": [],
            "metric": sign * (value + 0.001 * ((k + place) % 5 - 2)), "ledger": ledger,
        }
        for k in range(seeds) for place, (arm, (value, steps)) in enumerate(base.items())
    ]  # fmt: skip
    return make_results(config(seeds=5, mode=mode, metric=metric), {}, runs)


def test_a_figure_that_cannot_be_drawn_costs_one_warning_and_that_figure(monkeypatch, caplog):
    def broken(results):
        raise ValueError("no figure")

    monkeypatch.setattr(page, "final_figure", broken)
    text = audit_page(made_up(1.0)[0], None)
    assert (text.count("data:image/svg+xml;base64,"), text.count('src="data:,"')) == (0, 1)
    (record,) = caplog.records
    assert record.getMessage() == "A figure failed; the page goes without it."


@pytest.mark.parametrize(
    ("hybrid", "outcome"), [(1.0, AuditOutcome.VERIFIED), (1.1, AuditOutcome.NO_SAVING)]
)
def test_outcome_of_five_seeds_reaches_results_and_report(hybrid, outcome):
    results, verdict = made_up(hybrid)
    assert verdict.outcome is outcome
    page = audit_page(results, None)
    assert verdict.headline[1:] in page
    assert ("credited to hybrid_predict" in page) == (outcome is AuditOutcome.VERIFIED)


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize(
    ("corrected", "hybrid", "readings", "advised"),
    [
        (1.1, 1.0, ("better", "better"), ""),
        (1.0, 1.1, ("better", "worse"), "alone is better"),
        (1.1, 1.1, ("better", "no difference that these seeds can show"), "may do as well"),
        (1.2, 1.0, ("no difference that these seeds can show", "better"), ""),
        (1.3, 1.2, ("worse", "better"), ""),
    ],
)
def test_what_each_mechanism_earned(corrected, hybrid, readings, advised, mode):
    results, _ = made_up(hybrid, mode=mode, corrected=corrected)
    correction, prediction = results["earned"].values()
    assert (correction["reading"], prediction["reading"]) == readings
    assert correction["mean"] == pytest.approx(1.2 - corrected)
    assert prediction["mean"] == pytest.approx(corrected - hybrid)
    assert correction["lower"] < correction["mean"] < correction["upper"]
    assert advised in " ".join(results["notes"])
    assert bool(advised) == ("HybridPredict(speedup=1) for 12 full" in " ".join(results["notes"]))


@pytest.mark.parametrize("seeds", [1, 5])
def test_predicted_steps_that_were_not_made_earn_nothing(seeds):
    """Whatever the hybrid arm gained, by full steps in their place."""
    results, _ = made_up(0.9, seeds, hybrid_steps=18, idle=5)
    gain = results["earned"]["predicted steps"]
    assert (gain["n"], gain["mean"], gain["lower"], gain["idle"]) == (0, None, None, seeds)
    assert gains(results["earned"])[1] == (
        "Predicted steps: none was made, so there is no gain from them."
    )
    page = audit_page(results, None)
    assert "none was made, so there is no gain from them" in page
    assert "predicted steps: corrected → hybrid" in page


def test_seeds_without_predicted_steps_are_left_out_of_what_these_earned():
    results, _ = made_up(0.9, hybrid_steps=13, idle=2)
    gain = results["earned"]["predicted steps"]
    assert (gain["n"], gain["idle"]) == (3, 2)
    assert gain["reading"] == "too few seeds to tell"
    sentence = gains(results["earned"])[1]
    assert "(hybrid against corrected, after +1 full step): too few seeds to tell." in sentence
    assert sentence.endswith("Seeds without any are left out: 2.")


@pytest.mark.parametrize(("idle", "why"), [(0, "some predicted steps were"), (5, "no predicted")])
def test_notes_tell_once_what_kept_predicted_steps_back(idle, why):
    results, _ = made_up(0.9, seeds=2, hybrid_steps=18, idle=idle, events=["the reason"])
    notes = [note for note in results["notes"] if "the reason" in note]
    where = "full step 4 of seed 0, full step 4 of seed 1"
    assert notes == [f"Hybrid arm: the reason (first at {where})."]
    assert any(f"18 full steps instead of 12: {why}" in note for note in results["notes"])


@pytest.mark.parametrize("reason", [NO_SKILL, NOT_LASTING])
def test_a_note_does_not_deny_the_predicted_steps_that_were_made(reason):
    for idle, said in {0: "full steps took the place of some", 2: reason}.items():
        results, _ = made_up(0.9, seeds=2, hybrid_steps=18, idle=idle, events=[reason])
        (note,) = (note for note in results["notes"] if "(first at full step 4" in note)
        assert note.startswith(f"Hybrid arm: {said}")
        assert ("no predicted steps" in note) is (idle == 2)


def test_seeds_that_miss_an_arm_are_left_out():
    results, verdict = make_results(config(seeds=5), {}, made_up(1.0, 5)[0]["runs"][:-1])
    assert (results["partial"], verdict.seeds) == (True, 4)
    assert results["summary"][FULL]["metric"]["n"] == 5
    assert results["paired"]["hybrid - full"]["n"] == 4


def test_an_audit_refused_before_training_leaves_no_report(tmp_path):
    with pytest.raises(ConfigError, match="no_such_metric"):
        audit(Task(), config(metric="no_such_metric"), tmp_path)
    assert not {"results.json", "report.html"} & {path.name for path in tmp_path.iterdir()}
