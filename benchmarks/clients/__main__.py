"""Runs the slow tests of clients, each in its environment: python -m benchmarks.clients NAME..."""

import subprocess
import sys

from benchmarks.clients import CLIENTS
from benchmarks.plan import check_chosen
from benchmarks.studies.clients import ROOT, interpreter


def main(names: list[str]) -> int:
    """Test clients, all if none is named; return how many failed."""
    check_chosen("NAME", names, CLIENTS)
    failed = 0
    for name in names or CLIENTS:
        test = ("-m", "pytest", "-m", "slow", "tests/clients/test_clients.py", "-k", name)
        failed += subprocess.run([interpreter(name), *test], cwd=ROOT).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
