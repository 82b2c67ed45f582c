"""How a run is recorded in a logger: in any, and in TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from hybrid_predict.config import HybridConfig
from hybrid_predict.ledger import SavingsLedger
from hybrid_predict.report.history import RunHistory
from hybrid_predict.report.run_page import ONE_RUN

OWN = "**HybridPredict:**"
"""How a description begins that is not the user's own."""


@final
@dataclass(frozen=True)
class Outcome:
    """A finished run.

    Args:
        config: Its configuration.
        ledger: What it cost and saved.
        history: Its course.
    """

    config: HybridConfig
    ledger: SavingsLedger
    history: RunHistory

    @property
    def chosen(self) -> dict[str, Any]:
        """The configuration, without what was left open."""
        return {k: v for k, v in self.config.to_dict().items() if v is not None}

    @property
    def parameters(self) -> dict[str, str]:
        """The configuration as text, by names that cannot be the user's own."""
        return {f"hybrid_predict/{name}": str(value) for name, value in self.chosen.items()}

    @property
    def facts(self) -> dict[str, float | str | None]:
        """What tables of runs are filtered and sorted by; None is not known."""
        config, ledger = self.config, self.ledger
        return {
            "mode": "disabled" if not config.enabled else "shadow" if config.shadow else "active",
            "speedup": config.compression,
            "full_steps": ledger.full_steps,
            "steps": ledger.steps,
            "predicted_steps": ledger.predicted_steps,
            "saved_steps_fraction": ledger.saved_steps_fraction,
            "skill": ledger.skill,
        }

    @property
    def description(self) -> str:
        """What came of the run, as Markdown."""
        lines = [f"{OWN} {self.ledger}.", "", ONE_RUN]
        if self.ledger.events:
            lines += ["", "| event | full step | times |", "| --- | --- | --- |"]
            events = [(_cell(e["reason"]), e["step"], e["count"]) for e in self.ledger.events]
            lines += [f"| {reason} | {step} | {count} |" for reason, step, count in events]
        lines += ["", "| setting | value |", "| --- | --- |"]
        settings = [f"| {name} | {_cell(value)} |" for name, value in self.chosen.items()]
        return "\n".join([*lines, *settings])


class Sink:
    """Records a run in any logger.

    Args:
        logger: The logger.
    """

    def __init__(self, logger: Any) -> None:
        self.logger = logger

    @property
    def name(self) -> str:
        """What messages call it."""
        return type(self.logger).__name__

    def row(self, metrics: Mapping[str, float], step: int) -> None:
        """Log numbers of the run so far.

        Args:
            metrics: The numbers by name.
            step: Position on the x-axis, the logger's own count of full steps.
        """
        self.logger.log_metrics(dict(metrics), step=step)

    def result(self, counts: Mapping[str, float], step: int) -> None:
        """Log what is known at the end only, in a group of its own; args as of :meth:`row`."""
        self.row({f"hybrid_predict_end/{name}": value for name, value in counts.items()}, step)

    def text(self, name: str, text: str) -> None:
        """Keep a text, where there is room for one."""

    def outcome(self, outcome: Outcome) -> None:
        """Record configuration and outcome of the finished run."""
        self.logger.log_hyperparams(outcome.parameters)

    def close(self, timeout: float) -> None:
        """Send what waits, for so many seconds at most."""


@final
class TensorBoardSink(Sink):
    """Records a run in TensorBoard, which has room for one text."""

    def outcome(self, outcome: Outcome) -> None:
        """Record the description as a text, and the configuration."""
        self.logger.experiment.add_text("hybrid_predict", outcome.description)
        # Without metrics it would add a chart of a constant.
        self.logger.log_hyperparams(outcome.parameters, {})


def _cell(value: object) -> str:
    """A value in a table of Markdown."""
    return " ".join(str(value).replace("|", "\\|").split())
