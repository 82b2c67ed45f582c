"""Started with two devices: the same run with whole and with sharded parameters, in JAX.

Prints the largest difference of a weight, and how the weights were split.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from hybrid_predict import HybridConfig, MomentumPredictor
from hybrid_predict.integrations.optax import train_step

SHAPES = {"first": (8, 12), "bias": (12,), "second": (12, 8), "head": (8, 2)}
SPLITS = {"first": ("x", None), "bias": (), "second": (None, "x"), "head": ("x", None)}
"""Inputs, outputs, or nothing is split over the devices."""

CONFIG = HybridConfig(
    total_steps=30, kinds={"head": "head"}, predictors={"hidden": MomentumPredictor(gated=False)}
)


def loss(params: dict[str, Any], x: Any) -> Any:
    hidden = jnp.tanh(jnp.tanh(x @ params["first"] + params["bias"]) @ params["second"])
    return ((hidden @ params["head"] - x[:, :2]) ** 2).mean()


def trained(params: dict[str, Any], batch: Any) -> tuple[Any, int]:
    optimizer = partial(optax.adamw, weight_decay=0.1)
    value_and_grad = jax.value_and_grad(loss)
    init, step = train_step(value_and_grad, optimizer, 0.01, CONFIG, weight_decay=0.1)
    state, steps, predicted = init(params), 0, 0
    while steps < 30:
        state, record = step(state, batch)
        steps, predicted = record.steps, predicted + record.predicted
    return state, predicted


def main() -> None:
    generator = np.random.default_rng(0)
    params = {n: jnp.asarray(generator.normal(size=s) / 4) for n, s in SHAPES.items()}
    batch = jnp.asarray(generator.normal(size=(16, 8)))
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
    parts = {n: NamedSharding(mesh, PartitionSpec(*split)) for n, split in SPLITS.items()}
    sharded = {n: jax.device_put(x, parts[n]) for n, x in params.items()}
    by_sample = jax.device_put(batch, NamedSharding(mesh, PartitionSpec("x")))
    (whole, wanted), (split, predicted) = trained(params, batch), trained(sharded, by_sample)
    off = {n: float(np.abs(np.asarray(x) - np.asarray(split.params[n])).max())
           for n, x in whole.params.items()}  # fmt: skip
    known = split.hybrid.tensors.items()
    averages = {n: tensor.average for n, tensor in known}
    drifts = {n: tensor.drift for n, tensor in known}
    kept = all(x.sharding.is_equivalent_to(parts[n], x.ndim)
               for each in (split.params, averages, drifts)
               for n, x in each.items() if n != "bias")  # fmt: skip
    print(json.dumps({"off": max(off.values()), "predicted": [wanted, predicted], "kept": kept}))


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    main()
