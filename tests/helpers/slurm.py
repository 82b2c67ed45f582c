"""A job on a SLURM cluster, as its processes see it."""

from __future__ import annotations

import os
from pathlib import Path


def job(folder: Path, rank: int = 0, tasks: int = 1) -> dict[str, str]:
    """Environment of one task; ``scontrol`` notes in ``folder / "told"`` what it is told."""
    scontrol = folder / "scontrol"
    scontrol.write_text(f'#!/bin/sh\necho "$@" >> {folder / "told"}\n')
    scontrol.chmod(0o755)
    return {
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "SLURM_NTASKS": f"{tasks}", "SLURM_NTASKS_PER_NODE": f"{tasks}", "SLURM_NODEID": "0",
        "SLURM_JOB_NAME": "train", "SLURM_JOB_ID": "4321", "SLURM_PROCID": f"{rank}",
        "SLURM_LOCALID": f"{rank}",
    }  # fmt: skip
