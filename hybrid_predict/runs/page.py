"""The page about single runs, and what the page of an audit shares with it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hybrid_predict.runs.facts import ONE_RUN, PROOF, events, facts
from hybrid_predict.runs.figures import data_uri, run_figure
from hybrid_predict.runs.log import RunLog


def render(template: str, **context: Any) -> str:
    """Return a page from one of the package's templates, as one file without links to others."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parents[1]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**context)


def run_page(logs: Sequence[RunLog]) -> str:
    """Return a page about one run, or about several side by side: their cost, not their quality."""
    table = [facts(log) for log in logs]
    names = dict.fromkeys(name for each in table for name in each)
    return render(
        "runs/run.html.jinja",
        runs=[
            {"log": log, "events": events(log), "figure": data_uri(run_figure, log)} for log in logs
        ],
        rows=[[name, *(each.get(name, "unknown") for each in table)] for name in names],
        one_run=ONE_RUN,
        proof=PROOF,
    )
