"""Records a run in the loggers of a Trainer, in the same calls as the user's own metrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

from hybrid_predict.config import HybridConfig
from hybrid_predict.errors import raise_interrupt
from hybrid_predict.ledger import SavingsLedger
from hybrid_predict.ranks import processes
from hybrid_predict.runs.facts import ONE_RUN

METRICS = (
    "full_steps",
    "steps",
    "corrected_steps",
    "predicted_steps",
    "undone_steps",
    "saved_steps_fraction",
    "skill",
    "mean_length",
    "predicted_per_full_step",
    "overhead_fraction",
    "estimated_seconds_saved",
)
"""Numbers of the ledger that are logged while the run trains, over full steps."""

KIND_METRICS = ("length", "fitted", "error", "persistence", "advance")
"""Numbers of ``ledger.skills`` that are logged for every kind of parameters."""

NOTE = "mlflow.note.content"
"""Tag that MLflow shows as a run's description."""

_HEADING = "**HybridPredict:**"
"""Beginning of a description that the plug-in has written, and not the user."""

logger = processes.rank_zero_logger(__name__)


def numbers(ledger: SavingsLedger, *, kinds: bool = True) -> dict[str, float]:
    """Return the numbers of a ledger that are known and not 0, by the names that loggers get.

    ``kinds`` is whether those of single kinds of parameters are among them.
    """
    known = {name: getattr(ledger, name) for name in METRICS}
    found = {f"hybrid_predict/{name}": float(value) for name, value in known.items() if value}
    for kind, skill in ledger.skills.items() if kinds else ():
        for name in KIND_METRICS:
            if name in skill:
                found[f"hybrid_predict/{kind}.{name}"] = float(skill[name])
    return found


@final
class Loggers:
    """Records one run in all loggers of a Trainer.

    A logger that raises causes one warning, and is called again; training and the other loggers
    continue.
    """

    def __init__(self, loggers: Sequence[Any]) -> None:
        self._loggers = loggers
        self._failed: set[int] = set()

    def begin(self, config: HybridConfig) -> None:
        """Log the fields of the configuration that are set, under names that no user has."""
        chosen = {
            f"hybrid_predict/{name}": value if isinstance(value, (int, float)) else str(value)
            for name, value in config.to_dict().items()
            if value is not None
        }
        for each in self._loggers:
            with self._contained(each):
                each.log_hyperparams(chosen)

    def row(self, ledger: SavingsLedger, step: int) -> None:
        """Log the numbers of the ledger at a position of the loggers' x-axis."""
        for each in self._loggers:
            with self._contained(each):
                each.log_metrics(numbers(ledger), step=step)

    def end(self, ledger: SavingsLedger, status: str) -> None:
        """Leave status, description and ledger in MLflow; a description of the user stays."""
        for each in self._loggers:
            if "MLFlowLogger" not in [cls.__name__ for cls in type(each).__mro__]:
                continue
            with self._contained(each):
                client = each.experiment
                run = each.run_id
                client.set_tag(run, "hybrid_predict.status", status)
                if _HEADING in client.get_run(run).data.tags.get(NOTE, _HEADING):
                    client.set_tag(run, NOTE, f"{_HEADING} {ledger}.\n\n{ONE_RUN}")
                client.log_dict(run, ledger.summary(), "hybrid_predict/ledger.json")

    @contextmanager
    def _contained(self, target: Any) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise_interrupt(error)
            if id(target) not in self._failed:
                text = "hybrid_predict could not record the run in %s: %r. Training continues."
                logger.warning(text, type(target).__name__, error)
            self._failed.add(id(target))
