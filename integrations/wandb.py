"""A run in Weights & Biases, online or offline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from hybrid_predict.integrations.sinks import OWN, Outcome, Sink

_AXIS = "trainer/global_step"
"""What Lightning's logger calls the x-axis; it counts full steps."""


@final
class WandbSink(Sink):
    """Records a run in W&B: texts and the result in its summary, the outcome in its notes.

    Args:
        logger: The logger.
    """

    def __init__(self, logger: Any) -> None:
        super().__init__(logger)
        self._open: int | None = None

    def row(self, metrics: Mapping[str, float], step: int) -> None:
        """Log numbers of the run so far, in one row with the user's own metrics of this full step.

        Charts over ``hybrid_predict/steps`` draw rows that have both. The row is left open for the
        logger's own call, which comes after this one; without that, the next call here closes it.
        """
        self._complete()
        run = self.logger.experiment
        self._open = run.step
        run.log({**metrics, _AXIS: step}, commit=False)

    def result(self, counts: Mapping[str, float], step: int) -> None:
        """Keep what is known at the end only in the summary, where it makes no chart."""
        self._complete()
        for name, value in counts.items():
            self.text(name, value)

    def text(self, name: str, text: object) -> None:
        """Keep a text or a number in the summary, as a column of the table of runs."""
        self.logger.experiment.summary[f"hybrid_predict/{name}"] = text

    def outcome(self, outcome: Outcome) -> None:
        """Record notes, summary and configuration; numbers stay numbers, to be sorted by."""
        run = self.logger.experiment
        for name, value in outcome.facts.items():
            if value is not None:
                self.text(name, value)
        own = {f"hybrid_predict/{name}": value for name, value in outcome.chosen.items()}
        self.logger.log_hyperparams(own)
        if OWN in (run.notes or OWN):  # the user's own notes stay
            run.notes = outcome.description

    def close(self, timeout: float) -> None:
        """Close the last row."""
        self._complete()

    def _complete(self) -> None:
        """Close the row that was left open, unless the logger's own call has."""
        run = self.logger.experiment
        if self._open is not None and run.step == self._open:
            run.log({}, commit=True)
        self._open = None
