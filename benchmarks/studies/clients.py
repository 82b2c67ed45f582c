"""Markdown tables of the clients' results."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.views import NONE, count, view
from hybrid_predict.runs.evidence import FEW_SEEDS, bounds

LEVEL = 0.95
"""Level of the confidence intervals of paired differences."""

SHOWN = {
    "full": "full",
    "short": "short (2/3 of the steps)",
    "corrected": "corrected (2/3)",
    "hybrid": "hybrid (default)",
    "auto": "auto",
}
"""Arms by their titles."""

Rows = Sequence[Mapping[str, Any]]


def headline(results: Mapping[str, Any]) -> str:
    """Count the clients in which the default and ``auto`` end worse than the full run.

    The sign of the mean difference over seeds decides. A client without finite values is worse.
    """
    clients = [arms(results, name) for name in results["clients"]]
    parts = []
    for arm, name in {"hybrid": "the default", "auto": '`speedup="auto"`'}.items():
        worse = [known(by_arm[arm], "worse") for by_arm in clients]
        losses = sum(not values or statistics.fmean(values) > 0 for values in worse)
        surely = sum(difference(values).endswith("worse**") for values in worse)
        ratios = [statistics.median(known(by_arm[arm], "ratio")) for by_arm in clients]
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
    rows = []
    for name, about in results["clients"].items():
        by_arm = arms(results, name)
        row = {"client": f"`{name}`", "better is": "lower" if about["lower"] else "higher"}
        for arm, title in SHOWN.items():
            row[title] = _spread(known(by_arm[arm], "quality"))
        for arm in ("hybrid", "auto"):
            row[f"{arm} - full, lower is better"] = difference(known(by_arm[arm], "worse"))
        rows.append(row)
    return view(rows)


def costs(results: Mapping[str, Any]) -> str:
    """List full steps and processor time, a row per client."""
    rows = []
    for name in results["clients"]:
        by_arm = arms(results, name)
        row = {"client": f"`{name}`"}
        for arm in SHOWN:
            steps = statistics.fmean(known(by_arm[arm], "full_steps"))
            row[f"full steps, {arm}"] = f"{steps:,.0f}"
        seconds = statistics.median(known(by_arm["full"], "seconds"))
        row["full run, processor seconds"] = f"{seconds:.1f}"
        for arm in list(SHOWN)[1:]:
            ratios = known(by_arm[arm], "ratio")
            around = f" [{min(ratios):.2f}, {max(ratios):.2f}]" if len(ratios) > 1 else ""
            row[f"{arm} / full"] = f"{statistics.median(ratios):.2f}{around}"
        rows.append(row)
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
    return {
        "clients source": partial(source, results),
        "clients headline": partial(headline, results),
        "clients quality": partial(qualities, results),
        "clients cost": partial(costs, results),
        "clients subjects": partial(subjects, results),
    }


def arms(results: Mapping[str, Any], name: str) -> dict[str, Rows]:
    """Return the rows of a client by arm, in the order of seeds.

    Each says how much worse it is than the full run, None without finite values.
    """
    sign = 1 if results["clients"][name]["lower"] else -1
    rows = sorted((r for r in results["rows"] if r["client"] == name), key=lambda r: r["seed"])
    full = {row["seed"]: row["quality"] for row in rows if row["arm"] == "full"}
    by_arm: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        pair = (row["quality"], full[row["seed"]])
        worse = None if None in pair else sign * (pair[0] - pair[1])
        by_arm.setdefault(row["arm"], []).append({**row, "worse": worse})
    return dict(by_arm)


def known(rows: Rows, field: str) -> list[float]:
    """Return the finite values of a field."""
    return [row[field] for row in rows if row[field] is not None]


def difference(values: list[float]) -> str:
    """Format a mean difference with its interval; bold if it is surely worse (above 0)."""
    if len(values) < 2:
        return f"{values[0]:+.4g}" if values else NONE
    interval = bounds(values, (1 - LEVEL) / 2)
    text = f"{interval.mean:+.4g} [{interval.lower:+.4g}, {interval.upper:+.4g}]"
    return f"**{text}, worse**" if interval.lower > 0 else text


def _spread(values: list[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.4g}" if values else NONE
    return f"{statistics.fmean(values):.4g} ± {statistics.stdev(values):.2g}"


def _seeds(results: Mapping[str, Any]) -> str:
    counts = {len(arms(results, name)["full"]) for name in results["clients"]}
    few = f"{min(counts)} to " if len(counts) > 1 else ""
    return few + count(max(counts), "paired seed")
