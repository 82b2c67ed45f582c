"""What two ranks do when one fails; by ``launcher.launch``, for ``test_distributed``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from loops import same_bits

from distributed_loops import Loop, make_config, sharded
from faulty import FailingUpdate
from hybrid_predict.ranks import processes


@dataclass(frozen=True, kw_only=True)
class FailingUpdateThere(FailingUpdate):
    """Fails on the last rank only, in a method in which the ranks of a sharded model meet."""

    def _fail(self) -> None:
        if processes.rank() == 1:
            super()._fail()


def failing(wrap: Callable[[Any], Any], **changes: Any) -> Callable[[Path], dict[str, Any]]:
    """What a rank ended with, and whether it was left as it was before its last full step."""

    def check(folder: Path) -> dict[str, Any]:
        loop = Loop(wrap, make_config(**changes))
        kept: Any = None
        with pytest.raises(Exception) as caught, loop.engine:
            while not loop.engine.done:
                kept = loop.state()
                loop.step()
        whole = same_bits(loop.state(), kept)
        text = str(caught.value)
        return {"type": caught.typename, "text": text, "whole": whole, "steps": loop.taken}

    return check


CHECKS: dict[str, Callable[[Path], Any]] = {
    "sharded": failing(sharded, updates={"hidden": FailingUpdateThere(after=8)})
}
