"""Virtual environments of the clients: each has one package, this checkout and what both need."""

import subprocess
import venv
from importlib.metadata import version
from pathlib import Path

from benchmarks.clients import Client

ROOT = Path(__file__).parents[2]

SHARED = ("pytest", "hypothesis", f"{ROOT}[lightning,cli,bench]")
"""Requirements of every environment, beside the present versions of torch and Lightning."""

OLD_BUILDS = "setuptools<81\n"
"""Constraint on the tools that build packages: some old ones need a part that is gone since. The
pip that comes with Python would apply it to what is installed too."""


def interpreter(client: Client, folder: Path) -> Path:
    """Return the Python of a client's environment, which is made if its requirements are new."""
    place = folder.resolve() / client.package
    python, made = place / "bin" / "python", place / "requirements.txt"
    wanted = "\n".join(requirements(client))
    if not made.exists() or made.read_text("utf-8") != wanted:
        print(f"Environment of {client.package}: {place}", flush=True)
        venv.create(place, with_pip=True, clear=True)
        limits = place / "builds.txt"
        limits.write_text(OLD_BUILDS, "utf-8")
        install = [str(python), "-m", "pip", "install", "--quiet"]
        subprocess.run([*install, "pip>=25.3"], check=True)
        subprocess.run(
            [*install, "--build-constraint", str(limits), *wanted.split("\n")], check=True
        )
        drop_unloadable(place)
        made.write_text(wanted, "utf-8")
    return python


def drop_unloadable(place: Path) -> None:
    """Make torchvision and torchaudio importable beside a torch that is built for CPUs.

    The wheels on PyPI contain parts that are compiled for CUDA, and importing these parts fails. No
    client uses them.
    """
    for packages in place.glob("lib/python*/site-packages"):
        if (packages / "torch" / "lib" / "libc10_cuda.so").exists():
            continue
        for part in packages.glob("torchaudio/lib/_torchaudio*.so"):
            part.unlink()
        for part in packages.glob("torchvision/_meta_registrations.py"):
            part.write_text("", "utf-8")


def requirements(client: Client) -> tuple[str, ...]:
    """Return what pip installs for a client."""
    present = (f"{name}=={version(name).partition('+')[0]}" for name in ("torch", "lightning"))
    return (*present, *client.requires, *SHARED)
