"""What every command does alike: help, bad usage in one line, missing extras."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from audit_file import FILE, with_audit, write
from run_logs import NAME, ROWS, written

from hybrid_predict.cli.program import Command, run_program


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["bench"], "invalid choice: 'bench'"),
        (["demo", "--sedes", "2"], "unrecognized arguments: --sedes"),
        (["demo", "--speedup", "nan"], "a number above 1 and at most 60, got nan"),
        (["demo", "--steps", "3"], "at least 20, got 3"),
        (["demo", "--threads", "1000000000000"], "from 1 to 4096, got '1000000000000'"),
        (["demo", "--output-dir", __file__], "a folder that can be written to"),
        (["audit"], "FILE"),
        (["audit", "nowhere.yaml", "--seeds", "two"], "invalid int value: 'two'"),
    ],
)
def test_bad_usage_is_refused_in_one_line(refused, arguments, words):
    assert words in refused(*arguments)


@pytest.mark.parametrize(
    ("command", "module", "extra"),
    [("demo", "rich", "cli"), ("audit", "lightning", "lightning"), ("audit", "mlflow", "mlflow")],
)
def test_a_missing_extra_is_named_in_one_line(work, monkeypatch, refused, command, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    demo = ["demo", "--steps", "24"]
    arguments = demo if command == "demo" else ["audit", write(with_audit(mlflow=True))]
    assert f'pip install "path/to/hybrid_predict[{extra}]"' in refused(*arguments)


def test_what_takes_seconds_to_import_is_imported_where_it_is_needed():
    modules = {"torch", "lightning", "mlflow", "rich", "matplotlib", "jsonargparse"}
    code = "import sys; from hybrid_predict.cli import main; main(['--help']); main(['demo', '-h'])"
    code = f"{code}; print({modules} & sys.modules.keys())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2]
    )
    assert (done.returncode, done.stdout.splitlines()[-1], done.stderr) == (0, "set()", "")


LONG = "a" * 5000


@pytest.fixture
def hostile(work):
    """A folder with what is no file to read, and no place to write to."""
    (work / "folder").mkdir()
    (work / "binary").write_bytes(bytes(range(256)))
    (work / "large").write_text("#" * 2_000_000)
    (work / "nested").write_text("[" * 5000 + "]" * 5000)
    (work / "circle").write_text("model: &a {b: *a}\ntrainer: {}")
    (work / "value").write_text("model: !!int ''")
    os.mkfifo(work / "pipe")
    return work


@pytest.mark.parametrize(
    "name",
    ["", LONG, "nul\0byte", "folder", "binary", "large", "nested", "circle", "value", "pipe",
     "/dev/zero", ":f"],
    ids=lambda name: name[-9:],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_in_one_line(hostile, refused, name):
    assert " expected " in refused("audit", name)


def test_a_folder_in_place_of_finished_runs_is_refused_in_one_line(hostile, refused):
    (hostile / "folder" / "runs.jsonl").mkdir()
    arguments = ["audit", write(FILE), "--output-dir", "folder"]
    assert "folder/runs.jsonl'. The system says: it is no regular file" in refused(*arguments)


@pytest.mark.parametrize(
    ("command", "name"),
    [("report run --output", name) for name in ("", LONG, "nul\0byte", "pipe", "/dev/zero")]
    + [("audit file.yaml --output-dir", "binary/below")],
    ids=lambda text: text[-9:],
)
def test_what_cannot_be_written_is_refused_in_one_line(hostile, refused, command, name):
    write(FILE)
    (hostile / "run").mkdir()
    (hostile / "run" / NAME).write_text("\n".join(map(json.dumps, written(ROWS))))
    words = command.split()
    assert f"{words[-1]}: expected " in refused(*words, name)


def ran(run):
    """The exit status of a program whose only command does this."""
    command = Command("does it", "does it", lambda add: None, run)
    return run_program("program", "a program", {"it": command}, ["it"])


def terminated(options):
    os.kill(os.getpid(), signal.SIGTERM)
    return 0


def test_sigterm_ends_any_command_as_ctrl_c_does(capsys):
    assert ran(terminated) == 130
    assert capsys.readouterr().err.startswith("program: stopped; what was finished is kept")
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_reader_of_a_table_that_has_enough_is_no_error(capsys):
    def shown(options):
        try:
            raise BrokenPipeError
        except BrokenPipeError:
            raise SystemExit(1)  # noqa: B904, as rich does

    assert ran(shown) == 141
    assert capsys.readouterr().err == ""
