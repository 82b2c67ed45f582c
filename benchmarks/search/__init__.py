"""The audit's search against a sweep over all of its candidates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.plan import Row

SCHEMA = 1

TASK_SUBJECTS = ("cnn", "mlp", "pinn", "inr", "lora", "autoencoder", "gpt-0.2m")
SUBJECTS = (*TASK_SUBJECTS, "chemprop")
"""What is searched: tasks of the benchmark, and a published package."""


def subjects(results: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the runs of a results file, as a plan has them."""
    for name, row in results["subjects"].items():
        yield {"name": name, **row}


def compiled(done: Mapping[str, Row]) -> dict[str, Any]:
    """Return the content of a results file."""
    found = {
        name: {field: value for field, value in done[name].items() if field != "name"}
        for name in SUBJECTS
        if name in done
    }
    return {"schema": SCHEMA, "subjects": found}
