"""``hybrid-predict report`` and ``watch``: what they show of the log of a run."""

import json
import re

import pytest
from run_logs import NAME, ROWS, row, written

from hybrid_predict import cli
from hybrid_predict.report.run_facts import facts, finding, lines, sparkline
from hybrid_predict.report.run_log import read_log


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
            [row(140, 60, {}, full_seconds=1.0, correct_seconds=5.0, predict_seconds=1.0)],
            {},
            "by estimate 5.6 s longer on the host than 1.4 s",
        ),
    ],
)
def test_the_finding_claims_no_more_than_was_measured(tmp_path, rows, plan, said):
    assert said in finding(read_log(write(tmp_path, rows, **plan)))


@pytest.mark.parametrize("why", ["forecasts are too short", "max_overhead", "\x1b[31m"])
def test_the_finding_gives_the_reason_of_the_run_and_no_other(tmp_path, why):
    lines = written(ROWS[:2], event=f"no predicted steps where they were planned: {why}")
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
    assert "200 of 200" in text
    assert "60 (60 planned), 1 undone" in text
    assert "30 % fewer full steps; by estimate 5.4 s saved of 20 s on the host" in text
    assert "4 % of the host seconds of full steps" in text
    assert "0.31 (at least 0.25, 3 windows)" in text
    assert "full step 70: something <happened>" in text


def test_the_view_shows_that_a_run_is_silent_or_has_failed(tmp_path):
    shown = lines(read_log(write(tmp_path, ROWS, end=None)), 80, now=1600.0)
    assert "nothing written for 10.0 min; it may have been killed" in " ".join(
        map(str.strip, shown)
    )
    shown = lines(read_log(write(tmp_path, [], end="failed: x")), 80, 0.0)
    assert shown[0].endswith("failed: x")


def test_watching_prints_once_where_there_is_no_terminal(tmp_path, capsys):
    pytest.importorskip("rich")
    write(tmp_path, ROWS, end=None)
    assert cli.main(["watch", str(tmp_path)]) == 0
    assert "hybrid-predict report" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["report", "watch"])
def test_a_folder_without_a_run_gets_one_line(tmp_path, capsys, command):
    assert cli.main([command, str(tmp_path)]) == 2
    assert "HybridPredict(log_dir=...)" in capsys.readouterr().err


def test_sparklines():
    assert sparkline([1, 2, 3], 10) == "▁▅█"
    assert sparkline(range(100), 4) == "▁▃▆█"
    assert sparkline([2, 2], 5) == "▁▁"
    assert sparkline([], 5) == ""


@pytest.mark.parametrize(
    ("rows", "end", "resumed", "said"),
    [
        (ROWS, None, 0, "10 s, about 0 s to come"),
        (ROWS[:2], None, 0, "10 s, about 23 s to come"),
        (ROWS[:2], None, 20, "10 s, about 35 s to come"),  # 40 steps since it went on
        ([], None, 0, "0 s"),
        (ROWS[:2], "finished", 0, "20 s"),
    ],
)
def test_the_view_estimates_how_long_the_run_will_still_take(tmp_path, rows, end, resumed, said):
    path = write(tmp_path, rows, end)
    if resumed:
        start, *others = map(json.loads, path.read_text().splitlines())
        again = {**start, "full_steps": resumed}
        path.write_text("\n".join(map(json.dumps, [start, others[0], again, *others[1:]])))
    assert facts(read_log(path))["time"] == said
