"""A loop in two processes that torchrun restarts: it saves, and resumes by itself.

Look at: save and resume, which every process calls, and stop, on which all processes agree. The
last process ends itself once at full step FAIL, as a node that is lost; the run continues from the
last save. SIGTERM to the processes saves once more and ends the run; start it again to go on.

Run with: TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --standalone --nproc-per-node 2
--max-restarts 3 examples/by_feature/elastic.py FOLDER [FAIL] (about 15 seconds on two cores)
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from hybrid_predict import HybridConfig, HybridEngine

TOTAL_STEPS, BATCH, EVERY = 150, 64, 20
WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


class Run:
    """A model and its optimizer, schedule and engine; with fully_shard it is saved alike."""

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(0)
        layers = torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh()
        self.net = torch.nn.Sequential(*layers, torch.nn.Linear(64, 1))
        self.model = DistributedDataParallel(self.net)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, TOTAL_STEPS)
        config = HybridConfig(speedup=1.5, total_steps=TOTAL_STEPS)
        self.engine = HybridEngine(self.model, self.optimizer, config)
        self.file = folder / "last.pt"
        if self.file.exists():
            self.resume()

    def save(self) -> None:
        model, optimizer = get_state_dict(self.net, self.optimizer, options=WHOLE)
        engine, scheduler = self.engine.state_dict(), self.scheduler.state_dict()
        if dist.get_rank() == 0:
            state = {"model": model, "optimizer": optimizer, "engine": engine}
            torch.save({**state, "scheduler": scheduler}, self.file.with_suffix(".new"))
            self.file.with_suffix(".new").replace(self.file)  # a whole file or none

    def resume(self) -> None:
        saved = torch.load(self.file, weights_only=True)
        states = {"model_state_dict": saved["model"], "optim_state_dict": saved["optimizer"]}
        set_state_dict(self.net, self.optimizer, options=WHOLE, **states)
        self.scheduler.load_state_dict(saved["scheduler"])
        self.engine.load_state_dict(saved["engine"])

    def step(self, stop: bool) -> bool:
        """Take one full step; return whether to stop, the same on all ranks."""
        self.engine.before_step()
        generator = torch.Generator().manual_seed(self.engine.ledger.full_steps)
        batch = torch.randn(BATCH, 8, generator=generator)
        x = batch[dist.get_rank() :: dist.get_world_size()]
        loss = F.mse_loss(self.model(x), x.sum(1, keepdim=True).sin())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        record = self.engine.after_step(loss, stop=stop)
        for _ in range(record.ticks):
            self.scheduler.step()
        return record.stop


def main(folder: Path, fail: int) -> None:
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    dist.init_process_group("gloo")
    run = Run(folder)
    attempt, first = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), dist.get_rank() == 0
    ledger, last = run.engine.ledger, dist.get_rank() == dist.get_world_size() - 1
    if first:
        print(f"attempt {attempt} begins after {ledger.full_steps} full steps")
    stop = False
    with run.engine:
        while not (run.engine.done or stop):
            if last and attempt == 0 and ledger.full_steps == fail:
                os._exit(1)
            stop = run.step(stop=bool(asked))
            if stop or ledger.full_steps % EVERY == 0:
                run.save()
    if run.engine.done:
        run.save()
    if first:
        print(f"{'done' if run.engine.done else 'stopped'}: {ledger}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int((*sys.argv[2:], "0")[0]) or -1)
