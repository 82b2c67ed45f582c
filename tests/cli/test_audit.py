"""``hybrid-predict audit``: YAML files, exit statuses, and what is printed."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from audit_file import FILE, MODULE, seen, with_audit, without, write

import hybrid_predict.audit
from hybrid_predict import cli
from hybrid_predict.audit import AuditConfig, AuditOutcome, AuditResult, plan_audit
from hybrid_predict.audit.file import importable, read_audit
from hybrid_predict.audit.verdict import AuditVerdict
from hybrid_predict.cli.screen import Screen
from hybrid_predict.report.pages import plain_finding

pytestmark = [
    pytest.mark.filterwarnings("ignore:The number of training batches"),
    pytest.mark.filterwarnings("ignore:.*configure_optimizers. will be overridden"),
]


def test_audit_of_a_file(work, capsys):
    path, before = list(sys.path), list(sys.argv)
    assert cli.main(["audit", write(FILE)]) == 3
    out, err = capsys.readouterr()
    assert err == ""
    assert (sys.path, sys.argv) == (path, before)
    assert seen() == [[18, 18, 9], [12, 12, 6], [12, 12, 6], [18, 18, 9]]
    folder = work / "hybrid-predict-audit"
    results = json.loads((folder / "results.json").read_text())
    assert results["hybrid_config"]["warmup_steps"] == 5
    assert [run["full_steps"] for run in results["runs"]] == [18, 12, 12, 18]
    assert results["depends_on"]["file"]["trainer"] == FILE["trainer"]
    for said in (
        "4 runs",
        "1/4 full, seed 0",
        "hint from 1 seed",
        "(corrected against short): too few seeds to tell.",
        "no full steps were saved, so there is no saving to prove",
        "Predicted steps: none was made, so none earned anything.",
        "hybrid-predict-audit/report.html",
    ):
        assert said in " ".join(out.split())
    assert cli.main(["audit", "file.yaml"]) == 3
    assert "Nothing was trained" in capsys.readouterr().out
    assert cli.main(["audit", "file.yaml", "--seeds", "2"]) == 3
    assert len(seen()) == 8
    changed = {**FILE, "trainer": {"max_steps": 12, "accelerator": "cpu"}}
    assert cli.main(["audit", write(changed)]) == 2
    assert "runs with other file" in capsys.readouterr().err


def test_file_makes_the_models_that_its_seed_makes(work):
    with importable():
        make_run, config, source = read_audit(write(FILE))
    assert config == AuditConfig(**FILE["audit"])
    assert set(source["file"]) == {"model", "data", "trainer", "optimizer", "lr_scheduler"}
    assert not Path("seen.txt").exists()
    assert callable(make_run)


def test_plan_trains_a_few_steps_and_writes_nothing(work, capsys):
    assert cli.main(["audit", write(FILE), "--plan", "--seeds", "4"]) == 0
    assert "16 runs: 4 arms, 4 seeds; 0 done." in capsys.readouterr().out
    assert not (work / "hybrid-predict-audit").exists()
    assert seen() == [[18, 18, 9]]


@pytest.mark.parametrize("options", [[], ["--search"]])
@pytest.mark.parametrize(("seeds", "told"), [("4", 1), ("5", 0)])
def test_plan_says_how_many_seeds_a_verdict_needs(work, capsys, options, seeds, told):
    assert cli.main(["audit", write(FILE), "--plan", "--seeds", seeds, *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines.count("A verdict needs at least 5 seeds; fewer only give a hint.") == told


@pytest.fixture
def interruptible():
    """Ctrl-C as in the foreground: shells start jobs in the background with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_exit_with_130_and_tell_how_to_go_on(work, monkeypatch, capsys, number):
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]

    def stop(self: Any, full_steps: int, loss: float) -> None:
        if self._done == 1:
            os.kill(os.getpid(), number)

    with monkeypatch.context() as patch:
        patch.setattr(Screen, "stepped", stop)
        assert cli.main(["audit", write(FILE)]) == 130
    out, err = capsys.readouterr()
    assert "Stopped after 1 of 4 runs.\nWhat was finished is kept; the same command" in out
    assert err == ""
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert (work / "hybrid-predict-audit" / "report.html").exists()
    assert cli.main(["audit", "file.yaml"]) == 3
    assert capsys.readouterr().out.count("done before") == 1


@pytest.mark.parametrize(
    ("outcome", "status"),
    [(AuditOutcome.VERIFIED, 0), (AuditOutcome.NO_SAVING, 4), (AuditOutcome.UNDECIDED, 3)],
)
def test_exit_status_tells_the_outcome(work, monkeypatch, outcome, status, capsys):
    verdict = AuditVerdict(outcome, "told", "why")
    empty = {"partial": False, "summary": {}, "runs": [], "notes": [], "earned": {}}
    results = {**empty, "verdict": verdict.to_dict()}
    result = AuditResult(verdict, results, work)
    monkeypatch.setattr(hybrid_predict.audit, "audit", lambda *args, **options: result)
    assert cli.main(["audit", write(FILE)]) == status
    assert "told\nwhy" in capsys.readouterr().out


def found(hybrid, seeds=2, outcome="undecided", mode="min", saving=0.33):
    config = {"metric": "val_loss", "mode": mode}
    verdict = {"headline": "told", "outcome": outcome, "saving": saving, "seeds": seeds}
    runs = [
        {"arm": arm, "seed": seed, "metric": value, "failure": None}
        for seed in range(seeds)
        for arm, value in (("full", 0.5), ("hybrid", hybrid))
    ]
    return plain_finding({"config": config, "verdict": verdict, "runs": runs})


def test_the_finding_is_told_in_plain_words():
    assert found(0.275) == (
        "hint: 45 % lower val_loss with 33 % fewer full steps; for proof: --seeds 5"
    )
    assert found(0.6, 5) == "not decided: 20 % higher val_loss with 33 % fewer full steps"
    assert found(0.49, 5, "verified").startswith("verified saving: 2 % lower val_loss with 33 %")
    assert found(0.6, 5, "no saving").startswith("no saving: 20 % higher val_loss")
    assert found(0.6, saving=None) == "told"
    nothing = found(0.4835, 5, "no saving", saving=0.009)
    assert nothing.startswith("no full steps were saved, so there is no saving to prove: 3.3 % ")


def test_failure_of_the_model_is_shown_and_is_not_taken_for_an_outcome(work, capsys):
    bad = MODULE.replace("return self.loss(batch)", "raise ValueError('the model is broken')")
    (work / "lines.py").write_text(bad)
    assert cli.main(["audit", write(FILE)]) == 2
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "the model is broken" in err


@pytest.mark.parametrize(
    ("place", "end", "said"),
    [
        ("super().__init__()\n", "sys.exit()", "SystemExit()"),
        ("super().__init__()\n", "sys.exit('bye')", "SystemExit('bye')"),
        ("return self.loss(batch)\n", "sys.exit(0)", "SystemExit(0)"),
    ],
)
@pytest.mark.parametrize("plan", [[], ["--plan"]])
def test_model_that_leaves_the_process_is_not_taken_for_an_outcome(
    work, capsys, place, end, said, plan
):
    bad = MODULE.replace(place, f"import sys; {end}\n", 1)
    (work / "lines.py").write_text(bad)
    assert cli.main(["audit", write(FILE), *plan]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"hybrid-predict: error: the model's own code raised {said}."


def test_modules_of_the_current_directory_can_be_imported_while_training(work):
    (work / "helper.py").write_text("rate = 1e-2")
    place = "    def configure_optimizers(self):\n"
    (work / "lines.py").write_text(MODULE.replace(place, place + "        import helper\n"))
    own = {**without("optimizer", "lr_scheduler"), "audit": {"seeds": 1, "mlflow": False}}
    assert cli.main(["audit", write(own)]) == 3
    sys.modules.pop("helper")


def test_controls_change_keys_of_the_file_and_can_be_added(work, capsys):
    assert cli.main(["audit", write(FILE)]) == 3
    more = with_audit(controls={"rate x2": {"optimizer.init_args.lr": 0.02}})
    assert cli.main(["audit", write(more)]) == 3
    assert seen()[4:] == [[18, 18, 9]]
    results = json.loads(Path("hybrid-predict-audit/results.json").read_text())
    assert [run["arm"] for run in results["runs"]][-1] == "rate x2"
    by_arm = {run["arm"]: run for run in results["runs"]}
    assert by_arm["rate x2"]["metric"] != by_arm["full"]["metric"]
    assert results["paired"]["hybrid - rate x2"]["n"] == 1
    assert "rate x2" in Path("hybrid-predict-audit/report.html").read_text()
    other = with_audit(controls={"rate x2": {"optimizer.init_args.lr": 0.03}})
    assert cli.main(["audit", write(other)]) == 2
    assert "rate x2 with other changes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a: [", "expected YAML, got"),
        ("just text", "sections model and trainer"),
        (without("model"), "a section model"),
        (without("trainer"), "a section trainer"),
        ({**FILE, "model": {"class_path": "lines.Lin"}}, "Did you mean Line?"),
        ({**FILE, "model": {"class_path": "nowhere.Line"}}, "nowhere"),
        ({**FILE, "model": {"class_path": "lines.Line", "init_args": {"size": 3}}}, "size"),
        ({**FILE, "trainer": {"max_stepps": 3}}, "Did you mean max_steps?"),
        ({**FILE, "trainer": {"accelerator": "cpu"}}, "max_steps or max_epochs"),
        (with_audit(seeds="many"), "seeds: expected an integer, at least 1, got 'many'"),
        ({**FILE, "trainer": {"max_steps": 3, "accelerator": [1]}}, "trainer.accelerator"),
        ({**FILE, "trainers": {}}, "got 'trainers'. Did you mean trainer?"),
        (with_audit(seeds=0), "seeds: expected an integer, at least 1, got 0"),
        (with_audit(speedup=1.0), "speedup: expected a finite number above 1"),
        (with_audit(retian=0.9), "Did you mean retain?"),
        (with_audit(hybrid={"perod": 3}), "perod"),
        (with_audit(controls={"a/b": {"model.init_args.out": "x"}}), "a name of letters"),
        (with_audit(controls={"full": {"model.init_args.out": "x"}}), "a name of letters"),
        (with_audit(controls={"a": {}}), "controls.a: expected a change"),
        (with_audit(controls={"a": 3}), "a mapping from keys to values, got 3"),
        (with_audit(controls={"a": {"model.init_args.size": 3}}), "a key of the file"),
        (with_audit(controls={"a": {"audit.seeds": 3}}), "a key of the file"),
        (with_audit(scaled=["model.init_args.steps"]), "audit.scaled"),
        (with_audit(scaled=["model.init_args.out"]), "a positive integer, got 'seen.txt'"),
        (
            {**FILE, "trainer": {
                "max_steps": 9, "callbacks": [{
                    "class_path": "lightning.pytorch.callbacks.EarlyStopping",
                    "init_args": {"monitor": "val_loss"},
                }],
            }},
            "no EarlyStopping",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_bad_file_is_told_in_one_line(work, capsys, content, said):
    assert cli.main(["audit", write(content)]) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert said in err
    assert not Path("seen.txt").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "FILE"),
        (["nowhere.yaml"], "nowhere.yaml"),
        (["file.yaml", "--seeds", "0"], "seeds: expected an integer, at least 1"),
        (["file.yaml", "--seeds", "x"], "invalid int value: 'x'"),
        (["file.yaml", "--output-dir", __file__], "a folder that can be written to"),
        (["file.yaml", "--bogus"], "--bogus"),
        (["file.yaml", "--threads", "0"], "argument --threads: expected an integer, at least 1"),
    ],
)
def test_bad_usage_is_told_in_one_line(work, capsys, arguments, said):
    write(FILE)
    assert cli.main(["audit", *arguments]) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert said in err


@pytest.mark.parametrize(
    ("module", "extra"), [("lightning", "lightning"), ("rich", "cli"), ("mlflow", "mlflow")]
)
def test_missing_extra_is_told_in_one_line(work, monkeypatch, capsys, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    assert cli.main(["audit", write(with_audit(mlflow=True))]) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert f'pip install "path/to/hybrid_predict[{extra}]"' in err


EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def examples(monkeypatch):
    """The folder of the examples as current directory."""
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield
    sys.modules.pop("digits", None)


def test_example_file_can_be_audited(examples, capsys):
    assert cli.main(["audit", "audit.yaml", "--plan"]) == 0
    assert "full 600, short 400, corrected 400, hybrid at least 400" in capsys.readouterr().out


def test_example_in_python_is_the_same(examples):
    spec = importlib.util.spec_from_file_location("example", "audit.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    plan = plan_audit(example.make_run, AuditConfig())
    assert dict(plan.full_steps) == {"full": 600, "short": 400, "corrected": 400, "hybrid": 400}
