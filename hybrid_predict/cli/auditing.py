"""An audit on the terminal, for the commands that make one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid_predict.cli.options import PROGRAM
from hybrid_predict.errors import ConfigError

if TYPE_CHECKING:
    from hybrid_predict.audit import AuditConfig, AuditResult, SearchResult


_NOTHING = "Nothing was trained: all runs were done before. --overwrite trains them anew."


def check_threads(number: int | None) -> None:
    """Refuse a number of threads that torch cannot have.

    Raises:
        ConfigError: If it is below 1.
    """
    if number is not None and number < 1:
        raise ConfigError("--threads", "an integer, at least 1", number)


def shown(
    command: str, config: AuditConfig, folder: Path, train: Callable[..., AuditResult]
) -> AuditResult:
    """Carry out an audit: progress while it trains, then its table, its finding and its files.

    Args:
        command: Which command it is.
        config: What is compared.
        folder: The output folder.
        train: Makes the audit, with the observer as its only further argument.

    Returns:
        What it found.
    """
    from hybrid_predict.audit.config import SHORTENED
    from hybrid_predict.audit.mechanisms import sentences
    from hybrid_predict.cli.screen import Screen
    from hybrid_predict.report.audit import COLUMNS, audit_rows, plain_finding
    from hybrid_predict.runs.evidence import HYBRID

    fewer = (*SHORTENED, HYBRID)
    lengths = [1.0 / config.speedup if a in fewer else 1.0 for a in config.arms] * config.seeds
    print(f"{PROGRAM} {command}: {len(lengths)} runs, written to {folder}", flush=True)

    with Screen(lengths, partial(_outcome, config)) as screen:
        result = train(observer=screen)
    titles = [title.format(metric=config.metric) for title in COLUMNS]
    table = (titles, [row.values() for row in audit_rows(result.results)])
    told = {**result.results, "notes": [*sentences(result.results["earned"]),
                                        *result.results["notes"]]}  # fmt: skip
    conclusion = _conclusion(plain_finding(told), told["verdict"])
    screen.conclude(told, conclusion, table, folder, mlflow=config.mlflow)
    if not (screen.trained or result.partial):
        print(_NOTHING)
    return result


def searched(config: AuditConfig, folder: Path, train: Callable[..., SearchResult]) -> SearchResult:
    """Carry out a search: progress while it trains, then what was tried, and the line to paste.

    Args:
        config: What is compared.
        folder: The output folder.
        train: Makes the search, with the observer as its only further argument.

    Returns:
        What it found.
    """
    from hybrid_predict.audit.search_plan import most_runs
    from hybrid_predict.audit.searching import RESULTS
    from hybrid_predict.audit.verdict import percent
    from hybrid_predict.cli.screen import Screen

    most = most_runs(config)
    print(f"{PROGRAM} audit --search: at most {most} runs, written to {folder}", flush=True)
    with Screen([1.0] * most, partial(_outcome, config)) as screen:
        result = train(observer=screen)
    rows = [
        [
            tried.arm, f"{tried.speedup:g}", str(tried.verdict.seeds),
            "" if tried.verdict.saving is None else percent(tried.verdict.saving),
            tried.finding,
        ]
        for tried in result.tried
    ]  # fmt: skip
    titles = ["arm", "speedup", "seeds", "fewer full steps", "finding"]
    screen.answer(titles, rows, result.line, folder / RESULTS, partial=result.partial)
    if not (screen.trained or result.partial):
        print(_NOTHING)
    return result


def _outcome(config: AuditConfig, run: Mapping[str, Any]) -> str:
    """What a finished run ended with."""
    return run["failure"] or f"{config.metric} {run['metric']:.5g}"


def _conclusion(finding: str, verdict: Mapping[str, Any]) -> dict[str, str]:
    """What the terminal shows: the finding and the verdict; statistics are for the report."""
    lines = [] if finding == verdict["headline"] else [f"Verdict: {verdict['headline']}."]
    tested = verdict["contrast"] is not None
    lines.append("The report has the tests and their bounds." if tested else verdict["text"])
    return {"headline": finding, "text": "\n".join(lines)}
