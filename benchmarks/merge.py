"""Adds runs of other results files to one, so that arms can be run separately."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.arms import ARMS
from benchmarks.plan import Cell, Row, as_cell
from benchmarks.run import codes
from hybrid_predict import ConfigError

Results = Mapping[str, Any]
Place = tuple[str, str, str]


def merged(results: Results, others: Sequence[Results]) -> dict[str, Any]:
    """Return the results of one file with runs of others.

    If other files have new runs of an arm, they replace all runs of the arm in that task and
    setting. Their runs of an arm with one recipe are put together, later ones over earlier ones;
    with another recipe only the last file's are taken.

    Raises:
        ConfigError: If a task of another file is not the same.
    """
    arms = {setting: set(names) for setting, names in results["arms"].items()}
    for other in others:
        _check_tasks(results, other)
        for setting, names in other["arms"].items():
            arms.setdefault(setting, set()).update(names)
    rows = _with(results["runs"], [other["runs"] for other in others])
    done = {as_cell(row): row for row in rows}
    count = sum(not ARMS[row["arm"]].kept for row in rows)
    return {
        **results,
        "arms": {setting: [n for n in ARMS if n in names] for setting, names in arms.items()},
        "cells": {"planned": count, "done": count},
        "code": codes(done),
        "runs": rows,
    }


def _with(rows: Sequence[Row], others: Iterable[Sequence[Row]]) -> list[Row]:
    known = {as_cell(row) for row in rows}
    new: dict[Place, dict[Cell, Row]] = {}
    for other in others:
        for place, group in _by_place(other).items():
            before = new.get(place, {})
            same = {cell.recipe for cell in before} == {cell.recipe for cell in group}
            new[place] = {**before, **group} if same else group
    taken = {place: group for place, group in new.items() if group.keys() - known}
    kept = [row for row in rows if _place(row) not in taken]
    return [*kept, *(row for group in taken.values() for row in group.values())]


def _by_place(rows: Iterable[Row]) -> dict[Place, dict[Cell, Row]]:
    groups: dict[Place, dict[Cell, Row]] = {}
    for row in rows:
        groups.setdefault(_place(row), {})[as_cell(row)] = row
    return groups


def _place(row: Row) -> Place:
    return row["task"], row["setting"], row["arm"]


def _check_tasks(results: Results, other: Results) -> None:
    for name, task in other["tasks"].items():
        if results["tasks"].get(name) != task:
            raise ConfigError("FILE", f"the task {name} as the first file has it", "another one")
