"""Trains every committed run with the plug-in again, from one state of the code.

Run with: python -m benchmarks.everything --jobs 2

Stopped and started again, it goes on where it was. Runs without the plug-in are kept as long as
their recipe is the same. Results of another state of the code are left in their own folder.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks import RESULTS
from benchmarks.arguments import one_of
from benchmarks.arms import ARMS
from benchmarks.plan import Row, as_cell
from benchmarks.run import code_digest
from hybrid_predict.cli.program import positive
from hybrid_predict.runs.rows import RUNS, Rows

FOLDER, JOBS = "FOLDER", "JOBS"
"""What stands for the folder of a study and for the number of processes in its commands."""


@dataclass(frozen=True)
class Study:
    """Commands, as arguments of ``python -m``, and the committed file that they make again.

    ``rows`` are finished runs in the study's folder, ``made`` is the file that is committed as
    ``result``.
    """

    result: str
    rows: str
    made: str
    commands: tuple[tuple[str, ...], ...]


def _suite(name: str) -> Study:
    command = ("benchmarks", "run", "--suite", name, "--jobs", JOBS, "--output-dir", FOLDER)
    return Study(f"bench-{name}.json", RUNS, "results.json", (command,))


def _table(name: str, *commands: tuple[str, ...]) -> Study:
    return Study(f"{name}.jsonl", f"{name}.jsonl", f"{name}.jsonl", commands)


_RATES = ("benchmarks", "rates", "--jobs", JOBS, "--folder", FOLDER)
_FRESH = ("resnet", "gru", "encoder", "ppo", "coordinates", "tabular")

STUDIES: dict[str, Study] = {
    "core": _suite("core"),
    "wide": _suite("wide"),
    "fresh": _suite("fresh"),
    "rates": _table("rates", (*_RATES, "--seeds", "3"), (*_RATES, "--tasks", *_FRESH)),
    "scale": _table("scale", ("benchmarks.scale", "runs", "--folder", FOLDER)),
    "sizes": _table("sizes", ("benchmarks.scale", "sizes", "--folder", FOLDER)),
}
"""Studies by name, in the order of what the README cites."""

AFTER = (
    ("benchmarks.render",),
    ("benchmarks", "plot", str(RESULTS / "bench-core.json"),
     "--output", str(RESULTS / "bench-core.png")),
    ("benchmarks.scale", "plot"),
    ("benchmarks.seconds",),
    ("benchmarks.render",),
)  # fmt: skip
"""Commands that make figures and pages of the committed files."""


def main(argv: list[str] | None = None) -> None:
    """Read the arguments, and run."""
    parser = argparse.ArgumentParser("python -m benchmarks.everything", description=__doc__)
    parser.add_argument("studies", nargs="*", metavar="STUDY", type=one_of(STUDIES),
                        help=f"of {', '.join(STUDIES)} (all)")  # fmt: skip
    parser.add_argument("--jobs", type=positive, default=1, help="processes, one thread each")
    parser.add_argument("--folder", type=Path, default=Path("benchmark-runs"),
                        help="of finished runs, in a folder per state of the code")  # fmt: skip
    asked = parser.parse_args(argv)
    root = asked.folder / code_digest("hybrid")
    for name in asked.studies or STUDIES:
        study = STUDIES[name]
        again(study, root / name, asked.jobs)
        shutil.copy(root / name / study.made, RESULTS / study.result)
    for command in AFTER:
        _run(command)


def again(study: Study, folder: Path, jobs: int) -> None:
    """Run the commands of a study in a folder that starts with the committed runs that hold."""
    folder.mkdir(parents=True, exist_ok=True)
    Rows(folder / study.rows, as_cell).start_from(holding(committed(RESULTS / study.result)))
    stand_ins = {FOLDER: str(folder), JOBS: str(jobs)}
    for command in study.commands:
        _run([stand_ins.get(word, word) for word in command])


def committed(path: Path) -> list[Row]:
    """Return the runs of a results file; none if there is no file."""
    text = path.read_text("utf-8") if path.exists() else ""
    rows: list[Row] = (
        [json.loads(line) for line in text.splitlines()]
        if path.suffix == ".jsonl"
        else json.loads(text or '{"runs": []}')["runs"]
    )
    return rows


def holding(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the runs without the plug-in, and those of its present code."""
    for row in rows:
        arm = ARMS.get(row["arm"])
        if arm and (arm.plugin is None or row["code"] == code_digest(arm.name)):
            yield row


def _run(command: Iterable[str]) -> None:
    print("python -m", *command, flush=True)
    subprocess.run([sys.executable, "-m", *command], check=True)


if __name__ == "__main__":
    main()
