"""``hybrid-predict report`` and ``watch``: what they show of the event log of a run."""

import json
import re

import pytest
from event_logs import NAME, ROWS, written

from hybrid_predict import ConfigError, cli
from hybrid_predict.cli import watch
from hybrid_predict.report.run_log import read_log
from hybrid_predict.report.run_page import finding
from hybrid_predict.report.stop_request import STOP, ask, is_asked, withdraw
from hybrid_predict.report.terminal import lines, sparkline


def write(folder, rows, end="finished", **plan):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NAME).write_text("\n".join(map(json.dumps, written(rows, end, **plan))))
    return folder / NAME


@pytest.mark.parametrize(
    ("rows", "plan", "said"),
    [
        (ROWS, {}, "30 % fewer full steps; by estimate 5.4 s saved of 20 s on the host"),
        ([], {}, "nothing was trained yet"),
        (ROWS[:1], {}, "no predicted steps: the warm-up is not over, so nothing was saved"),
        (ROWS[:2], {}, "no predicted steps where they were planned; nothing was saved"),
        (ROWS[:2], {"predicted": 0}, "60 full steps; no predicted steps were planned"),
        (
            [{**ROWS[2], "seconds": [1.0, 5.0, 1.0]}],
            {},
            "by estimate 5.6 s longer on the host than 1.4 s",
        ),
    ],
)
def test_the_finding_claims_no_more_than_was_measured(tmp_path, rows, plan, said):
    assert said in finding(read_log(write(tmp_path, rows, **plan)))


@pytest.mark.parametrize("why", ["forecasts are too short", "max_overhead", "\x1b[31m"])
def test_the_finding_gives_the_reason_of_the_run_and_no_other(tmp_path, why):
    lines = written(ROWS[:2])
    lines[-2]["reason"] = f"no predicted steps where they were planned: {why}"
    (tmp_path / NAME).write_text("\n".join(map(json.dumps, lines)))
    said = finding(read_log(tmp_path / NAME))
    assert why.replace("\x1b", "?") in said and "skill" not in said


@pytest.fixture
def matplotlib():
    return pytest.importorskip("matplotlib")


def test_a_page_about_one_run_loads_nothing_and_says_what_one_run_cannot_show(
    tmp_path, capsys, matplotlib
):
    write(tmp_path / "logs" / "version_3", ROWS)
    assert cli.main(["report", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    path = tmp_path / "logs" / "version_3" / "hybrid_predict.html"
    assert str(path) in out
    assert "One run cannot show" in out
    page = path.read_text(encoding="utf-8")
    assert "One run cannot show" in page
    assert "hybrid-predict audit config.yaml --plan" in page
    assert "something &lt;happened&gt;" in page
    assert page.count("data:image/svg+xml;base64,") == 3
    assert not re.search(r"<script|<link|@import|url\(|href=|https?:", page)


def test_several_runs_stand_side_by_side(tmp_path, monkeypatch, capsys, matplotlib):
    monkeypatch.chdir(tmp_path)
    for name, rows, end in (("a", ROWS, "finished"), ("b", ROWS[:1], None)):
        write(tmp_path / name, rows, end)
    assert cli.main(["report", "a", "b"]) == 0
    page = (tmp_path / "hybrid_predict.html").read_text(encoding="utf-8")
    assert "2 runs side by side" in page
    assert "<th>a</th><th>b</th>" in page
    assert "need not come from the plug-in" in page
    assert cli.main(["report", "a", "--output", "nowhere/page.html"]) == 2
    assert "--output: expected a file that can be written" in capsys.readouterr().err


@pytest.mark.parametrize("width", [60, 80, 150])
def test_the_view_fits_the_terminal(tmp_path, width):
    shown = lines(read_log(write(tmp_path, ROWS, end=None)), width, now=1003.0)
    assert max(map(len, shown)) <= width
    text = " ".join(" ".join(shown).split())
    assert "running" in text
    assert "200/200 steps" in text
    assert "140 full + 60 predicted (60 planned), 1 undone, predict" in text
    assert "30 % fewer full steps, about 5.4 s saved on the host, overhead 4 % of the host" in text
    assert "hidden 0.31 (at least 0.25, 3 windows)" in text
    assert "full step 70: something <happened>" in text


def test_a_run_that_went_silent_is_told(tmp_path):
    shown = lines(read_log(write(tmp_path, ROWS, end=None)), 80, now=1600.0)
    assert "nothing written for 10.0 min; it may have been killed" in " ".join(
        " ".join(shown).split()
    )
    shown = lines(read_log(write(tmp_path, [], end="failed: x")), 80, 0.0)
    assert shown[0].endswith("failed: x")


def test_watching_prints_once_where_there_is_no_terminal(tmp_path, capsys):
    pytest.importorskip("rich")
    write(tmp_path, ROWS, end=None)
    assert cli.main(["watch", str(tmp_path)]) == 0
    assert "hybrid-predict report" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["report", "watch"])
def test_a_folder_without_a_run_is_told_in_one_line(tmp_path, capsys, command):
    assert cli.main([command, str(tmp_path)]) == 2
    assert "HybridPredict(log_dir=...)" in capsys.readouterr().err


def test_sparklines():
    assert sparkline([1, 2, 3], 10) == "▁▅█"
    assert sparkline(range(100), 4) == "▁▃▆█"
    assert sparkline([2, 2], 5) == "▁▁"
    assert sparkline([], 5) == ""


def test_a_run_is_asked_to_stop_once_the_user_is_sure(tmp_path):
    log = read_log(write(tmp_path, ROWS, end=None))
    note = watch._answer(watch._KEYS, "s", log)
    assert "y or n" in note
    assert watch._answer(note, "", log) == note  # nothing pressed yet
    assert watch._answer(note, "n", log) == watch._KEYS
    assert not (tmp_path / STOP).exists()
    assert watch._answer(watch._KEYS, "y", log) == watch._KEYS
    assert watch._answer(note, "y", log).startswith("Asked.")
    assert is_asked(log.path, 990.0) and not is_asked(log.path, 991.0)
    assert lines(log, 80, now=1003.0)[0].endswith(": asked to stop")
    withdraw(log.path, 991.0)
    assert is_asked(log.path, 990.0)
    withdraw(log.path, 990.0)
    assert not (tmp_path / STOP).exists()


def test_the_command_asks_a_run_to_stop(tmp_path, capsys):
    path = write(tmp_path / "run", ROWS, end=None)
    assert cli.main(["stop", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "Asked" in out and str(path.parent / "checkpoints") in out
    assert "may have been killed" in out  # its rows are of 1970
    assert json.loads((tmp_path / "run" / STOP).read_text()) == {"started": 990.0}
    assert sorted(p.name for p in path.parent.iterdir()) == sorted([NAME, STOP])


@pytest.mark.parametrize("end", ["finished", "stopped as asked", "failed: x"])
def test_a_run_that_has_ended_cannot_be_asked(tmp_path, capsys, end):
    log = read_log(write(tmp_path, ROWS, end=end))
    assert cli.main(["stop", str(tmp_path)]) == 2
    assert f"RUN: expected a run that trains, got {end!r}" in capsys.readouterr().err
    assert "a run that trains" in watch._answer(watch._SURE, "y", log)


def test_a_folder_that_cannot_be_written_to_is_told(tmp_path):
    log = read_log(write(tmp_path, ROWS, end=None))
    log.path = tmp_path / "nowhere" / NAME
    with pytest.raises(ConfigError, match="a folder that can be written to"):
        ask(log)


@pytest.mark.parametrize(
    ("rows", "end", "resumed", "said"),
    [
        (ROWS, None, 0, "time    10 s, about 0 s to come"),
        (ROWS[:2], None, 0, "time    10 s, about 23 s to come"),
        (ROWS[:2], None, 20, "time    10 s, about 35 s to come"),  # 40 steps since it went on
        ([], None, 0, "time    0 s"),
        (ROWS[:2], "finished", 0, "time    20 s"),
    ],
)
def test_the_view_tells_how_long_the_run_will_still_take(tmp_path, rows, end, resumed, said):
    path = write(tmp_path, rows, end)
    if resumed:
        start, *others = map(json.loads, path.read_text().splitlines())
        again = {**start, "full_steps": resumed}
        path.write_text("\n".join(map(json.dumps, [start, others[0], again, *others[1:]])))
    assert said in lines(read_log(path), 80, 1000.0)


@pytest.mark.parametrize("damage", [b"\xfb\x00\x83", b"[1]", b'{"type": 3}', b'{"type": "ro'])
def test_a_damaged_line_is_passed_over(tmp_path, damage):
    path = write(tmp_path, ROWS)
    before = read_log(path)
    first, *others = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([first, damage, *others]))
    found = read_log(path)
    assert found.unread == 1
    assert "1 line of the event log cannot be read" in " ".join(lines(found, 80, 1000.0))
    found.unread = 0
    assert found == before
