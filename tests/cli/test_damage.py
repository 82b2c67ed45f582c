"""Commands on run logs that are damaged, hostile, or something else than a file."""

import json
import os
import subprocess
import sys

import pytest
from run_logs import NAME, ROWS, written

from hybrid_predict import cli
from hybrid_predict.report.run_log import read_log

pytest.importorskip("rich")
pytest.importorskip("matplotlib")

DEEP = b'{"type": "row", "run": "x", "a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"


def changed(line, **entries):
    return json.dumps({**line, **entries}).encode()


ROW, START = ROWS[1], written(ROWS)[0]
END = {"type": "end", "run": "x", "time": 1.0, "status": "finished"}
DAMAGES = {
    "nested": DEEP,
    "NUL bytes": b"\0" * 5000,
    "not UTF-8": b'{"type": "end", "run": "x", "time": 1, "status": "\xff\xfe"}',
    "half a character": '{"type": "end", "status": "é'.encode()[:-1],
    "no type": b"{}",
    "no object": b"[1]",
    "row without entries": b'{"type": "row", "run": "x"}',
    "counts as text": changed(ROW, ledger={**ROW["ledger"], "full_steps": "many"}),
    "counts below zero": changed(ROW, ledger={**ROW["ledger"], "steps": -5}),
    "skill as text": changed(ROW, ledger={**ROW["ledger"], "skills": {"hidden": {"mean": "x"}}}),
    "infinite": changed(ROW, loss=1.0).replace(b'"loss": 1.0', b'"loss": 1e999'),
    "not a number": changed(ROW, loss=float("nan")),
    "end without status": b'{"type": "end", "run": "x", "time": 1.0}',
    "end at no time": changed(END, time="now"),
    "end in the far future": changed(END, time=1e300),
    "start without plan": changed(START, plan={}),
    "start of no steps": changed(START, plan={**START["plan"], "steps": 0}),
    "start without time": changed(START, time=None),
    "schema as text": changed(START, schema="one"),
}


def damaged(folder, *damages):
    lines = [json.dumps(line).encode() for line in written(ROWS)]
    path = folder / NAME
    path.write_bytes(b"\n".join([lines[0], *damages, *lines[1:], *damages]))
    return path


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_damaged_lines_are_counted_and_the_others_are_shown(tmp_path, capsys, damage):
    path = damaged(tmp_path, damage)
    log = read_log(path)
    assert (log.unread, len(log.rows), log.status) == (2, 3, "finished")
    assert cli.main(["watch", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "60 (60 planned)" in shown
    assert "2 lines of the log cannot be read" in shown


def test_a_page_about_a_damaged_log_counts_what_it_leaves_out(tmp_path):
    damaged(tmp_path, *DAMAGES.values())
    assert cli.main(["report", str(tmp_path)]) == 0
    page = (tmp_path / "hybrid_predict.html").read_text(encoding="utf-8")
    assert f"{2 * len(DAMAGES)} lines of the log cannot be read" in page


@pytest.mark.parametrize("command", ["watch", "report"])
@pytest.mark.parametrize("damage", [DEEP, b"\0" * 99, b"\xff", b""], ids=["deep", "nul", "x", ""])
def test_a_log_without_a_run_gets_one_line(tmp_path, capsys, command, damage):
    (tmp_path / NAME).write_bytes(damage)
    assert cli.main([command, str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "It holds no run" in said


@pytest.mark.parametrize("what", ["pipe", "device", "folder", "loop", "nothing"])
@pytest.mark.parametrize("named", ["folder", "file"])
def test_no_command_waits_for_what_is_no_file(tmp_path, what, named):
    path = tmp_path / NAME
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    elif what != "nothing":
        path.symlink_to("/dev/zero" if what == "device" else path)
    done = in_a_process("watch", str(tmp_path if named == "folder" else path))
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1 and b"HybridPredict(log_dir=...)" in done.stderr


def in_a_process(*arguments, **options):
    """Run a command in a process of its own, which is killed if it waits."""
    code = "import sys; from hybrid_predict import cli; sys.exit(cli.main(sys.argv[1:]))"
    command = [sys.executable, "-P", "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, timeout=120, **options)


HOSTILE = "\x1b]0;owned\x07\x1b[31mred\x9b2J\rback\ud800 \u202e"


@pytest.mark.parametrize("command", ["watch", "report"])
def test_nothing_in_a_log_reaches_the_terminal_as_a_command(tmp_path, capsys, command):
    lines = written(ROWS, end=None, event=HOSTILE)
    lines[0]["config"] = {HOSTILE: HOSTILE}
    lines[-1]["phase"] = HOSTILE
    folder = tmp_path / "\x1b[31mred"
    folder.mkdir()
    (folder / NAME).write_text("\n".join(map(json.dumps, lines)))
    assert cli.main([command, str(folder)]) == 0
    said = "".join(capsys.readouterr())
    assert all(c.isprintable() for c in said.replace("\n", ""))
    assert "?[31mred" in said


def test_an_error_and_a_status_cannot_command_the_terminal(tmp_path, capsys):
    (tmp_path / NAME).write_text("\n".join(map(json.dumps, written(ROWS, end=HOSTILE))))
    assert cli.main(["watch", str(tmp_path)]) == 0
    assert cli.main(["watch\x1b[31m"]) == 2
    said = "".join(capsys.readouterr())
    assert all(c.isprintable() for c in said.replace("\n", ""))


@pytest.mark.parametrize("option", [False, True])
def test_a_page_never_goes_through_a_link(tmp_path, capsys, option):
    (tmp_path / NAME).write_text("\n".join(map(json.dumps, written(ROWS))))
    precious, page = tmp_path / "precious", tmp_path / "hybrid_predict.html"
    precious.write_text("mine")
    page.symlink_to(precious)
    given = ["--output", str(page)] if option else []
    assert cli.main(["report", str(tmp_path), *given]) == 2
    assert "a link" in capsys.readouterr().err
    assert precious.read_text() == "mine" and page.is_symlink()
    page.unlink()
    assert cli.main(["report", str(tmp_path), *given]) == 0
    inode = page.stat().st_ino
    assert cli.main(["report", str(tmp_path), *given]) == 0
    assert page.stat().st_ino != inode  # replaced as a whole
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([NAME, page.name, "precious"])


@pytest.mark.parametrize("name", ["/dev/null", "/dev/stdout"])
def test_a_device_is_not_replaced_by_a_page(tmp_path, capsys, name):
    before = os.lstat(name)
    (tmp_path / NAME).write_text("\n".join(map(json.dumps, written(ROWS))))
    assert cli.main(["report", str(tmp_path), "--output", name]) == 2
    assert os.lstat(name).st_ino == before.st_ino
    assert "--output" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [["watch", "."], ["report", "."], ["report", "é"], ["schema"], ["--help"], ["nö"], ["doctor"]],
    ids=" ".join,
)
def test_a_terminal_of_ascii_is_enough(tmp_path, arguments):
    lines = written(ROWS, end=None, event="Größe ± 3 · 10⁻³")
    (tmp_path / NAME).write_text("\n".join(map(json.dumps, lines)))
    variables = {**os.environ, "LANG": "C", "LC_ALL": "C", "PYTHONIOENCODING": "ascii:strict"}
    done = in_a_process(*arguments, cwd=tmp_path, env=variables)
    assert b"Traceback" not in done.stderr
    assert (done.stdout + done.stderr).isascii()
    assert done.returncode == (2 if arguments[-1] in ("é", "nö") else 0)
    if arguments[0] == "watch":
        assert b"?" * 20 in done.stdout and b"Gr??e ? 3 ? 10" in done.stdout
