"""Runs of further results files are added to one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.arms import ARMS
from benchmarks.merge import merged
from hybrid_predict import ConfigError

TASK = {"name": "inr", "steps": 12}


def row(arm: str, seed: int, rate: float = 0.1, code: str = "old") -> dict[str, Any]:
    return {
        "task": "inr", "setting": "tuned", "arm": arm, "seed": seed, "rate": rate, "hidden": 1.0,
        "decay": True, "steps": 12, "recipe": "r", "loss": 1.0, "full_steps": 12, "seconds": 1.0,
        "memory": 1, "predicted_steps": 0, "undone_steps": 0, "code": code,
    }  # fmt: skip


def results(*rows: dict[str, Any]) -> dict[str, Any]:
    names = dict.fromkeys(r["arm"] for r in rows)
    return {
        "schema": 2, "suite": "core", "seeds": 3, "arms": {"tuned": list(names)},
        "cells": {"planned": len(rows), "done": len(rows)}, "environment": {}, "steps": {},
        "code": {}, "tasks": {"inr": TASK}, "runs": list(rows),
    }  # fmt: skip


KNOWN = [row("plain", seed) for seed in range(3)]


def test_new_arms_are_added_in_their_order() -> None:
    found = merged(results(*KNOWN), [results(row("soap", 0)), results(row("muon", 0, code="new"))])
    assert found["arms"] == {"tuned": [n for n in ARMS if n in ("plain", "muon", "soap")]}
    assert found["cells"] == {"planned": 5, "done": 5}
    assert found["code"] == {"with the plug-in": [], "without it": ["new", "old"]}


def test_an_arm_that_was_run_anew_takes_the_place_of_the_old_one() -> None:
    new = [row("plain", seed, rate=0.2) for seed in range(2)]
    assert merged(results(*KNOWN, row("muon", 0)), [results(*new)])["runs"] == [
        row("muon", 0),
        *new,
    ]


def test_seeds_of_two_recipes_are_not_mixed() -> None:
    last = {**row("muon", 1), "recipe": "another"}
    found = merged(results(*KNOWN), [results(row("muon", 0)), results(last)])
    assert found["runs"] == [*KNOWN, last]


def test_another_task_of_the_same_name_is_refused() -> None:
    other = {**results(row("muon", 0)), "tasks": {"inr": {**TASK, "steps": 13}}}
    with pytest.raises(ConfigError, match="inr"):
        merged(results(*KNOWN), [other])


def test_the_command_writes_the_first_file(tmp_path: Any, capsys: Any) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    first.write_text(json.dumps(results(*KNOWN)))
    second.write_text(json.dumps(results(row("muon", 0))))
    assert main(["merge", str(first), str(second)]) == 0
    assert len(json.loads(first.read_text())["runs"]) == 4
    assert "4 runs" in capsys.readouterr().out
    assert main(["merge", str(first), str(tmp_path / "none.json")]) == 2
