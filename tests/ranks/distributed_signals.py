"""What two ranks do when a cluster sends signals; by ``launcher.launch``, for ``test_signals``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch.distributed as dist

from distributed_loops import Loop, ddp, make_config, sharded
from hybrid_predict.ranks import processes


def asked(wrap: Callable[[Any], Any], *, late: bool = False) -> Callable[[Path], dict[str, Any]]:
    """One rank asks a loop of one's own to stop; which full steps tell that it was asked.

    If ``late``, measurements are read as late as those on a device.
    """

    def check(folder: Path) -> dict[str, Any]:
        with mock.patch("hybrid_predict.state.on_host", lambda _: not late):
            return stops()

    def stops() -> dict[str, Any]:
        loop = Loop(wrap, make_config())
        for _ in range(10):
            loop.step(stop=False)
        records = [loop.step(stop=k == 0 and processes.rank() == 1) for k in range(2)]
        state, again = [loop.engine.state_dict()], Loop(wrap, make_config())
        dist.broadcast_object_list(state)
        again.engine.load_state_dict(state[0])
        records += [loop.step(stop=False) for _ in range(3)]
        resumed = [again.step(stop=False).stop for _ in range(4)]
        loop.engine._fall_back("told so")
        after = [loop.step(stop=bool(k and processes.rank())).stop for k in range(2)]
        return {"stops": [r.stop for r in records], "resumed": resumed, "plain": after}

    return check


CHECKS: dict[str, Callable[[Path], Any]] = {
    "ddp, asked": asked(ddp()),
    "fsdp2, late, asked": asked(sharded, late=True),
}
