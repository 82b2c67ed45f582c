"""Runs the slow tests of clients, each in its environment: python -m benchmarks.clients NAME..."""

import subprocess
import sys

from benchmarks.clients import CLIENTS
from benchmarks.clients.plan import ROOT, interpreter
from benchmarks.plan import check_chosen


def main(names: list[str]) -> int:
    """Test clients, all if none is named; return how many failed."""
    check_chosen("NAME", names, CLIENTS)
    command = ("-m", "pytest", "-m", "slow", "tests/clients/test_clients.py", "-k")
    pythons = {name: interpreter(name) for name in names or CLIENTS}
    codes = [subprocess.run([python, *command, name], cwd=ROOT) for name, python in pythons.items()]
    return sum(bool(code.returncode) for code in codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
