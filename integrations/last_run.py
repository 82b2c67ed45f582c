"""The results of a callback's last run, shared by all copies of the callback."""

from __future__ import annotations

from typing import Any, final

from hybrid_predict.ledger import SavingsLedger
from hybrid_predict.report.history import RunHistory


@final
class LastRun:
    """Ledger and history of the last run of a callback, or of any of its copies in this process.

    Some packages train with a deep copy of a callback. A deep copy shares this object with its
    original; a pickle does not.
    """

    def __init__(self) -> None:
        self.ledger = SavingsLedger()
        self.history = RunHistory()

    def start(self, ledger: SavingsLedger, history: RunHistory) -> None:
        """Record a new run.

        Args:
            ledger: The run's ledger, which its engine updates.
            history: The run's history, which its callback updates.
        """
        self.ledger, self.history = ledger, history

    def __deepcopy__(self, memo: dict[int, Any]) -> LastRun:
        return self
