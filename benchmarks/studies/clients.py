"""Published packages, each in an environment of its own: their seeds, and what tables show."""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.arms import code_digest
from benchmarks.clients import CLIENTS
from benchmarks.clients.train import ARMS, AVERAGED, OPTIONS
from benchmarks.plan import Plan, Row, Selection, check_chosen
from benchmarks.views import NONE, count, view
from hybrid_predict.errors import ConfigError
from hybrid_predict.runs.evidence import FEW_SEEDS, bounds
from hybrid_predict.runs.runtime import environment

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = Path("client-environments")

SEEDS = 2

SHARED = ("pytest", "hypothesis", f"{ROOT}[lightning,cli,bench]")
"""Requirements of every environment, beside the present versions of torch and Lightning."""

OLD_BUILDS = "setuptools<81\n"  # for building packages: old ones need a part that is gone since

Key = tuple[str, int]  # name of a client, and seed

LEVEL = 0.95  # of confidence intervals of paired differences

SHOWN = {  # arms by their titles
    "full": "full",
    "short": "short (2/3 of the steps)",
    "corrected": "corrected (2/3)",
    "hybrid": "hybrid (default)",
    "auto": "auto",
}

AVERAGES = {arm: arm for arm in ("full", "averaged", "corrected", "corrected, averaged")}
"""Arms of the study of averages, ``corrected`` in 2/3 of the steps."""

Rows = Sequence[Mapping[str, Any]]


class ClientsPlan(Plan[Key]):
    """A run is a seed of a client, with all arms; it has the description of the client."""

    arms: Sequence[str] = tuple(ARMS)
    names: Sequence[str] = tuple(CLIENTS)

    def __init__(self, chosen: Selection) -> None:
        check_chosen("tasks", chosen.tasks, self.names)
        self._chosen = chosen

    def keys(self, done: Mapping[Key, Row]) -> Iterator[Key]:
        for seed in range(self._chosen.seeds or SEEDS):
            yield from ((name, seed) for name in self._chosen.tasks or self.names)

    def key(self, row: Row) -> Key:
        return row["client"], row["seed"]

    def work(self, key: Key) -> Row:
        """Train a seed: packages change global settings, so it has its own process."""
        name, seed = key
        python = interpreter(name)
        with TemporaryDirectory() as folder:
            path = Path(folder) / "seed.json"
            train = ("-m", "benchmarks.clients.train", name, str(seed), str(path), *self.arms)
            variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
            subprocess.run([python, *train], check=True, cwd=folder, env=variables)
            return {**json.loads(path.read_text("utf-8")), "environment": environment()}

    def holds(self, row: Row) -> bool:
        """Return whether the arms with the plug-in come from its present code."""
        codes = {each["code"] for each in row["rows"] if OPTIONS[each["arm"]] is not None}
        return codes == {code_digest(plugin=True)}


class AveragesPlan(ClientsPlan):
    """Packages whose data repeat often, with and without an average of the weights."""

    arms = tuple(AVERAGES)
    names = ("scvi", "chemprop", "deeptab", "monai")


def seeds(results: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the runs of a results file, as a plan has them."""
    found: dict[Key, list[Row]] = {}
    for row in results["rows"]:
        found.setdefault((row["client"], row["seed"]), []).append(row)
    for (name, seed), rows in found.items():
        told = {"about": results["clients"][name], "environment": results["environment"]}
        yield {"client": name, "seed": seed, **told, "rows": rows}


def compiled(chosen: Selection, runs: Sequence[Row], whole: bool, before: Any) -> dict[str, Any]:
    """Return the content of a results file."""
    return {
        "environment": runs[-1]["environment"] if runs else {},
        "clients": {run["client"]: run["about"] for run in runs},
        "rows": [row for run in runs for row in run["rows"]],
    }


def interpreter(name: str) -> Path:
    """Return the Python of a client's environment; uv makes it if its requirements are new."""
    place = ENVIRONMENTS.resolve() / CLIENTS[name].package
    python = place / "bin" / "python"
    made = place / "requirements.txt"
    present = (f"{x}=={version(x).partition('+')[0]}" for x in ("torch", "lightning"))
    wanted = "\n".join((*present, *CLIENTS[name].requires.split(), *SHARED))
    if made.exists() and made.read_text("utf-8") == wanted:
        return python
    print(f"Environment of {name}: {place}", flush=True)
    if find_spec("uv") is None:
        raise ConfigError("STUDY", "uv, which makes environments", "none", "Run: pip install uv.")
    uv = (sys.executable, "-m", "uv")
    subprocess.run([*uv, "venv", "--clear", "--python", sys.executable, place], check=True)
    limits = place / "builds.txt"
    limits.write_text(OLD_BUILDS, "utf-8")
    install = (*uv, "pip", "install", "--python", python, "--build-constraints", limits)
    subprocess.run([*install, *wanted.split("\n")], check=True)
    drop_unloadable(place)
    made.write_text(wanted, "utf-8")
    return python


def drop_unloadable(place: Path) -> None:
    """Remove what PyPI's torchvision and torchaudio need CUDA for; no client uses it."""
    for packages in place.glob("lib/python*/site-packages"):
        if (packages / "torch" / "lib" / "libc10_cuda.so").exists():
            continue
        for part in packages.glob("torchaudio/lib/_torchaudio*.so"):
            part.unlink()
        for part in packages.glob("torchvision/_meta_registrations.py"):
            part.write_text("", "utf-8")


def headline(results: Mapping[str, Any]) -> str:
    """Count clients that end worse than the full run, and tell processor times."""
    clients = [arms(results, name) for name in results["clients"]]
    parts = []
    for arm, name in {"hybrid": "the default", "auto": '`speedup="auto"`'}.items():
        worse = [known(by_arm[arm], "worse") for by_arm in clients]
        surely = sum(difference(values).endswith("worse**") for values in worse)
        ratios = [statistics.median(known(by_arm[arm], "ratio")) for by_arm in clients]
        parts.append(
            f"{name} ends worse than the full run in {_lost(worse)} in the mean, significantly in "
            f"{surely or 'none'}, and takes {statistics.median(ratios):.2f} of its processor time "
            "(median)"
        )
    return (
        f"**In {len(clients)} published packages**, trained with their own settings on small "
        f"data with {_seeds(results)}, {'; '.join(parts)}."
    )


def _lost(found: Iterable[list[float]]) -> int:
    """Count clients that end worse than the full run in the mean; without finite values they do."""
    return sum(not values or statistics.fmean(values) > 0 for values in found)


def shortly(results: Mapping[str, Any]) -> str:
    """Count in one sentence of the README where the default ends worse, in the mean."""
    found = [known(arms(results, name)["hybrid"], "worse") for name in results["clients"]]
    return (
        f"The default ended worse than the full run in {_lost(found)} of "
        f"[{len(found)} published packages](docs/clients.md), at the length of a tutorial."
    )


def qualities(
    results: Mapping[str, Any],
    shown: Mapping[str, str] = SHOWN,
    compared: Sequence[str] = ("hybrid", "auto"),
) -> str:
    """List quality by arm, and paired differences from the full run, a row per client."""
    rows = []
    for name, about in results["clients"].items():
        by_arm = arms(results, name)
        row = {"client": f"`{name}`", "better is": "lower" if about["lower"] else "higher"}
        for arm, title in shown.items():
            row[title] = _spread(known(by_arm[arm], "quality"))
        for arm in compared:
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
        "clients shortly": partial(shortly, results),
        "clients source": partial(source, results),
        "clients headline": partial(headline, results),
        "clients quality": partial(qualities, results),
        "clients cost": partial(costs, results),
        "clients subjects": partial(subjects, results),
    }


def averages(results: Mapping[str, Any]) -> dict[str, Callable[[], str]]:
    """Return what makes the block on averages of the weights."""
    return {"averages": partial(qualities, results, AVERAGES, tuple(AVERAGED))}


def arms(results: Mapping[str, Any], name: str) -> dict[str, Rows]:
    """Return a client's rows by arm, with how much ``worse`` than the full run they are."""
    sign = 1 if results["clients"][name]["lower"] else -1
    rows = sorted((r for r in results["rows"] if r["client"] == name), key=lambda r: r["seed"])
    full = {row["seed"]: row["quality"] for row in rows if row["arm"] == "full"}
    by_arm: dict[str, Any] = {}
    for row in rows:
        pair = (row["quality"], full[row["seed"]])
        worse = None if None in pair else sign * (pair[0] - pair[1])
        by_arm.setdefault(row["arm"], []).append({**row, "worse": worse})
    return by_arm


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
