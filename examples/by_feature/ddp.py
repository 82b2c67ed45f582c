"""Two processes: DDP, here over gloo on the CPU.

Look at: the strategy, an argument of the Trainer, is the only change. Only the first process
prints; both take the same predicted steps and end with the same weights.

Run with: python examples/by_feature/ddp.py (about 20 seconds on one core)
"""

from __future__ import annotations

import torch
from lightning.pytorch.strategies import DDPStrategy
from waves import Waves, train

from hybrid_predict import HybridPredict


def main() -> bool:
    callback, model = HybridPredict(speedup=1.5), Waves()
    strategy = DDPStrategy(process_group_backend="gloo")
    trainer = train(callback, model=model, devices=2, strategy=strategy, max_steps=200)
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    both = [torch.empty_like(weights) for _ in range(2)]
    torch.distributed.all_gather(both, weights)
    same = torch.equal(*both)
    if trainer.is_global_zero:
        print(f"{callback.ledger}; both processes have the same weights: {same}")
    torch.distributed.destroy_process_group()
    return same


if __name__ == "__main__":
    main()
