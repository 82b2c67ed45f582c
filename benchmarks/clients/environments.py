"""Virtual environments of the clients: each has one package, this checkout and what both need."""

from __future__ import annotations

import os
import subprocess
import venv
from importlib.metadata import version
from pathlib import Path

from benchmarks.clients import Client

ROOT = Path(__file__).parents[2]

SHARED = ("pytest", "hypothesis", f"{ROOT}[lightning,cli,bench]")
"""Requirements of every environment, beside the present versions of torch and Lightning."""

OLD_BUILDS = "setuptools<81\n"
"""Constraint on the tools that build packages: some old ones need a part that is gone since."""


def interpreter(client: Client, folder: Path) -> Path:
    """Return the Python of a client's environment, which is made if its requirements are new."""
    place = folder.resolve() / client.package
    python, made = place / "bin" / "python", place / "requirements.txt"
    wanted = "\n".join(requirements(client))
    if not made.exists() or made.read_text("utf-8") != wanted:
        print(f"Environment of {client.package}: {place}", flush=True)
        venv.create(place, with_pip=True, clear=True)
        limits = place / "constraints.txt"
        limits.write_text(OLD_BUILDS, "utf-8")
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", *wanted.split("\n")],
            check=True,
            env={**os.environ, "PIP_CONSTRAINT": str(limits)},
        )
        made.write_text(wanted, "utf-8")
    return python


def requirements(client: Client) -> tuple[str, ...]:
    """Return what pip installs for a client."""
    present = (f"{name}=={version(name).partition('+')[0]}" for name in ("torch", "lightning"))
    return (*present, *client.requires, *SHARED)
