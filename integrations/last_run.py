"""What a callback tells of its last run, whoever has made a copy of the callback."""

from __future__ import annotations

from typing import Any

from hybrid_predict.accounts.ledger import SavingsLedger
from hybrid_predict.report.history import RunHistory


class LastRun:
    """Ledger and history of the last run of a callback or of any copy of it in this process.

    Some packages train with a deep copy of the callback that they were given. A copy shares this
    object with its original; a pickle has its own.
    """

    def __init__(self) -> None:
        self.ledger = SavingsLedger()
        self.history = RunHistory()

    def start(self, ledger: SavingsLedger, history: RunHistory) -> None:
        """Follow a new run.

        Args:
            ledger: The run's ledger, which its engine keeps up to date.
            history: Its course, which its callback keeps up to date.
        """
        self.ledger, self.history = ledger, history

    def __deepcopy__(self, memo: dict[int, Any]) -> LastRun:
        return self
