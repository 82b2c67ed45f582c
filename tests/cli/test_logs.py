"""``hybrid-predict watch`` and ``report`` on the log of a run, whole, damaged or hostile."""

import json
import os
import re
import subprocess
import sys

import pytest
from run_logs import NAME, ROWS, SKILLS, row, written

from hybrid_predict import cli
from hybrid_predict.runs.facts import facts, finding, lines
from hybrid_predict.runs.figures import MEASURED, kinds_figure, loss_figure
from hybrid_predict.runs.log import read_log

pytest.importorskip("rich")
pytest.importorskip("matplotlib")


def write(folder, *args, **options):
    """Write a log into a folder, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NAME).write_text("\n".join(map(json.dumps, written(*args, **options))))
    return folder / NAME


EXPENSIVE = row(140, 60, {}, full_seconds=1.0, correct_seconds=5.0, predict_seconds=1.0)


@pytest.mark.parametrize(
    ("rows", "plan", "words"),
    [
        (ROWS, {}, "30 % fewer full steps; by estimate 15 s on the host instead of 20 s"),
        ([], {}, "nothing was trained yet"),
        (ROWS[:1], {}, "no predicted steps: the warm-up is not over; nothing was saved"),
        ([EXPENSIVE], {}, "by estimate 7 s on the host instead of 1.4 s"),
        (ROWS[:2], {"event": "no predicted steps while they would be too short \x1b"},
         "while they would be too short ?; nothing was saved"),
    ],
)  # fmt: skip
def test_the_finding_claims_no_more_than_was_measured(tmp_path, rows, plan, words):
    assert words in finding(read_log(write(tmp_path, rows, **plan)))


@pytest.mark.parametrize("paced", [False, True])
def test_a_page_about_one_run_loads_nothing_and_says_what_one_run_cannot_show(
    tmp_path, capsys, paced
):
    known = {**SKILLS["hidden"], "persistence": 0.12, "advance": 1.5}
    rows = [*ROWS[:-1], row(140, 60, {"hidden": known})] if paced else ROWS
    path = write(tmp_path / "logs" / "version_3", rows, paced=paced).with_suffix(".html")
    shown = facts(read_log(path.with_suffix(".jsonl")))
    assert ("(at most 60)" if paced else "(60 planned)") in shown["predicted"]
    lasting = "latest 0.12, advance 1.50 drifts per full step" if paced else None
    assert shown.get("persistence, hidden") == lasting
    assert cli.main(["report", str(tmp_path)]) == 0
    out, page = capsys.readouterr().out, path.read_text(encoding="utf-8")
    assert str(path) in out
    for text in (out, page):
        assert "One run cannot show" in text
    assert "hybrid-predict audit config.yaml --plan" in page
    assert "something &lt;happened&gt;" in page
    assert page.count("data:image/svg+xml;base64,") == (6 if paced else 4)  # rows of two
    assert not re.search(r"<script|<link|@import|url\(|href=|https?:", page)


def test_a_run_that_fell_back_says_why(tmp_path, capsys):
    """In full step 70, after a warm-up of 50."""
    rows = [row(n, 0, {}, corrected_steps=0) for n in (20, 308)]
    path = write(tmp_path, rows, steps=308, event="fell back to plain training: the reason")
    log = read_log(path)
    assert "correcting" not in facts(log)
    top, _ = loss_figure(log).axes
    grey = [patch.get_extents().transformed(top.transData.inverted()) for patch in top.patches]
    assert sum(patch.width for patch in grey) == pytest.approx(50 + 308 - 70)
    (axes,) = kinds_figure(log, MEASURED[0]).axes
    assert [text.get_text() for text in axes.texts] == ["never known"]
    assert cli.main(["report", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("fell back to plain training: the reason") == 1
    assert sum("the reason" in line for line in lines(log, 150, 0.0)) == 1


def test_several_runs_stand_side_by_side(tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a", ROWS, "finished")
    write(tmp_path / "b", ROWS[:1], None)
    assert cli.main(["report", "a", "b"]) == 0
    page = (tmp_path / "hybrid_predict.html").read_text(encoding="utf-8")
    for words in ("2 runs side by side", "<th>a</th><th>b</th>", "need not come from the plug-in"):
        assert words in page
    line = refused("report", "a", "--output", "nowhere/page.html")
    assert "--output: expected a file that can be written" in line


def test_the_view_fits_the_terminal(tmp_path):
    shown = lines(read_log(write(tmp_path, ROWS, end=None)), 60, now=1003.0)
    assert max(map(len, shown)) <= 60
    text = " ".join(" ".join(shown).split())
    for words in (
        "running",
        "200 of 200",
        "60 (60 planned), 1 undone",
        "30 % fewer full steps; by estimate 15 s on the host instead of 20 s",
        "4 % of the host seconds of full steps",
        "0.31 (at least 0.25, 3 windows)",
        "full step 70: something <happened>",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("rows", "end", "now", "words"),
    [
        (ROWS, None, 1600.0, "nothing written for 10.0 min; it may have been killed"),
        ([], "failed: x", 0.0, "failed: x"),
    ],
)
def test_the_view_shows_that_a_run_is_silent_or_has_failed(tmp_path, rows, end, now, words):
    shown = lines(read_log(write(tmp_path, rows, end)), 80, now)
    assert words in " ".join(map(str.strip, shown))


@pytest.mark.parametrize(
    ("rows", "end", "resumed", "time"),
    [
        (ROWS[:2], None, 0, "10 s, about 23 s to come"),
        (ROWS[:2], None, 20, "10 s, about 35 s to come"),  # 40 steps since it went on
        (ROWS[:2], "finished", 0, "20 s"),
    ],
)
def test_the_view_estimates_how_long_the_run_will_still_take(tmp_path, rows, end, resumed, time):
    path = write(tmp_path, rows, end)
    if resumed:
        start, *others = map(json.loads, path.read_text().splitlines())
        again = {**start, "full_steps": resumed}
        path.write_text("\n".join(map(json.dumps, [start, others[0], again, *others[1:]])))
    assert facts(read_log(path))["wall time"] == time


DEEP = b'{"type": "row", "run": "x", "a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
ROW, START = ROWS[1], written(ROWS)[0]
END = {"type": "end", "run": "x", "time": 1.0, "status": "finished"}


def changed(line, **entries):
    return json.dumps({**line, **entries}).encode()


DAMAGES = {
    "nested": DEEP,
    "NUL bytes": b"\0" * 5000,
    "not UTF-8": b'{"type": "end", "run": "x", "time": 1, "status": "\xff\xfe"}',
    "no type": b"{}",
    "no object": b"[1]",
    "row without entries": b'{"type": "row", "run": "x"}',
    "counts as text": changed(ROW, ledger={**ROW["ledger"], "full_steps": "many"}),
    "end without status": b'{"type": "end", "run": "x", "time": 1.0}',
    "end at no time": changed(END, time="now"),
    "start without plan": changed(START, plan={}),
    "start of no steps": changed(START, plan={**START["plan"], "steps": 0}),
    "schema as text": changed(START, schema="one"),
}


def damaged(folder, *damages):
    first, *others = (json.dumps(line).encode() for line in written(ROWS))
    (folder / NAME).write_bytes(b"\n".join([first, *damages, *others, *damages]))
    return folder / NAME


def test_a_page_and_a_view_of_a_damaged_log_count_what_they_leave_out(tmp_path, capsys):
    damaged(tmp_path, *DAMAGES.values())
    assert cli.main(["report", str(tmp_path)]) == cli.main(["watch", str(tmp_path)]) == 0
    page = (tmp_path / "hybrid_predict.html").read_text(encoding="utf-8")
    for text in (page, capsys.readouterr().out):
        assert "lines of the log that cannot be read" in text
        assert str(2 * len(DAMAGES)) in text


@pytest.mark.parametrize("command", ["watch", "report"])
@pytest.mark.parametrize(
    ("content", "words"),
    [(DEEP, "It holds no run"), (None, "HybridPredict(log_dir=...)")],
    ids=["damaged", "missing"],
)
def test_a_log_without_a_run_gets_one_line(tmp_path, refused, command, content, words):
    if content is not None:
        (tmp_path / NAME).write_bytes(content)
    assert words in refused(command, str(tmp_path))


def in_a_process(*arguments, **options):
    """Run a command in a process of its own, which is killed if it waits."""
    code = "import sys; from hybrid_predict import cli; sys.exit(cli.main(sys.argv[1:]))"
    command = [sys.executable, "-P", "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, timeout=120, **options)


def test_no_command_waits_for_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / NAME)
    done = in_a_process("watch", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1 and b"HybridPredict(log_dir=...)" in done.stderr


HOSTILE = "\x1b]0;owned\x07\x1b[31mred\x9b2J\rback\ud800 \u202e"


@pytest.mark.parametrize(("command", "end"), [("watch", None), ("report", HOSTILE)])
def test_nothing_in_a_log_reaches_the_terminal_as_a_command(tmp_path, capsys, command, end):
    hostile = written(ROWS, end, HOSTILE)
    hostile[0]["config"] = {HOSTILE: HOSTILE}
    hostile[3]["phase"] = HOSTILE
    folder = tmp_path / "\x1b[31mred"
    folder.mkdir()
    (folder / NAME).write_text("\n".join(map(json.dumps, hostile)))
    assert cli.main([command, str(folder)]) == 0
    assert cli.main([f"{command}\x1b[31m"]) == 2
    text = "".join(capsys.readouterr())
    assert all(c.isprintable() for c in text.replace("\n", ""))
    assert "?[31mred" in text


@pytest.mark.usefixtures("undrawn")
def test_a_page_never_goes_through_a_link(tmp_path, refused):
    write(tmp_path, ROWS)
    target, page = tmp_path / "target", tmp_path / "hybrid_predict.html"
    target.write_text("mine")
    page.symlink_to(target)
    arguments = ["report", str(tmp_path), "--output", str(page)]
    assert "a link" in refused(*arguments)
    assert target.read_text() == "mine" and page.is_symlink()
    page.unlink()
    assert cli.main(arguments) == 0
    inode = page.stat().st_ino
    assert cli.main(arguments) == 0
    assert page.stat().st_ino != inode  # replaced as a whole
    assert {p.name for p in tmp_path.iterdir()} == {NAME, page.name, "target"}


def test_a_terminal_of_ascii_is_enough(tmp_path):
    write(tmp_path, ROWS, end=None, event="Größe ± 3 · 10⁻³")
    variables = {**os.environ, "LANG": "C", "LC_ALL": "C", "PYTHONIOENCODING": "ascii:strict"}
    done = in_a_process("watch", ".", cwd=tmp_path, env=variables)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"?" * 20 in done.stdout and b"Gr??e ? 3 ? 10" in done.stdout
