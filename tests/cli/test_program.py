"""What every command does alike: help, bad usage in one line, missing extras."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from hybrid_predict import __version__, cli
from hybrid_predict.cli.program import Command, run_program

TINY = ["demo", "--quick", "--steps", "24", "--threads", "1"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bench"], "expected one of demo, doctor"),
        (["dmeo"], "Did you mean demo?"),
        (["demo", "--sedes", "2"], "Did you mean --seeds?"),
        (["--verison"], "Did you mean --version?"),
        (["demo", "--bogus"], "--bogus"),
        (["demo", "extra"], "extra"),
        (["demo", "--speedup"], "--speedup"),
        (["demo", "--speedup", "fast"], "invalid float value: 'fast'"),
        (["demo", "--speedup", "0.5"], "a number above 1 and at most 180, got 0.5"),
        (["demo", "--speedup", "1"], "above 1"),
        (["demo", "--speedup", "1000"], "at most 180"),
        (["demo", "--speedup", "nan"], "got nan"),
        (["demo", "--seeds", "0"], "at least 1, got 0"),
        (["demo", "--seeds", "two"], "invalid int value: 'two'"),
        (["demo", "--seeds", "1.5"], "invalid int value: '1.5'"),
        (["demo", "--steps", "3"], "at least 20, got 3"),
        (["demo", "--threads", "0"], "at least 1, got '0'"),
        (["demo", "--learning-rate", "-1"], "above 0, got -1.0"),
        (["demo", "--output-dir", __file__], "a folder that can be written to"),
        (["demo", "--output-dir", f"{__file__}/below"], "a folder that can be written to"),
        (["demo", "--output-dir", "/proc/demo"], "a folder that can be written to"),
    ],
)
def test_bad_usage_is_told_in_one_line(capsys, arguments, said):
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert said in err


@pytest.mark.parametrize(
    ("module", "arguments", "hint"),
    [
        ("lightning", TINY, "hybrid_predict[lightning]"),
        ("mlflow", TINY, "hybrid_predict[mlflow]"),
        ("rich", TINY, "hybrid_predict[cli]"),
    ],
)
def test_a_missing_extra_is_told_in_one_line(
    tmp_path, monkeypatch, capsys, module, arguments, hint
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    assert cli.main(arguments) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert f'pip install "path/to/{hint}"' in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--version"], __version__),
        (["--help"], "demo"),
        ([], "commands:"),
        (["demo", "--help"], "--learning-rate"),
    ],
)
def test_help_and_version(capsys, arguments, said):
    assert cli.main(arguments) == 0
    printed = capsys.readouterr().out
    assert said in printed
    assert not re.search("<function|None", printed)


def test_help_imports_neither_torch_nor_an_extra():
    code = (
        "import sys; from hybrid_predict.cli import main; main(['--help']); main(['demo', '-h']); "
        "found = {'torch', 'lightning', 'mlflow', 'rich', 'matplotlib', 'jsonargparse'}; "
        "print(found & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[-1], done.stderr) == (0, "set()", "")


@pytest.mark.parametrize("terminal", [True, False])
def test_what_takes_a_while_is_said_on_a_terminal_only(capsys, monkeypatch, terminal):
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    assert cli.main(["schema"]) == 0
    assert capsys.readouterr().err == "hybrid-predict: loading torch …\n" * terminal


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"trainers": {}}, "Did you mean trainer?"),
        ({"audit": {"retian": 0.9}}, "Did you mean retain?"),
        ({"audit": {"hybrid": {"warmup_step": 3}}}, "Did you mean warmup_steps?"),
        ({"audit": {"hybrid": {"updates": {"hiden": "spectral"}}}}, "parameter kinds"),
        ({"audit": {"hybrid": {"updates": None}}}, "Write {} to correct nothing."),
        ({"audit": {"hybrid": {"lag": "some"}}}, "lag: expected an integer"),
        ({"audit": {"hybrid": ["lag"]}}, "hybrid: expected a mapping"),
        ({"audit": {"seeds": "many"}}, "seeds: expected an integer"),
        ({"audit": 3}, "audit: expected names and values"),
        ({True: 3}, "got 'True'"),
        ({"trainer": [1]}, "trainer: expected names and values"),
    ],
    ids=str,
)
@pytest.mark.parametrize("command", ["audit", "doctor"])
def test_a_wrong_file_is_told_before_slow_imports(tmp_path, capsys, command, content, said):
    file = tmp_path / "file.yaml"
    whole = {"model": {"class_path": "no_module.Model"}, "trainer": {}, **content}
    file.write_text(yaml.safe_dump(whole))
    with pytest.MonkeyPatch.context() as patch:
        for name in ("torch", "lightning"):
            for module in [m for m in sys.modules if m.split(".")[0] == name]:
                patch.setitem(sys.modules, module, None)
        assert cli.main([command, str(file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_file_is_checked_without_torch():
    code = (
        "import sys; from hybrid_predict.audit.file import check_file; "
        "check_file('examples/audit.yaml'); "
        "assert not {'torch', 'lightning'} & sys.modules.keys()"
    )
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=root)


def test_the_schema_needs_neither_lightning_nor_figures():
    """They take seconds to import."""
    code = (
        "import sys; from hybrid_predict import cli; cli.main(['schema']); "
        "assert not {'lightning', 'matplotlib', 'rich', 'mlflow'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_sigterm_ends_any_command_as_ctrl_c_does(capsys):
    def stopped(options):
        os.kill(os.getpid(), signal.SIGTERM)

    command = Command("stops", "stops", lambda add: None, stopped)
    assert run_program("program", "a program", {"stop": command}, ["stop"]) == 130
    said = (
        "program: stopped; what was finished is kept, and the same command continues from there.\n"
    )
    assert capsys.readouterr().err == said
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


FORKS = """
import os
import signal

from hybrid_predict.cli.program import Command, run_program


def forks(options):
    worker = os.fork()
    if worker == 0:
        os.kill(os.getpid(), signal.SIGTERM)
    return os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])


command = Command("forks", "forks", lambda add: None, forks)
print(run_program("program", "a program", {"fork": command}, ["fork"]))
"""


def test_a_forked_worker_dies_of_sigterm():
    ended = subprocess.run(
        [sys.executable, "-c", FORKS], capture_output=True, text=True, check=True
    )
    assert (ended.stdout, ended.stderr) == (f"{-signal.SIGTERM}\n", "")


def test_sigterm_that_is_ignored_stays_so(capsys):
    def ends(options):
        os.kill(os.getpid(), signal.SIGTERM)
        return 0

    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        command = Command("ends", "ends", lambda add: None, ends)
        assert run_program("program", "a program", {"end": command}, ["end"]) == 0
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
    assert capsys.readouterr().err == ""


def test_a_reader_of_a_table_that_has_enough_is_no_error(monkeypatch, capsys):
    def shown(options):
        try:
            raise BrokenPipeError
        except BrokenPipeError:
            raise SystemExit(1)  # noqa: B904, as rich does

    command = Command("shows", "shows", lambda add: None, shown)
    assert run_program("program", "a program", {"show": command}, ["show"]) == 141
    assert capsys.readouterr().err == ""
