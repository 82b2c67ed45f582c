"""MLflow: with an MLFlowLogger in the Trainer, the callback logs to MLflow.

Look at: the printed command, which opens the run. Its metrics are named hybrid_predict; its
artifacts hold the ledger.

Run with: python examples/by_feature/mlflow_logger.py (about 20 seconds on one core)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import MLFlowLogger
from waves import train

from hybrid_predict import HybridPredict


def main(folder: str | Path = ".") -> Any:
    uri = f"sqlite:///{Path(folder) / 'mlflow.db'}"
    place = str(Path(folder) / "mlartifacts")
    logger = MLFlowLogger("waves", tracking_uri=uri, artifact_location=place)
    train(HybridPredict(), logger=logger, log_every_n_steps=10)
    run = logger.experiment.get_run(logger.run_id)
    for name, value in sorted(run.data.metrics.items()):
        if name.startswith("hybrid_predict/"):
            print(f"{name}: {value}")
    print(f"mlflow ui --backend-store-uri {uri}")
    return run


if __name__ == "__main__":
    main()
