"""The search against the sweep, and against the default, as Markdown tables."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from benchmarks.views import NONE, markdown, view
from hybrid_predict import HybridConfig
from hybrid_predict.audit import AuditOutcome
from hybrid_predict.audit.search import FINDINGS, WAYS
from hybrid_predict.audit.verdict import percent
from hybrid_predict.runs.evidence import FULL, HYBRID, mean_and_sd, spread

Found = Mapping[str, Any]

DEFAULT = (HYBRID, HybridConfig().compression)
PASSED = AuditOutcome.VERIFIED.value


def blocks(results: Found) -> dict[str, Callable[[], str]]:
    """What makes the pages' blocks, by name."""
    makers = {"source": source, "answers": answers, "default": default, "candidates": candidates}
    return {f"search {name}": partial(make, results["subjects"]) for name, make in makers.items()}


def source(subjects: Found) -> str:
    """Where the numbers come from; trainings with the same settings are told together."""
    alike: dict[str, list[str]] = {}
    for name, subject in subjects.items():
        alike.setdefault(_settings(subject), []).append(f"`{name}`: {_subject(subject)}")
    return " ".join(f"With {settings}: {'; '.join(names)}." for settings, names in alike.items())


def answers(subjects: Found) -> str:
    """What the search answered, and what the sweep says."""
    rows = [
        [
            f"`{name}`",
            *(_both(subject["search"]["best"][arm], largest(subject, arm)) for arm in WAYS),
            f"{subject['search']['runs']} / {len(subject['runs'])}",
        ]
        for name, subject in subjects.items()
    ]
    return markdown(["training", *(f"{arm}, search / sweep" for arm in WAYS), "runs"], rows)


def default(subjects: Found) -> str:
    """How the search's answer compares with the default."""
    rows = []
    for name, subject in subjects.items():
        answer = _answer(subject)
        rows.append([
            f"`{name}`", _quality(subject, FULL, None),
            f"{_called(*answer)}: {_steps(subject, *answer)}", _quality(subject, *answer),
            _steps(subject, *DEFAULT), _quality(subject, *DEFAULT),
        ])  # fmt: skip
    titles = [
        "training", "quality of full", "answer: full steps", "its quality",
        f"default ({DEFAULT[1]:g}): full steps", "its quality",
    ]  # fmt: skip
    return markdown(titles, rows)


def candidates(subjects: Found) -> str:
    """Every candidate, what the sweep says of it, and what the search found."""
    rows = []
    for name, subject in subjects.items():
        asked = {(t["arm"], t["speedup"]): t["finding"] for t in subject["search"]["tried"]}
        for verdict in subject["sweep"]:
            key = (verdict["arm"], verdict["speedup"])
            rows.append(
                {
                    "training": f"`{name}`",
                    "arm": key[0],
                    "speedup": f"{key[1]:g}",
                    "fewer full steps": percent(verdict["saving"]),
                    "quality of short": _quality(subject, "short", key[1]),
                    "its quality": _quality(subject, *key),
                    "sweep": FINDINGS[AuditOutcome(verdict["outcome"])],
                    "search": asked.get(key, "not asked for"),
                }
            )
    return view(rows)


def largest(subject: Found, arm: str) -> float | None:
    """The largest speedup of an arm that keeps quality over all seeds; None if none does."""
    kept = [v["speedup"] for v in subject["sweep"] if v["arm"] == arm and v["outcome"] == PASSED]
    return max(kept, default=None)


def _answer(subject: Found) -> tuple[str, float | None]:
    """The candidate that saves most, of those that the search found to keep quality."""
    passed = [t for t in subject["search"]["tried"] if t["passed"]]
    if not passed:
        return FULL, None
    best = max(passed, key=lambda t: t["saving"])
    return best["arm"], best["speedup"]


def _subject(subject: Found) -> str:
    about = subject["subject"]
    length = f", {about['task']['steps']} steps" if "task" in about else ""
    return f"{about['title']}{length}, {about['metric']}"


def _settings(subject: Found) -> str:
    seeds, torch = subject["config"]["seeds"], subject["environment"]["torch"]
    return (
        f"one thread, {seeds} paired seed{'s' * (seeds != 1)}, every test at level "
        f"{subject['level']:.2g} and torch {torch}"
    )


def _called(arm: str, speedup: float | None) -> str:
    return arm if speedup is None else f"{arm} at {speedup:g}"


def _both(search: float | None, sweep: float | None) -> str:
    return " / ".join("none" if x is None else f"{x:g}" for x in (search, sweep))


def _runs(subject: Found, arm: str, speedup: float | None) -> list[Found]:
    return [r for r in subject["runs"] if r["arm"] == arm and speedup in (None, r["speedup"])]


def _steps(subject: Found, arm: str, speedup: float | None) -> str:
    runs = _runs(subject, arm, speedup)
    return f"{statistics.fmean(r['full_steps'] for r in runs):,.0f}" if runs else NONE


def _quality(subject: Found, arm: str, speedup: float | None) -> str:
    values = [r["metric"] for r in _runs(subject, arm, speedup) if not r["failure"]]
    return mean_and_sd(spread(values), 4) if values else NONE
