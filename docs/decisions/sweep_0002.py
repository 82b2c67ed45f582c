"""Trains the demo's GPT with one variant of the forecast, in a plain loop on one thread.

Run with, for example:
    python docs/decisions/sweep_0002.py --predictor spectral --refresh-every 16 --updates 2.3333
One JSON line per run goes to standard output; docs/results/sweep-0002.jsonl is made of them.
"""

from __future__ import annotations

import argparse
import json

import torch
from torch.nn import functional as F

from hybrid_predict import (
    AlignmentHorizon,
    FixedHorizon,
    HybridConfig,
    HybridEngine,
    MomentumPredictor,
    SpectralPredictor,
)
from hybrid_predict.tasks.byte_gpt import ByteGPT, ByteGPTConfig
from hybrid_predict.tasks.stdlib_text import load_stdlib_text, sample_batch, validation_batches

CONTEXT, BATCH, STEPS = 64, 32, 1800


def options() -> argparse.Namespace:
    """What varies."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--predictor", choices=["spectral", "momentum"], default="spectral")
    parser.add_argument("--refresh-every", type=int, default=16)
    parser.add_argument("--decay", type=float, default=0.95)
    parser.add_argument("--updates", type=float, default=7 / 3, help="horizon, or its floor")
    parser.add_argument("--target", type=float, help="alignment target; without it, fixed horizon")
    parser.add_argument("--longest", type=float, default=31.0)
    parser.add_argument("--learning-rate", type=float, default=0.0113)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def config(chosen: argparse.Namespace) -> HybridConfig:
    """The variant's configuration."""
    spectral = SpectralPredictor(decay=chosen.decay, refresh_every=chosen.refresh_every)
    momentum = MomentumPredictor(decay=chosen.decay)
    floors = {"hidden": chosen.updates}
    return HybridConfig(
        total_steps=STEPS,
        predictors={"hidden": spectral if chosen.predictor == "spectral" else momentum},
        horizon=FixedHorizon(updates=chosen.updates)
        if chosen.target is None
        else AlignmentHorizon(floors=floors, target=chosen.target, longest=chosen.longest),
    )


def main() -> None:
    """Train, and print the result."""
    chosen = options()
    torch.set_num_threads(1)
    torch.manual_seed(chosen.seed)
    generator = torch.Generator().manual_seed(1000 + chosen.seed)
    text = load_stdlib_text()
    model = ByteGPT(ByteGPTConfig(layers=3, heads=2, width=64, context=CONTEXT))
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=chosen.learning_rate, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    warmup = round(0.05 * STEPS)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda k: min((k + 1) / warmup, max(0, STEPS - k) / (STEPS - warmup))
    )
    engine = HybridEngine(model, optimizer, config(chosen))
    while not engine.done:
        engine.before_step()
        inputs, targets = sample_batch(text.train, BATCH, CONTEXT, generator)
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        for _ in range(engine.after_step(loss).ticks):
            scheduler.step()
    with torch.no_grad():
        held_out = validation_batches(text.val, BATCH, CONTEXT, 256)
        losses = [F.cross_entropy(model(x).flatten(0, 1), y.flatten()) for x, y in held_out]
    result = {"full_steps": engine.ledger.full_steps, "val_loss": float(torch.stack(losses).mean())}
    print(json.dumps({**vars(chosen), **result}))


if __name__ == "__main__":
    main()
