"""Runs whose next full step verifies a predicted one, with many optimizers."""

import torch
from cases import OPTIMIZERS
from loops import Bench, make_config

from hybrid_predict import HybridEngine


class Counting(torch.optim.SGD):
    """Counts its steps in the group, and warms up by that count."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1
            group["momentum"] = min(0.9, 0.1 * group["k"])
        return super().step(closure)


EVERY_OPTIMIZER = {
    **OPTIMIZERS,
    "adamw, fused": lambda ps: torch.optim.AdamW(ps, lr=0.01, fused=True, weight_decay=0.1),
    "adam, fused, amsgrad": lambda ps: torch.optim.Adam(ps, lr=0.01, fused=True, amsgrad=True),
    "sgd, fused": lambda ps: torch.optim.SGD(ps, lr=0.02, momentum=0.9, fused=True),
    "adagrad, fused": lambda ps: torch.optim.Adagrad(ps, lr=0.02, fused=True),
    "counting": lambda ps: Counting(ps, lr=0.02, momentum=0.1),
}


def run(optimizer="adamw", model="conv", steps=6, **changes):
    """A run whose next full step verifies a predicted one."""
    bench = Bench(None, model)
    trained = [p for p in bench.model.parameters() if p.requires_grad]
    bench.optimizer = EVERY_OPTIMIZER[optimizer](trained)
    bench.engine = HybridEngine(bench.model, bench.optimizer, make_config(**changes))
    bench.train(steps)
    return bench
