"""Measures yardsticks: python -m benchmarks.yardsticks NAME... --seeds 5; runs are kept."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks import RESULTS
from benchmarks.arguments import one_of
from benchmarks.rates.study import make_missing
from benchmarks.yardsticks import studies
from hybrid_predict.cli.program import positive


def main() -> None:
    """Read the arguments, and make the runs that the results file lacks."""
    parser = argparse.ArgumentParser("python -m benchmarks.yardsticks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", type=one_of(studies()),
                        help=f"of {', '.join(studies())}; or all")  # fmt: skip
    parser.add_argument("--seeds", type=positive, default=3, help="of each run (default: 3)")
    parser.add_argument("--jobs", type=positive, default=1, help="processes (default: 1)")
    parser.add_argument("--text", type=Path, help="nanogpt's text file, such as its input.txt; "
                        "without one, the source text of the standard library")  # fmt: skip
    parser.add_argument("--folder", type=Path, default=RESULTS, help="of the results file")
    asked = parser.parse_args()
    known = studies(asked.text)
    for name in asked.names or known:
        study = known[name]
        path, keys = asked.folder / study.file, study.keys(asked.seeds)
        make_missing(path, study.key, keys, study.measure, asked.jobs, study.tell)


if __name__ == "__main__":
    main()
