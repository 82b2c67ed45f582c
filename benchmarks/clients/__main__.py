"""Trains the clients: python -m benchmarks.clients NAME... --seeds 3."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.clients import CLIENTS
from benchmarks.clients.run import run

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "clients.json"


def main() -> None:
    """Read the arguments, and run."""
    parser = argparse.ArgumentParser("python -m benchmarks.clients", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CLIENTS)}; or all")
    parser.add_argument("--seeds", type=int, default=3, help="of each client (default: 3)")
    parser.add_argument("--output", type=Path, default=RESULTS, help="the results file")
    parser.add_argument("--anew", action="store_true", help="make finished seeds again")
    asked = parser.parse_args()
    if unknown := [name for name in asked.names if name not in CLIENTS]:
        parser.error(f"no client is named {unknown[0]!r}; there are {', '.join(CLIENTS)}")
    if asked.seeds < 1:
        parser.error("--seeds: expected at least 1")
    run(asked.names or list(CLIENTS), asked.seeds, asked.output, anew=asked.anew)


if __name__ == "__main__":
    main()
