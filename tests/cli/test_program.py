"""What every command does alike: help, bad usage in one line, missing extras."""

import json
import os
import signal
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path

import pytest
from audit_file import FILE, with_audit, write
from run_logs import NAME, ROWS, written

from hybrid_predict.cli.program import add_command, run_program


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["bench"], "invalid choice: 'bench'"),
        (["demo", "--seeds", "0"], "seeds: expected an integer from 1 to 10,000, got 0"),
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
    arguments = ["demo"] if command == "demo" else ["audit", write(with_audit(mlflow=True))]
    assert f'pip install "path/to/hybrid_predict[{extra}]"' in refused(*arguments)


def test_what_takes_seconds_to_import_is_imported_where_it_is_needed():
    modules = {"torch", "lightning", "mlflow", "rich", "matplotlib", "jsonargparse", "numpy"}
    code = "import sys; from hybrid_predict.cli import main; main(['--help']); main(['demo', '-h'])"
    code = f"{code}; print({modules} & sys.modules.keys())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2]
    )
    assert (done.returncode, done.stdout.splitlines()[-1], done.stderr) == (0, "set()", "")


@pytest.mark.parametrize("name", ["", "folder"])
def test_what_cannot_be_read_is_refused_in_one_line(work, refused, name):
    (work / "folder").mkdir()
    assert " expected " in refused("audit", name)


@pytest.mark.parametrize(
    ("command", "name"),
    [("report run --output", name) for name in ("", "run", "/dev/null")]
    + [("audit file.yaml --output-dir", "file.yaml/below")],
)
def test_what_cannot_be_written_is_refused_in_one_line(work, refused, command, name):
    write(FILE)
    (work / "run").mkdir()
    (work / "run" / NAME).write_text("\n".join(map(json.dumps, written(ROWS))))
    words = command.split()
    assert f"{words[-1]}: expected " in refused(*words, name)


def test_sigterm_ends_any_command_as_ctrl_c_does(capsys):
    before = signal.getsignal(signal.SIGTERM)
    parser = ArgumentParser("program")
    commands = parser.add_subparsers()
    add_command(commands, "it", lambda options: os.kill(os.getpid(), signal.SIGTERM) or 0, "Does.")
    assert run_program(parser, ["it"]) == 130
    assert capsys.readouterr().err.startswith("program: stopped.")
    assert signal.getsignal(signal.SIGTERM) is before
