"""``hybrid-predict watch`` and ``report`` on the log of a run."""

import html
import json
import os
import re
from pathlib import Path

import pytest
from run_logs import NAME, ROWS, SKILLS, row, written

from hybrid_predict import cli
from hybrid_predict.ledger import FELL_BACK
from hybrid_predict.policy.overfitting import OVERFITS
from hybrid_predict.runs.log import advice, events, finding, read_log
from hybrid_predict.runs.page import run_figure, run_page

pytest.importorskip("rich")
pytest.importorskip("matplotlib")


def write(folder, *args, **options):
    """Write a log into a folder, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NAME).write_text("\n".join(map(json.dumps, written(*args, **options))))
    return folder / NAME


SHORTER = row(70, 30, {})

EXPENSIVE = row(140, 60, {}, full_seconds=1.0, correct_seconds=5.0, predict_seconds=1.0)


@pytest.mark.parametrize(
    ("rows", "end", "event", "words"),
    [
        (ROWS, "finished", "", "30 % fewer full steps, about 5.4 s saved on the host"),
        ([], "stopped", "", "nothing was trained yet"),
        ([EXPENSIVE], "finished", "",
         "about 5.6 s longer on the host than plain training; 30 % fewer full steps"),
        ([SHORTER], "stopped", "", "stopped after 100 of 200 steps, 30 % of them predicted"),
        ([SHORTER], "failed: at \x1b", "", "failed after 100 of 200 steps, 30 % of them predicted"),
        ([SHORTER], None, "", "running, 100 of 200 steps, 30 % of them predicted"),
        ([row(200, 0, {})], "finished", "no predicted steps while they would be too short \x1b: 9",
         "200 full steps, none predicted; no predicted steps while they would be too short ?"),
        (ROWS[:1], None, f"{FELL_BACK}for a long reason",
         "running, 20 of 200 steps, none of them predicted; plain training since full step 70"),
        (ROWS, "finished", f"{OVERFITS}: a long text",
         "30 % fewer full steps, about 5.4 s saved on the host; it has overfitted"),
    ],
)  # fmt: skip
def test_the_finding_claims_no_more_than_was_measured_in_one_line(
    tmp_path, rows, end, event, words
):
    assert finding(read_log(write(tmp_path, rows, end, event))) == words
    assert len(words) < 90


@pytest.mark.parametrize(
    ("last", "words"),
    [(None, "full step 70: why"), (130, "full steps 70 to 130, 7 times: why")],
)
def test_an_event_says_in_which_full_steps_it_happened(tmp_path, last, words):
    path = write(tmp_path, ROWS, event="why")
    log = read_log(path)
    log.ledger.events[0] |= {} if last is None else {"last": last, "count": 7}
    assert events(log) == [words]


def test_a_page_about_one_run_loads_nothing_and_says_what_one_run_cannot_show(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    written = write(tmp_path / "logs" / "version_3", ROWS)
    os.utime(write(tmp_path / "logs" / "version_2", ROWS), (0, 0))
    assert cli.main(["report", "logs"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    page = Path("hybrid_predict.html").read_text(encoding="utf-8")
    assert [path.name for path in written.parent.iterdir()] == [NAME]  # it may be an artifact store
    assert "logs/version_3 is the newest of 2 runs" in out and "such as logs/version_2" in out
    for text in (out, page):
        assert "One run cannot show" in text and "hybrid-predict audit" in text
    assert "something &lt;happened&gt;" in page
    assert page.count("data:image/svg+xml;base64,") == 1
    assert not re.search(r"<script|<link|@import|url\(|href=|https?:", page)


BEST = {"metric": "val_loss", "value": 0.4, "step": 50, "full_steps": 40}


def test_a_figure_draws_what_a_run_has(tmp_path):
    log = read_log(write(tmp_path, [row(20, 0, {}), row(140, 60, SKILLS, best=BEST)]))
    drawn = {axes.get_ylabel(): len(axes.lines) for axes in run_figure(log).axes}
    panels = {"training loss": 1, "best val_loss\nso far": 1, "predicted\nsteps": 2, "skill": 1}
    assert drawn == panels
    log = read_log(write(tmp_path, [{**row(20, 0, {}, undone_steps=0), "loss": None}]))
    assert run_figure(log) is None and "<img" not in run_page(log)


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (f"{FELL_BACK}use larger batches, or set max_overhead=0.3.", "max_overhead=0.3  #"),
        (f"{OVERFITS}: best val_loss 0.4", 'on_overfit="stop"  #'),
        (f"{OVERFITS}: best val_loss 0.4", "max_steps=50  #"),
    ],
)
def test_what_helps_is_there_to_copy(tmp_path, event, words):
    log = read_log(write(tmp_path, [row(140, 60, {}, best=BEST)], event=event))
    assert [line.startswith(words) for line in advice(log)].count(True) == 1
    assert f"{words[:-1]}" in html.unescape(run_page(log))


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("command", ["watch", "report"])
def test_the_facts_of_a_run_are_printed(tmp_path, monkeypatch, capsys, command):
    monkeypatch.setenv("COLUMNS", "60")
    write(tmp_path, ROWS, end=None)
    monkeypatch.chdir(tmp_path)
    assert cli.main([command, str(tmp_path)]) == 0
    shown = capsys.readouterr().out.partition("\n\n")[0].splitlines()
    assert max(map(len, shown)) <= 60
    text = " ".join(" ".join(shown).split())
    for words in (
        "status running",
        "60 of 60, 1 undone",
        "30 % fewer full steps, about 5.4 s saved on the host",
        "full step 70: something <happened>",
    ):
        assert words in text


@pytest.mark.parametrize("command", ["watch", "report"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("nothing", "no run that this version has written"),
        (None, "HybridPredict(log_dir=...)"),
    ],
)
def test_a_log_without_a_run_gets_one_line(tmp_path, refused, command, content, words):
    if content is not None:
        (tmp_path / NAME).write_text(content)
    assert words in refused(command, str(tmp_path))


HOSTILE = "\x1b]0;owned\x07\x1b[31mred\x9b2J\rback \u202e"


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(("command", "end"), [("watch", None), ("report", HOSTILE)])
def test_nothing_in_a_log_reaches_the_terminal_as_a_command(
    tmp_path, monkeypatch, capsys, command, end
):
    monkeypatch.chdir(tmp_path)
    hostile = written(ROWS, end, HOSTILE)
    hostile[0]["config"] = {HOSTILE: HOSTILE}
    folder = tmp_path / "\x1b[31mred"
    folder.mkdir()
    (folder / NAME).write_text("\n".join(map(json.dumps, hostile)))
    assert cli.main([command, str(folder)]) == 0
    text = "".join(capsys.readouterr())
    assert all(c.isprintable() for c in text.replace("\n", ""))
    assert "?[31mred" in text
