"""LightningCLI: the callback, its updates and its predictors from a YAML file.

Look at: lightning_cli.yaml. Updates and predictors are objects with arguments of their own.

Run in this folder, with: python lightning_cli.py fit --config lightning_cli.yaml (about 8 seconds
on one core)
"""

from __future__ import annotations

from lightning.pytorch.cli import LightningCLI
from waves import Waves, WavesData


def main(args: list[str] | None = None) -> LightningCLI:
    return LightningCLI(Waves, WavesData, args=args)


if __name__ == "__main__":
    main()
