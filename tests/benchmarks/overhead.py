"""Measures what a forecast adds to a full step of the demo's GPT, in alternating blocks of one run.

Run with: python tests/benchmarks/overhead.py > docs/results/overhead.json
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
from importlib.metadata import version
from time import perf_counter

import torch
from torch.nn import functional as F

from hybrid_predict import HybridConfig, HybridEngine
from hybrid_predict.tasks.byte_gpt import ByteGPT, ByteGPTConfig
from hybrid_predict.tasks.stdlib_text import load_stdlib_text, sample_batch


def ratios(threads: int, blocks: int, length: int) -> list[float]:
    """Seconds of a block with forecasts over those of the plain block after it."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    generator, text = torch.Generator().manual_seed(0), load_stdlib_text()
    model = ByteGPT(ByteGPTConfig(layers=3, heads=2, width=64, context=64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    config = HybridConfig(total_steps=1_000_000, warmup_fraction=0.0, count_flops=False)
    engine = HybridEngine(model, optimizer, config)

    def seconds(forecast: bool) -> float:
        started = perf_counter()
        for _ in range(length):
            inputs, targets = sample_batch(text.train, 32, 64, generator)
            if forecast:
                engine.before_step()
            loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if forecast:
                engine.after_step(loss)
        return perf_counter() - started

    seconds(True)
    return [seconds(True) / seconds(False) for _ in range(blocks)]


def main() -> dict[str, object]:
    """The median ratio for one and two threads, with its quartiles."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=24)
    parser.add_argument("--length", type=int, default=32)
    chosen = parser.parse_args()
    found: dict[str, object] = {}
    for threads in (1, 2):
        measured = ratios(threads, chosen.blocks, chosen.length)
        low, middle, high = statistics.quantiles(measured, n=4)
        found[f"{threads} threads"] = {"median": middle, "quartiles": [low, high]}
    versions = {"python": platform.python_version(), "torch": version("torch")}
    return {**vars(chosen), "ratio": found, "versions": versions}


if __name__ == "__main__":
    print(json.dumps(main(), indent=2))
