"""What every command does alike: help, bad usage in one line, missing extras."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from audit_file import FILE, with_audit, write
from run_logs import NAME, ROWS, written

from hybrid_predict import __version__, cli
from hybrid_predict.cli.program import Command, run_program, with_seeds


@pytest.mark.parametrize(
    ("typed", "proof"),
    [
        ("audit file.yaml", "audit file.yaml --seeds 5"),
        ("audit --seeds 2 file.yaml", "audit file.yaml --seeds 5"),
        ("audit file.yaml --seeds=2 --overwrite", "audit file.yaml --seeds 5"),
        ("demo --seeds=1 --threads 1", "demo --threads 1 --seeds 5"),
        ("demo --full --output-dir 'a b'", "demo --full --output-dir 'a b' --seeds 5"),
    ],
)
def test_the_proof_is_the_typed_command_with_more_seeds(typed, proof):
    assert with_seeds(shlex.split(typed), 5) == f"hybrid-predict {proof}"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["bench"], "expected one of demo, doctor"),
        (["dmeo"], "Did you mean demo?"),
        (["demo", "--sedes", "2"], "Did you mean --seeds?"),
        (["--verison"], "Did you mean --version?"),
        (["demo", "extra"], "extra"),
        (["demo", "--speedup"], "--speedup"),
        (["demo", "--speedup", "fast"], "invalid float value: 'fast'"),
        (["demo", "--speedup", "0.5"], "a number above 1 and at most 60, got 0.5"),
        (["demo", "--speedup", "nan"], "got nan"),
        (["demo", "--seeds", "0"], "seeds: expected an integer from 1 to 10,000, got 0"),
        (["demo", "--seeds", "1000000000000"], "from 1 to 10,000, got 1000000000000"),
        (["demo", "--seeds", "two"], "invalid int value: 'two'"),
        (["demo", "--steps", "3"], "at least 20, got 3"),
        (["demo", "--threads", "0"], "from 1 to 4096, got '0'"),
        (["demo", "--threads", "1000000000000"], "from 1 to 4096, got '1000000000000'"),
        (["demo", "--learning-rate", "-1"], "above 0, got -1.0"),
        (["demo", "--output-dir", __file__], "a folder that can be written to"),
        (["demo", "--output-dir", "/proc/demo"], "a folder that can be written to"),
    ],
)
def test_bad_usage_is_refused_in_one_line(refused, arguments, words):
    assert words in refused(*arguments)


@pytest.mark.parametrize(
    ("module", "extra"), [("lightning", "lightning"), ("mlflow", "mlflow"), ("rich", "cli")]
)
@pytest.mark.parametrize("command", ["demo", "audit"])
def test_a_missing_extra_is_named_in_one_line(work, monkeypatch, refused, command, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    demo = ["demo", "--steps", "24"]
    arguments = demo if command == "demo" else ["audit", write(with_audit(mlflow=True))]
    assert f'pip install "path/to/hybrid_predict[{extra}]"' in refused(*arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--version"], __version__),
        (["--help"], "demo"),
        ([], "commands:"),
        (["demo", "--help"], "--learning-rate"),
    ],
)
def test_help_and_version(capsys, arguments, words):
    assert cli.main(arguments) == 0
    printed = capsys.readouterr().out
    assert words in printed
    assert not re.search("<function|None", printed)


def test_what_takes_seconds_to_import_is_imported_where_it_is_needed():
    modules = {"torch", "lightning", "mlflow", "rich", "matplotlib", "jsonargparse"}
    code = "import sys; from hybrid_predict.cli import main; main(['--help']); main(['demo', '-h'])"
    code = f"{code}; print({modules} & sys.modules.keys())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2]
    )
    assert (done.returncode, done.stdout.splitlines()[-1], done.stderr) == (0, "set()", "")


@pytest.mark.parametrize("terminal", [True, False])
def test_what_takes_a_while_is_announced_on_a_terminal_only(capsys, monkeypatch, terminal):
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    assert cli.main(["doctor"]) == 0
    assert capsys.readouterr().err == "hybrid-predict: loading torch …\n" * terminal


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"trainers": {}}, "Did you mean trainer?"),
        ({"audit": {"retian": 0.9}}, "Did you mean retain?"),
        ({"audit": {"hybrid": {"warmup_step": 3}}}, "Did you mean warmup_steps?"),
        ({"audit": {"hybrid": {"updates": {"hiden": "spectral"}}}}, "parameter kinds"),
        ({"audit": {"hybrid": {"updates": None}}}, "Write {} to correct nothing."),
        ({"audit": {"hybrid": {"warmup_steps": "some"}}}, "warmup_steps: expected a number"),
        ({"audit": {"hybrid": ["shadow"]}}, "hybrid: expected a mapping"),
        ({"audit": {"seeds": "many"}}, "seeds: expected an integer"),
        ({"audit": {"seeds": 10**12}}, "from 1 to 10,000, got 1000000000000."),
        ({"audit": {"speedup": 10**400}}, "… (401 characters)."),
        ({"audit": {"hybrid": {"warmup_steps": 10**400}}}, "warmup_steps: expected a number"),
        ({"audit": 3}, "audit: expected names and values"),
        ({True: 3}, "got 'True'"),
        ({"trainer": [1]}, "trainer: expected names and values"),
    ],
    ids=str,
)
@pytest.mark.parametrize("command", ["audit", "doctor"])
def test_a_wrong_file_is_refused_before_slow_imports(tmp_path, refused, command, content, words):
    file = tmp_path / "file.yaml"
    whole = {"model": {"class_path": "no_module.Model"}, "trainer": {}, **content}
    file.write_text(yaml.safe_dump(whole))
    with pytest.MonkeyPatch.context() as patch:
        for module in [m for m in sys.modules if m.split(".")[0] in ("torch", "lightning")]:
            patch.setitem(sys.modules, module, None)
        assert words in refused(command, str(file))


LONG = "a" * 5000


@pytest.fixture
def hostile(work):
    """A folder with what is no file to read, and no place to write to."""
    (work / "folder").mkdir()
    (work / "binary").write_bytes(bytes(range(256)))
    (work / "large").write_text("#" * 2_000_000)
    (work / "nested").write_text("[" * 5000 + "]" * 5000)
    (work / "digits").write_text(f"seeds: {'9' * 5000}")
    (work / "circle").write_text("model: &a {b: *a}\ntrainer: {}")
    (work / "value").write_text("model: !!int ''")
    os.mkfifo(work / "pipe")
    return work


@pytest.mark.parametrize(
    "name",
    ["", LONG, f"{LONG}:f", "nul\0byte", "folder", "binary", "binary/below", "large", "nested",
     "digits", "circle", "value", "nowhere", ":f", ".a:f"],
    ids=lambda name: name[-9:],
)  # fmt: skip
@pytest.mark.parametrize("command", ["audit", "doctor", "watch", "report"])
def test_what_cannot_be_read_is_refused_in_one_line(hostile, refused, command, name):
    assert " expected " in refused(command, name)


@pytest.mark.parametrize("name", ["pipe", "/dev/zero"])
def test_no_audit_waits_for_a_pipe_or_reads_a_device(hostile, name):
    code = "import sys; from hybrid_predict import cli; sys.exit(cli.main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "audit", name]
    done = subprocess.run(command, capture_output=True, timeout=120)
    assert done.returncode == 2 and b"it is no regular file" in done.stderr


def test_a_folder_in_place_of_finished_runs_is_refused_in_one_line(hostile, refused):
    (hostile / "folder" / "runs.jsonl").mkdir()
    arguments = ["audit", write(FILE), "--output-dir", "folder"]
    assert "folder/runs.jsonl'. The system says: it is no regular file" in refused(*arguments)


@pytest.mark.parametrize("name", ["", LONG, "nul\0byte", "binary/below", "pipe", "/dev/zero"],
                         ids=lambda name: name[-9:])  # fmt: skip
@pytest.mark.parametrize(
    "command", ["report run --output", "demo --output-dir", "audit file.yaml --output-dir"]
)  # fmt: skip
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
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        assert ran(terminated) == 0
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

    assert ran(shown) == 141
    assert capsys.readouterr().err == ""
