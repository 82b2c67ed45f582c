"""A run in MLflow, without waiting for the server."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any, final

from hybrid_predict.integrations.outbox import Outbox
from hybrid_predict.integrations.sinks import OWN, Outcome, Sink
from hybrid_predict.report.figure import run_figure

NOTE = "mlflow.note.content"
"""Tag that MLflow shows as a run's description."""


@final
class MLflowSink(Sink):
    """Records a run in MLflow through an outbox: texts as tags, the outcome as a description.

    Args:
        logger: The logger.
    """

    def __init__(self, logger: Any) -> None:
        super().__init__(logger)
        self._outbox = Outbox("MLflow")

    def row(self, metrics: Mapping[str, float], step: int) -> None:
        """Log numbers of the run so far, in one call."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        row = [Metric(name, value, now, step) for name, value in metrics.items()]
        client, run = self.logger.experiment, self.logger.run_id
        self._outbox.send(partial(client.log_batch, run, metrics=row))

    def result(self, counts: Mapping[str, float], step: int) -> None:
        """Log what is known at the end only; MLflow draws a bar of what has step 0 alone."""
        super().result(counts, 0)

    def text(self, name: str, text: str) -> None:
        """Keep a text as a tag."""
        client, run = self.logger.experiment, self.logger.run_id
        self._outbox.send(partial(client.set_tag, run, f"hybrid_predict.{name}", text))

    def outcome(self, outcome: Outcome) -> None:
        """Record description, tags, configuration, ledger and figure."""
        self._outbox.send(partial(_log_outcome, self.logger, outcome))

    def close(self, timeout: float) -> None:
        """Send what waits, for so many seconds at most, and end the thread."""
        self._outbox.close(timeout)


def _log_outcome(logger: Any, outcome: Outcome) -> None:
    from mlflow.entities import Param

    client, run = logger.experiment, logger.run_id
    known = client.get_run(run).data
    # MLflow refuses to change a parameter.
    new = [Param(k, v) for k, v in outcome.parameters.items() if k not in known.params]
    client.log_batch(run_id=run, params=new)
    for name, value in outcome.facts.items():
        text = f"{value:.4g}" if isinstance(value, float) else str(value or "unknown")
        client.set_tag(run, f"hybrid_predict.{name}", text)
    if OWN in known.tags.get(NOTE, OWN):  # the user's own note stays
        client.set_tag(run, NOTE, outcome.description)
    client.log_dict(run, outcome.ledger.summary(), "hybrid_predict/ledger.json")
    client.log_figure(run, run_figure(outcome.history), "hybrid_predict/run.png")
