"""``hybrid-predict audit``: YAML files, exit statuses, and what is printed."""

import importlib.util
import json
import os
import re
import signal
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from audit_file import FILE, MODULE, seen, with_audit, write
from rich.console import Console

from hybrid_predict import cli
from hybrid_predict.audit import AuditConfig, AuditOutcome, AuditResult, plan_audit
from hybrid_predict.audit.verdict import AuditVerdict
from hybrid_predict.cli import screen
from hybrid_predict.runs.evidence import spread

pytestmark = [
    pytest.mark.usefixtures("undrawn"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
    pytest.mark.filterwarnings("ignore:.*configure_optimizers. will be overridden"),
]


def test_audit_of_a_file(work, capsys, refused):
    path, before = list(sys.path), list(sys.argv)
    assert cli.main(["audit", write(FILE)]) == 3
    out, err = capsys.readouterr()
    assert (err, sys.path, sys.argv) == ("", path, before)
    assert seen() == [[18, 18, 9], [12, 12, 6], [12, 12, 6], [18, 18, 9]]
    results = json.loads(Path("hybrid-predict-audit/results.json").read_text())
    assert results["hybrid_config"]["warmup_steps"] == 5
    assert [run["full_steps"] for run in results["runs"]] == [18, 12, 12, 18]
    names = {"model", "data", "trainer", "optimizer", "lr_scheduler"}
    assert results["depends_on"]["file"] == {name: FILE[name] for name in names}
    for words in (
        "4 runs",
        "1/4 full, seed 0: 18 steps",
        "1/4 full, seed 0: 18 full steps in",
        "(corrected against short): too few seeds to tell.",
        "hint from 1 seed: no full steps were saved, so there is no saving to prove",
        "Predicted steps: none was made, so there is no gain from them.",
        "hybrid-predict-audit/report.html",
    ):
        assert words in " ".join(out.split())
    assert "For proof" not in out  # more seeds would prove nothing
    assert cli.main(["audit", "file.yaml"]) == 3
    assert "nothing was trained" in capsys.readouterr().out
    average = {
        "class_path": "lightning.pytorch.callbacks.EMAWeightAveraging",
        "init_args": {"decay": 0.9},
    }
    controls = {
        "rate x2": {"optimizer.init_args.lr": 0.02},
        "averaged": {"trainer.callbacks": [average]},
    }
    assert cli.main(["audit", write(with_audit(controls=controls))]) == 3
    assert seen()[4:] == [[18, 18, 9], [18, 18, 9]]
    results = json.loads(Path("hybrid-predict-audit/results.json").read_text())
    assert [results["paired"][f"hybrid - {name}"]["n"] for name in controls] == [1, 1]
    assert len({run["metric"] for run in results["runs"]}) == len(results["runs"])
    changed = {**FILE, "trainer": {"max_steps": 12, "accelerator": "cpu"}}
    assert "runs with other file" in refused("audit", write(changed))


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
def test_a_terminal_shows_a_bar_that_ends_at_100_and_a_pipe_two_lines_per_run(
    monkeypatch, capsys, tmp_path, terminal
):
    monkeypatch.setattr(screen, "Console", partial(Console, force_terminal=terminal, width=90))
    shows = screen.Screen(5, "loss")  # a search may need fewer runs

    def work(folder, observer):
        for number in range(2):
            observer.run_started("full", number, 8)
            for steps in (1, 2, 5, 6, 8):
                observer.stepped(steps)
                shows._progress.refresh()
            run = {"arm": "full", "speedup": None, "seed": number, "failure": None, "metric": 1.0}
            observer.run_finished({**run, "full_steps": 5, "seconds": 1.0}, trained=True)
        return SimpleNamespace(partial=False)

    shows.train(work, tmp_path)
    out = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().out)
    lines = out.replace("\r", "\n").rstrip().splitlines()
    if terminal:
        assert any("2/5 full, seed 1: 1 of 8 steps" in line and "22%" in line for line in lines)
        assert lines[-1].startswith("2 runs ") and "100%" in lines[-1]
    else:
        ended = "1/5 full, seed 0: 5 full steps in 1.0 s, loss 1"
        assert lines[:2] == ["1/5 full, seed 0: 8 steps", ended]


@pytest.mark.parametrize(
    ("options", "seeds", "words"),
    [
        ([], "4", "16 runs: 4 arms, 4 seeds; 0 done."),
        (["--search"], "5", "At most 45 runs, for 4 tests of candidates"),
    ],
)
def test_plan_trains_a_few_steps_and_writes_nothing(work, capsys, options, seeds, words):
    file = write(with_audit(speedups=[1.5, 2.0, 3.0]))
    assert cli.main(["audit", file, "--plan", "--seeds", seeds, *options]) == 0
    out = capsys.readouterr().out
    assert words in out
    few = "A verdict needs at least 5 seeds; fewer only give a hint."
    assert out.splitlines().count(few) == (seeds == "4")
    assert not (work / "hybrid-predict-audit").exists()
    assert seen() == [[18, 18, 9]]


def test_search_of_a_file(work, capsys):
    file = write(with_audit(speedups=[3.0]))
    assert cli.main(["audit", file, "--search"]) == 3
    out, err = capsys.readouterr()
    assert err == ""
    for words in (
        "at most 5 runs",
        "1/5 full, seed 0: 18 full steps",
        "2/5 short at speedup 3, seed 0: 6 full steps",
        "corrected at speedup 3: undecided",
        "4/5 hybrid at speedup 3, seed 0:",
        "# no saving at equal quality was shown; fewer than 5 seeds",
        "hybrid-predict-audit/search.json",
    ):
        assert words in " ".join(out.split())


@pytest.mark.parametrize(
    ("number", "options"), [(signal.SIGINT, []), (signal.SIGTERM, ["--search"])]
)
def test_ctrl_c_and_sigterm_exit_with_130_and_tell_how_to_go_on(
    work, monkeypatch, capsys, number, options
):
    # Shells start jobs in the background with SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def stop(self, steps):
        if self._done == 1:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(screen.Screen, "stepped", stop)
    assert cli.main(["audit", write(FILE), *options]) == 130
    out, err = capsys.readouterr()
    assert "What was finished is kept; the same command goes on." in out
    assert err == ""
    assert (work / "hybrid-predict-audit" / "report.html").exists() == (not options)
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("outcome", "status"),
    [(AuditOutcome.VERIFIED, 0), (AuditOutcome.NO_SAVING, 4), (AuditOutcome.UNDECIDED, 3)],
)
def test_exit_status_tells_the_outcome(work, monkeypatch, outcome, status, capsys):
    verdict = AuditVerdict(outcome, "headline", "why")
    empty = {"partial": False, "summary": {}, "notes": []}
    result = AuditResult(verdict, {**empty, "verdict": asdict(verdict)}, work)
    monkeypatch.setattr(screen, "audit", lambda *args, **options: result)
    assert cli.main(["audit", write(FILE)]) == status
    assert "headline" in capsys.readouterr().out


def test_a_hint_says_why_it_was_slower_in_at_most_three_notes(monkeypatch, tmp_path, capsys):
    arm = {"predicted_steps": 0, "undone_steps": 0, "metric": spread([1.0]), "failures": {}}
    counts = {"full": (60.0, 600), "corrected": (48.0, 400), "hybrid": (90.0, 430)}
    summary = {
        name: {**arm, "seconds": seconds, "full_steps": steps, "best": None}
        for name, (seconds, steps) in counts.items()
    }
    notes = ["first", "second", "third"]
    results = {"partial": False, "summary": summary, "notes": notes, "config": {"metric": "loss"}}
    result = AuditResult(AuditVerdict(AuditOutcome.UNDECIDED, "", "", 1), results, tmp_path)
    monkeypatch.setattr(screen, "audit", lambda *args, **options: result)
    screen.show_audit(AuditConfig(mlflow=False), tmp_path)
    out = " ".join(capsys.readouterr().out.split())
    assert (
        "slower: 90 s in place of 60 s, because a full step of this model takes only 0.1 s" in out
    )
    assert "second" in out and "third" not in out and "(with further notes)" in out


FOREIGN = {"class_path": "os.mkdir", "init_args": {"path": "called"}}


@pytest.mark.parametrize(
    ("command", "field", "base"),
    [(["audit"], "updates", "AbstractUpdate"), (["doctor"], "predictors", "Predictor")],
)
def test_nothing_but_updates_and_predictors_is_called(work, command, field, base, refused):
    line = refused(*command, write(with_audit(hybrid={field: {"hidden": FOREIGN}})))
    assert f"audit.hybrid.{field}" in line and f"a subclass of {base}" in line
    assert not Path("called").exists()


def test_failure_of_the_model_is_shown_and_is_not_taken_for_an_outcome(work, capsys):
    bad = MODULE.replace("return self.loss(batch)", "raise ValueError('the model is broken')")
    (work / "lines.py").write_text(bad)
    assert cli.main(["audit", write(FILE)]) == 2
    err = capsys.readouterr().err
    assert "Traceback" in err and "the model is broken" in err


def with_trainer(**options):
    return {**FILE, "trainer": {"max_steps": 18, **options}}


STOPPING = {"class_path": "EarlyStopping", "init_args": {"monitr": "x"}}

BAD_FILES = {
    "a section": ({**FILE, "trainers": {"a": 1}}, "trainers"),
    "no sections": ([1], "with the sections model, data, trainer and audit"),
    "no keys": ({**FILE, "audit": 5}, "with the sections model, data, trainer and audit"),
    "a key": (with_audit(metrc="val_loss"), "Did you mean metric?"),
    "a kind": (with_audit(hybrid={"updates": {"hiden": "spectral"}}), "Did you mean hidden?"),
    "a class": ({**FILE, "model": {"class_path": "lines.Lin"}}, "no attribute 'Lin'"),
    "a callback": (with_trainer(callbacks=[STOPPING]), "Option 'monitr' is not accepted"),
}


@pytest.mark.parametrize(("content", "words"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_bad_file_is_refused_in_one_line(work, refused, content, words):
    assert words in refused("audit", write(content))
    assert not Path("seen.txt").exists()


@pytest.fixture
def examples(monkeypatch):
    """The folder of the examples as current directory."""
    folder = Path(__file__).parents[2] / "examples"
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    yield
    sys.modules.pop("base", None)


def test_the_examples_in_yaml_and_python_plan_the_same_audit(examples, capsys):
    assert cli.main(["audit", "audit.yaml", "--plan"]) == 0
    assert "full 300, short 200, corrected 200, hybrid 200 to 300" in capsys.readouterr().out
    spec = importlib.util.spec_from_file_location("example", "audit.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    plan = plan_audit(example.make_run, AuditConfig())
    assert "full 300, short 200, corrected 200, hybrid 200 to 300" in plan
