"""The results of a callback's last run, shared by all copies of the callback."""

from __future__ import annotations

from typing import Any, final

from hybrid_predict.ledger import SavingsLedger
from hybrid_predict.runs.log import RunLog


@final
class LastRun:
    """Ledger and log of the last run of a callback, or of any of its copies in this process.

    Some packages train with a deep copy of a callback. A deep copy shares this object with its
    original; a pickle has a ledger of its own, and no log.
    """

    log = RunLog()

    def __init__(self) -> None:
        self.ledger = SavingsLedger()

    def __deepcopy__(self, memo: dict[int, Any]) -> LastRun:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {"ledger": self.ledger}
