"""A loop of one's own that torchrun restarts; it kills itself where it is told.

The processes run: torchrun tests/ranks/elastic_loop.py FOLDER SETUP [DEATHS] [DROPPED]
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.nn.parallel import DistributedDataParallel

from distributed_loops import Loop, make_config, sharded
from hybrid_predict.policy.limits import Limits
from hybrid_predict.ranks import processes, shards

EVERY = 3
"""Full steps between two saves; with one predicted step after each, phases begin in between."""

WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)
CONFIG = {"total_steps": 40, "warmup_steps": 5, "cooldown_steps": 5, "full_steps": 2}
SETUPS: dict[str, tuple[Callable[[Any], Any], dict[str, Any]]] = {
    "single": (lambda net: net, {}),
    "ddp": (DistributedDataParallel, {}),
    "fsdp2": (sharded, {}),
}


class Deaths:
    """Ends a rank of each attempt in a full step, at a place in it, in one way."""

    def __init__(self, folder: Path, planned: list[tuple[int, int, str, str]]) -> None:
        attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        self.folder = folder
        self.planned = planned[attempt] if attempt < len(planned) else None

    def at(self, place: str, step: int, told: Any) -> None:
        if self.planned is None or self.planned[:3] != [processes.rank(), step, place]:
            return
        with (self.folder / "deaths.jsonl").open("a") as file:
            print(json.dumps({"place": place, "step": step, **told}), file=file)
        how = self.planned[3]
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif how == "exit":
            os._exit(3)
        raise OSError(f"the share is gone in full step {step}")


class Elastic(Loop):
    """Takes its full steps as a loop does, saves every few of them, and resumes by itself."""

    def __init__(self, folder: Path, setup: str, deaths: Deaths, dropped: str = "") -> None:
        wrap, changes = SETUPS[setup]
        super().__init__(wrap, make_config(**CONFIG, **changes))
        self.file, self.deaths = folder / "last.pt", deaths
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 40)
        if self.file.exists():
            self.resume(torch.load(self.file, weights_only=True), dropped)

    def resume(self, saved: dict[str, Any], dropped: str) -> None:
        model = shards.unwrapped(self.model)
        parts = {"model_state_dict": saved["model"], "optim_state_dict": saved["optimizer"]}
        set_state_dict(model, self.optimizer, **parts, options=WHOLE)
        self.scheduler.load_state_dict(saved["scheduler"])
        self.engine.load_state_dict(saved["engine"])
        self.taken = saved["taken"]
        if dropped == "drift":
            for group in self.engine._groups:
                for value in chain(*group.memory.arrays().values()):
                    value.zero_()
        elif dropped == "optimizer":
            self.optimizer.state.clear()
        elif dropped == "scheduler":
            self.scheduler.last_epoch = 0
        elif dropped == "limits":
            self.engine._policy.limits = Limits.of(1)
        elif dropped == "ledger":
            self.engine.ledger.corrected_steps = 0

    def save(self) -> None:
        model, optimizer = get_state_dict(
            shards.unwrapped(self.model), self.optimizer, options=WHOLE
        )
        engine = self.engine.state_dict()  # on every rank
        if processes.rank() == 0:
            new = self.file.with_suffix(".new")
            parts = {"model": model, "optimizer": optimizer, "engine": engine}
            counted = {"scheduler": self.scheduler.state_dict(), "taken": self.taken}
            torch.save({**parts, **counted}, new)
            self.die("save")
            new.replace(self.file)

    def die(self, place: str, *_: Any) -> None:
        step = self.engine._step
        told = {} if step is None else {"phase": step.phase.value, "predicted": step.predicted}
        number = self.engine.ledger.full_steps + (step is not None)
        self.deaths.at(place, number, told)

    def step(self, spoil: Any = None) -> Any:
        self.die("between")
        self.engine.before_step()
        self.die("forward")
        loss = self.loss()
        loss.backward()
        self.die("backward")
        self.optimizer.step()
        self.die("after update")
        self.optimizer.zero_grad()
        record = self.engine.after_step(loss)
        for _ in range(record.ticks):
            self.scheduler.step()
        return record

    def run(self) -> None:
        with self.engine:
            while not self.engine.done:
                self.step()
                if self.engine.ledger.full_steps % EVERY == 0:
                    self.save()
        self.save()


def main(folder: Path, setup: str, planned: str = "[]", dropped: str = "") -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    dist.init_process_group("gloo")
    Elastic(folder, setup, Deaths(folder, json.loads(planned)), dropped).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
