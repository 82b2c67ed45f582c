"""Markdown tables of the clients' results."""

import statistics
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from benchmarks.views import NONE, count, view
from hybrid_predict.runs.evidence import FEW_SEEDS, bounds, spread

LEVEL = 0.95
"""Level of the confidence intervals of paired differences."""

SHOWN = ("full", "short", "corrected", "hybrid", "auto")


def headline(results: Mapping[str, Any]) -> str:
    """Count the clients in which the default and ``auto`` end worse than the full run.

    The sign of the mean difference over seeds decides. A client without finite values is worse.
    """
    clients = results["clients"]
    names = {"hybrid": "the default", "auto": '`speedup="auto"`'}
    parts = []
    for arm, name in names.items():
        losses = 0
        surely = 0
        ratios = []
        for client, about in clients.items():
            by_arm = arms(results, client)
            worse = _worse(by_arm, arm, about)
            losses += not worse or statistics.fmean(worse) > 0
            surely += difference(worse).endswith("worse**")
            ratios.append(statistics.median(row["ratio"] for row in by_arm[arm]))
        parts.append(
            f"{name} ends worse than the full run in {losses} in the mean, significantly in "
            f"{surely or 'none'}, and takes {statistics.median(ratios):.2f} of its processor time "
            "(median)"
        )
    return (
        f"**In {len(clients)} published packages**, trained with their own settings on small "
        f"data with {_seeds(results)}, {'; '.join(parts)}."
    )


def qualities(results: Mapping[str, Any]) -> str:
    """List quality by arm, and paired differences from the full run, a row per client."""
    titles = {
        "full": "full",
        "short": "short (2/3 of the steps)",
        "corrected": "corrected (2/3)",
        "hybrid": "hybrid (default)",
        "auto": "auto",
    }
    rows = []
    for name, about in results["clients"].items():
        by_arm = arms(results, name)
        rows.append(
            {
                "client": f"`{name}`",
                "better is": "lower" if about["lower"] else "higher",
                **{title: _spread(by_arm[arm], "quality") for arm, title in titles.items()},
                **{
                    f"{arm} - full, lower is better": difference(_worse(by_arm, arm, about))
                    for arm in ("hybrid", "auto")
                },
            }
        )
    return view(rows)


def costs(results: Mapping[str, Any]) -> str:
    """List full steps and processor time, a row per client."""
    rows = []
    for name in results["clients"]:
        by_arm = arms(results, name)
        seconds = statistics.median(row["seconds"] for row in by_arm["full"])
        rows.append(
            {
                "client": f"`{name}`",
                **{f"full steps, {arm}": _mean(by_arm[arm], "full_steps") for arm in SHOWN},
                "full run, processor seconds": f"{seconds:.1f}",
                **{f"{arm} / full": _ratios(by_arm[arm]) for arm in SHOWN[1:]},
            }
        )
    return view(rows)


def subjects(results: Mapping[str, Any]) -> str:
    """List the package, model, data, length and metric of each client."""
    return "\n".join(
        f"- `{name}`: {about['package']} {about['version']}, {about['trains']}; "
        f"{about['length']} {about['unit']}; {about['metric']}."
        for name, about in results["clients"].items()
    )


def source(results: Mapping[str, Any]) -> str:
    """Describe the source of the numbers: seeds, versions, clock."""
    env = results["environment"]
    few = min(len(arms(results, name)["full"]) for name in results["clients"])
    codes = len({row["code"] for row in results["rows"] if row["arm"] in ("hybrid", "auto")})
    mixed = f" Rows with the plug-in come from {codes} states of the code." if codes > 1 else ""
    hint = " So few seeds make every difference a hint." if few < FEW_SEEDS else ""
    return (
        f"{_seeds(results)}, torch {env['torch']}, Python {env['python']}, one thread. Processor "
        "time is that of the whole call that trains; runs of a seed follow each other in one "
        "process. Medians over seeds; in brackets the lowest and the highest. "
        f"In brackets after differences: {LEVEL:.0%} intervals over seeds (Student's t).{hint}"
        f"{mixed}"
    )


def blocks(results: Mapping[str, Any]) -> dict[str, Callable[[], str]]:
    """Return what makes the blocks of the page, by name."""
    makers = {"source": source, "headline": headline, "quality": qualities, "cost": costs,
              "subjects": subjects}  # fmt: skip
    return {f"clients {name}": partial(make, results) for name, make in makers.items()}


def arms(results: Mapping[str, Any], name: str) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of a client by arm, in the order of seeds."""
    rows = sorted((r for r in results["rows"] if r["client"] == name), key=lambda r: r["seed"])
    return {arm: [r for r in rows if r["arm"] == arm] for arm in {r["arm"]: 0 for r in rows}}


def difference(values: list[float]) -> str:
    """Format a mean difference with its interval; bold if it is surely worse (above 0)."""
    if not values:
        return NONE
    if len(values) < 2:
        return f"{values[0]:+.4g}"
    interval = bounds(values, (1 - LEVEL) / 2)
    text = f"{interval.mean:+.4g} [{interval.lower:+.4g}, {interval.upper:+.4g}]"
    return f"**{text}, worse**" if interval.lower > 0 else text


def _seeds(results: Mapping[str, Any]) -> str:
    counts = {len(arms(results, name)["full"]) for name in results["clients"]}
    few = f"{min(counts)} to " if len(counts) > 1 else ""
    return few + count(max(counts), "paired seed")


def _worse(
    by_arm: Mapping[str, list[dict[str, Any]]], arm: str, about: Mapping[str, Any]
) -> list[float]:
    """Return how much worse an arm is than the full run, of each seed with finite values."""
    sign = 1 if about["lower"] else -1
    pairs = [(a["quality"], b["quality"]) for a, b in zip(by_arm[arm], by_arm["full"], strict=True)]
    return [sign * (a - b) for a, b in pairs if None not in (a, b)]


def _mean(rows: list[dict[str, Any]], field: str) -> str:
    return f"{statistics.fmean(row[field] for row in rows):,.0f}"


def _spread(rows: list[dict[str, Any]], field: str) -> str:
    values = spread([row[field] for row in rows if row[field] is not None])
    if values["mean"] is None:
        return NONE
    sd = "" if values["sd"] is None else f" ± {values['sd']:.2g}"
    return f"{values['mean']:.4g}{sd}"


def _ratios(rows: list[dict[str, Any]]) -> str:
    ratios = [row["ratio"] for row in rows]
    middle = f"{statistics.median(ratios):.2f}"
    return middle if len(ratios) < 2 else f"{middle} [{min(ratios):.2f}, {max(ratios):.2f}]"
