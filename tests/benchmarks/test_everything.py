"""Committed runs that still hold are kept, the others are made again, each study in one folder."""

import json
import sys
from dataclasses import replace

import pytest

from benchmarks import everything
from benchmarks.run import code_digest
from benchmarks.scale.__main__ import main as scale
from hybrid_predict.runs.rows import Rows


def a_row(arm, code, seed=0):
    cell = {"task": "gpt", "setting": "tuned", "arm": arm, "seed": seed, "rate": 0.1}
    return {**cell, "hidden": 1.0, "decay": True, "steps": 12, "recipe": "r", "code": code}


def test_runs_of_another_code_hold_only_without_the_plug_in():
    rows = [a_row(arm, code) for arm in ("plain", "hybrid", "an arm that is gone")
            for code in ("old", code_digest("hybrid"))]  # fmt: skip
    held = [(row["arm"], row["code"] == "old") for row in everything.holding(rows)]
    assert held == [("plain", True), ("plain", False), ("hybrid", False)]


@pytest.mark.parametrize("name", everything.STUDIES)
def test_a_study_is_made_again_in_a_folder_of_its_code_and_then_committed(
    name, tmp_path, monkeypatch
):
    study = everything.STUDIES[name]
    results, folder = tmp_path / "results", tmp_path / "runs"
    results.mkdir()
    before = [a_row("plain", "old"), a_row("hybrid", "old")]
    text = (
        "".join(json.dumps(row) + "\n" for row in before)
        if study.result.endswith("jsonl")
        else json.dumps({"runs": before})
    )
    (results / study.result).write_text(text)
    monkeypatch.setattr(everything, "RESULTS", results)
    place = folder / code_digest("hybrid") / name
    calls = []

    def run(command, check):
        assert check and command[:2] == [sys.executable, "-m"]
        calls.append(command[2:])
        (place / study.made).touch()

    monkeypatch.setattr(everything.subprocess, "run", run)
    everything.main([name, "--jobs", "3", "--folder", str(folder)])
    own = calls[: -len(everything.AFTER)]
    assert len(own) == len(study.commands)
    for call in own:
        assert str(place) in call
        assert not {everything.FOLDER, everything.JOBS}.intersection(call)
    rows = Rows(place / study.rows, everything.as_cell).done.values()
    assert [row["arm"] for row in rows] == ["plain"]
    assert (results / study.result).read_bytes() == (place / study.made).read_bytes()


def test_a_study_that_fails_changes_no_committed_file(tmp_path, monkeypatch):
    def run(command, check):
        raise everything.subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(everything, "RESULTS", tmp_path)
    monkeypatch.setattr(everything.subprocess, "run", run)
    with pytest.raises(everything.subprocess.CalledProcessError):
        everything.main(["sizes", "--folder", str(tmp_path / "runs")])
    assert not (tmp_path / "sizes.jsonl").exists()


def test_its_commands_are_ones_that_the_programs_take(tmp_path, monkeypatch):
    """Every option of every command is parsed; nothing is trained."""
    from benchmarks import __main__ as program
    from benchmarks.scale import __main__ as sized

    made = []
    for action in ("run", "rates"):
        kept = replace(program._ACTIONS[action], run=lambda asked: made.append(asked) or 0)
        monkeypatch.setitem(program._ACTIONS, action, kept)
    for part in ("_runs", "_sizes"):
        monkeypatch.setattr(sized, part, made.append)
    commands = [c for study in everything.STUDIES.values() for c in study.commands]
    for module, *words in commands:
        arguments = [{"FOLDER": str(tmp_path), "JOBS": "2"}.get(word, word) for word in words]
        assert not {"benchmarks": program.main, "benchmarks.scale": scale}[module](arguments)
    assert len(made) == len(commands)
