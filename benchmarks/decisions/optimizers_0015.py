"""What scratch updates find out about the optimizers of torch and of pytorch_optimizer.

After ``pip install --no-deps pytorch_optimizer==4.1.0`` the command
``python -m benchmarks.decisions.optimizers_0015`` writes ``docs/results/optimizers-0015.json``.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from hybrid_predict.torch.probe import find_rule

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "optimizers-0015.json"


def made(cls: Any) -> Optimizer | None:
    """An optimizer of a class, with weight decay where it takes one; None if it wants more."""
    for options in ({"weight_decay": 0.1}, {"weight_decay": 0.1, "num_iterations": 100}, {}):
        try:
            built: Optimizer = cls([nn.Parameter(torch.ones(4, 4))], lr=0.01, **options)
        except Exception:  # whatever a foreign constructor does with these arguments
            continue
        return built
    return None


def rules(module: ModuleType) -> dict[str, Any]:
    """The rule of every optimizer of a module that can be made."""
    found = {}
    for name, cls in sorted(vars(module).items()):
        if isinstance(cls, type) and issubclass(cls, Optimizer) and cls is not Optimizer:
            optimizer = made(cls)
            if optimizer is not None:
                found[name] = asdict(find_rule(optimizer, optimizer.param_groups[0]))
    return found


def main() -> None:
    """Write the results file, and tell which optimizers are refused or left alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        foreign = import_module("pytorch_optimizer")
        found = {"torch.optim": rules(torch.optim), "pytorch_optimizer": rules(foreign)}
    results = {
        "torch": torch.__version__,
        "pytorch_optimizer": version("pytorch_optimizer"),
        "rules": found,
    }
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    for name, part in found.items():
        returns = [n for n, rule in part.items() if rule["returns"]]
        unknown = [n for n, rule in part.items() if rule["unknown"] and not rule["returns"]]
        print(f"{name}: {len(part)} made; {len(returns)} return to a second copy: {returns}")
        print(f"    unknown: {len(unknown)} {unknown}")


if __name__ == "__main__":
    main()
