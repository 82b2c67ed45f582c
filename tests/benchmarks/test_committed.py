"""Committed benchmark runs are still those that would be made."""

import hashlib
import json
from pathlib import Path

import pytest
from PIL import Image

from benchmarks.arms import ARMS, PLAIN
from benchmarks.digests import recipe_digest
from benchmarks.studies import STUDIES
from benchmarks.tasks import TASKS

RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.mark.parametrize("name", ["core", "wide"])
def test_committed_plain_runs_are_those_that_would_be_made(name):
    """So that a field that is new to recipes or arms does not make them strangers."""
    results = json.loads((RESULTS / f"bench-{name}.json").read_text())
    tasks = {task for task in results["tasks"] if "text_sha256" not in TASKS[task].to_dict()}
    rows = [r for r in results["runs"] if r["task"] in tasks and r["arm"] in PLAIN]
    assert rows
    for task, arm, recipe in {(row["task"], row["arm"], row["recipe"]) for row in rows}:
        assert recipe == recipe_digest(TASKS[task], ARMS[arm]), (task, arm)


@pytest.mark.parametrize(
    ("figure", "data"),
    [(figure, study.file) for study in STUDIES.values() for figure in study.figures],
)
def test_committed_figures_were_drawn_from_the_committed_data(figure, data):
    with Image.open(RESULTS / figure) as picture:
        source = picture.text.get("Source")
    assert source == hashlib.sha256((RESULTS / data).read_bytes()).hexdigest()
