"""Runs the slow tests of clients, each in its environment: python -m benchmarks.clients NAME..."""

import subprocess
import sys
from pathlib import Path

from benchmarks.clients import CLIENTS, client
from benchmarks.clients.environments import ROOT, interpreter
from hybrid_predict.errors import ConfigError

COMMAND = ("-m", "pytest", "-m", "slow", "tests/clients/test_clients.py", "-k")


def main(names: list[str]) -> int:
    """Test clients, all if none is named; return how many failed."""
    if unknown := [name for name in names if name not in CLIENTS]:
        raise ConfigError("NAME", f"one of {', '.join(CLIENTS)}", unknown[0])
    folder = Path("client-environments")
    pythons = {name: interpreter(client(name), folder) for name in names or CLIENTS}
    codes = [subprocess.run([python, *COMMAND, name], cwd=ROOT) for name, python in pythons.items()]
    return sum(bool(code.returncode) for code in codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
