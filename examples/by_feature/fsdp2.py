"""Two processes in a Lightning Trainer: FSDP2, here over gloo on the CPU.

Look at: configure_model and the strategy, as without the plug-in. Each process holds half of every
parameter, and of what the plug-in keeps about it.

Run with: python examples/by_feature/fsdp2.py (about 20 seconds on one core)
"""

from __future__ import annotations

import torch.distributed as dist
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.fsdp import fully_shard
from waves import Waves, train

from hybrid_predict import HybridPredict


class ShardedWaves(Waves):
    def configure_model(self) -> None:
        fully_shard(self.net, mesh=self.device_mesh["data_parallel"])


def main() -> None:
    callback, model = HybridPredict(speedup=1.5), ShardedWaves()
    strategy = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
    trainer = train(callback, model=model, devices=2, strategy=strategy, max_steps=200)
    if trainer.is_global_zero:
        print(f"{callback.ledger}; sharded over {dist.get_world_size()} processes")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
