"""Your own JAX loop: train_step wraps value_and_grad of the loss and an optax optimizer.

Look at: train_step, which takes value_and_grad and the optimizer's constructor, and record.steps.
The rate is a schedule over all N steps. Use each state only once: its buffers are donated.

Run with: python examples/jax_loop.py (about 15 seconds on one core; needs the extra jax, and
scikit-learn for the data)
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import optax
from sklearn.datasets import load_digits

from hybrid_predict import HybridConfig
from hybrid_predict.integrations.optax import train_step

TOTAL_STEPS, BATCH, WIDTHS = 300, 64, (64, 128, 128, 10)


def network(key):
    keys = jax.random.split(key, len(WIDTHS) - 1)
    layers = zip(("first", "second", "head"), keys, WIDTHS[:-1], WIDTHS[1:], strict=True)
    return {
        name: {"kernel": jax.random.normal(k, (m, n)) / m**0.5, "bias": jnp.zeros(n)}
        for name, k, m, n in layers
    }


def outputs(params, x):
    for name in ("first", "second"):
        x = jax.nn.relu(x @ params[name]["kernel"] + params[name]["bias"])
    return x @ params["head"]["kernel"] + params["head"]["bias"]


def loss(params, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(outputs(params, x), y).mean()


def main(speedup=1.5):
    images, labels = load_digits(return_X_y=True)
    images, labels = jnp.asarray(images / 16.0, jnp.float32), jnp.asarray(labels)
    train, test = slice(0, 1400), slice(1400, None)
    init, step = train_step(
        jax.value_and_grad(loss),
        partial(optax.adamw, weight_decay=0.01),
        optax.cosine_decay_schedule(3e-3, TOTAL_STEPS),
        HybridConfig(speedup=speedup, total_steps=TOTAL_STEPS, kinds={"head.*": "head"}),
        weight_decay=0.01,
    )
    state, steps, full_steps = init(network(jax.random.key(0))), 0, 0
    while steps < TOTAL_STEPS:
        at = jax.random.randint(jax.random.key(full_steps), (BATCH,), 0, 1400)
        state, record = step(state, images[train][at], labels[train][at])
        steps, full_steps = record.steps, full_steps + 1
    right = (outputs(state.params, images[test]).argmax(1) == labels[test]).mean()
    print(f"{full_steps} full steps of {steps}: {float(right):.1%} of the test images are right")
    return full_steps, steps, float(right)


if __name__ == "__main__":
    main()
