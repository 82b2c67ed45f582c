"""The audit of audit.yaml from Python: does the callback save full steps on this model?

Run with: python examples/audit.py (about six minutes on one core)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from base import ByteGPT, PythonText

from hybrid_predict.audit import AuditConfig, audit


def make_run(arm: Any, max_steps: int = 300) -> tuple[Any, ByteGPT, PythonText]:
    """Return Trainer, model and data; called for each arm and seed, after seeding."""
    trainer = arm.trainer(max_steps=max_steps, accelerator="cpu", log_every_n_steps=20)
    return trainer, ByteGPT(learning_rate=4e-3), PythonText()


def main(folder: str | Path = "hybrid-predict-audit") -> None:
    result = audit(make_run, AuditConfig(metric="val_loss", seeds=5, speedup=1.5), folder)
    print(result.verdict.headline)
    print(result.verdict.text)
    print(f"Report: {result.folder / 'report.html'}")


if __name__ == "__main__":
    main()
