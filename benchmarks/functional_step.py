"""Step time of the compiled functional form, compared with optax's AdamW and Muon.

The loops take turns in one process, block by block, so that other work on the machine slows all of
them alike. Needs the extra jax.

Run with, for one thread:
XLA_FLAGS=--xla_cpu_multi_thread_eigen=false python -m benchmarks.functional_step [--blocks 8]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Callable
from functools import partial
from time import process_time
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks import RESULTS
from benchmarks.measure import middle
from hybrid_predict import HybridConfig, MomentumPredictor
from hybrid_predict.integrations.optax import corrected, train_step
from hybrid_predict.runs.runtime import environment, write_json

RATE, LAYERS = 1e-3, 4

KINDS = {"head": "head"}


def network(width: int) -> dict[str, Any]:
    """Return residual layers of one width and a head; matrices are of shape (inputs, outputs)."""
    keys, scale = jax.random.split(jax.random.key(0), LAYERS + 1), width**-0.5
    shapes = {**{f"layer{k}": (width, width) for k in range(LAYERS)}, "head": (width, 10)}
    named = zip(shapes.items(), keys, strict=True)
    return {name: scale * jax.random.normal(key, shape) for (name, shape), key in named}


def loss(params: dict[str, Any], x: Any, y: Any) -> Any:
    """Return the cross entropy of the network."""
    for k in range(LAYERS):
        x = x + jax.nn.relu(x @ params[f"layer{k}"])
    return optax.softmax_cross_entropy_with_integer_labels(x @ params["head"], y).mean()


def plain(width: int, optimizer: optax.GradientTransformation) -> Callable[..., Any]:
    """Return a compiled full step of an optax optimizer, which holds its state."""

    @partial(jax.jit, donate_argnums=(0, 1))
    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        gradients = jax.grad(loss)(params, x, y)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    held = [network(width)]
    held.append(optimizer.init(held[0]))

    def run(x: Any, y: Any) -> Any:
        held[:] = step(*held, x, y)
        return 1, held[0]

    return run


def hybrid(width: int, steps: int) -> Callable[..., Any]:
    """A jitted full step with its predicted ones, which counts as so many steps as it brings."""
    predictors = {"hidden": MomentumPredictor(gated=False)}
    config = HybridConfig(total_steps=steps, warmup_steps=1, kinds=KINDS, predictors=predictors)
    init, step = train_step(jax.value_and_grad(loss), optax.adamw, RATE, config)
    held = [init(network(width))]

    def run(x: Any, y: Any) -> Any:
        held[0], record = step(held[0], x, y)
        return record.ticks, held[0].params

    return run


def loops(width: int, steps: int) -> dict[str, Callable[..., Any]]:
    """What is measured, by name."""
    config = HybridConfig(speedup=1, kinds=KINDS)
    return {
        "adamw": plain(width, optax.adamw(RATE)),
        "muon": plain(width, optax.contrib.muon(RATE)),
        "corrected": plain(width, corrected(optax.adamw(RATE), RATE, config)),
        "corrected and predicted": hybrid(width, steps),
    }


def measure(width: int, batch: int, blocks: int, length: int) -> dict[str, Any]:
    """Processor time of a step, over that of AdamW, in alternating blocks."""
    x = jax.random.normal(jax.random.key(1), (batch, width))
    y = jnp.arange(batch) % 10
    by_name = loops(width, 10 * length * (blocks + 2))
    rounds = [{name: _block(run, x, y, length) for name, run in by_name.items()}
              for _ in range(blocks + 1)][1:]  # fmt: skip
    rows = {name: middle([each[name] / each["adamw"] for each in rounds]) for name in by_name}
    milliseconds = 1e3 * statistics.median(each["adamw"] for each in rounds)
    return {"width": width, "batch": batch, "adamw_ms": milliseconds, "loops": rows}


def _block(run: Callable[..., Any], x: Any, y: Any, length: int) -> float:
    """Return the processor time per step, predicted steps included."""
    started, ticks = process_time(), []
    for _ in range(length):
        count, weights = run(x, y)
        ticks.append(count)
    jax.block_until_ready(weights)
    spent = process_time() - started
    return spent / sum(int(n) for n in ticks)


def main() -> None:
    """Measure, print the rows, and write the results file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--length", type=int, default=10)
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 256, 512])
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--note", default="")
    given = parser.parse_args()
    versions = {"jax": jax.__version__, "optax": optax.__version__}
    device, flags = jax.devices()[0].device_kind, os.environ.get("XLA_FLAGS", "")
    rows: list[dict[str, Any]] = []
    for width in given.widths:
        rows.append(measure(width, given.batch, given.blocks, given.length))
        print(json.dumps(rows[-1], indent=1), flush=True)
        result = {
            "environment": {**environment(), **versions, "jax_device": device, "xla_flags": flags},
            "blocks": given.blocks, "length": given.length, "note": given.note,
            "layers": LAYERS, "rows": rows,
        }  # fmt: skip
        write_json(result, RESULTS / "functional_step.json")


if __name__ == "__main__":
    main()
