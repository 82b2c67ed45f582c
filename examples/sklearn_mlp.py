"""scikit-learn's MLPClassifier, which exposes no gradients, with corrected and predicted steps.

Look at: full_step, where one call of partial_fit is a full step. With solver="sgd" and momentum=0
the displacement is minus rate times gradient, which gives the gradient. Weights are written in
place, because the solver holds the same arrays.

Run with: pip install scikit-learn && python examples/sklearn_mlp.py (about 5 seconds on one core)
"""

from __future__ import annotations

import warnings

import numpy as np
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

from hybrid_predict import HybridConfig
from hybrid_predict.functional import correct, init, predict, verify

TOTAL_STEPS, BATCH, RATE = 300, 100, 0.1


def named(model):
    layers = zip(model.coefs_, model.intercepts_, strict=True)
    pairs = [(f"{k}.{part}", x) for k, both in enumerate(layers) for part, x in
             zip(("coefs", "intercepts"), both, strict=True)]  # fmt: skip
    return dict(pairs)


def write(model, arrays):
    for name, x in named(model).items():
        x[...] = arrays[name]


def copied(model):
    return {name: x.copy() for name, x in named(model).items()}


def full_step(model, state, batch):
    """Take one full step: partial_fit between predict and correct."""
    before, state = predict(state, copied(model), RATE)
    write(model, before)
    model.partial_fit(*batch)
    after = copied(model)
    gradients = {name: (before[name] - after[name]) / RATE for name in after}
    stands, state = verify(state, gradients, model.loss_)
    new, state = correct(state, gradients, before, after, RATE)
    write(model, new)
    return state, stands


def main(speedup=1.5, updates=None):
    images, labels = load_digits(return_X_y=True)
    images, generator = images / 16.0, np.random.default_rng(0)
    model = MLPClassifier(
        (64, 64), solver="sgd", momentum=0.0, learning_rate_init=RATE, batch_size=BATCH,
        shuffle=False, random_state=0,
    )  # fmt: skip
    model.partial_fit(images[:BATCH], labels[:BATCH], classes=np.arange(10))  # creates the weights
    config = HybridConfig(
        speedup=speedup, total_steps=TOTAL_STEPS, kinds={"2.coefs": "head"},
        updates={"hidden": "spectral"} if updates is None else updates,
    )  # fmt: skip
    state = init(named(model), config, outputs_last=True)
    while state.clock.steps < TOTAL_STEPS:
        at = generator.integers(0, 1400, BATCH)
        state, _ = full_step(model, state, (images[at], labels[at]))
    full_steps, steps = state.clock.full_steps, state.clock.steps
    score = model.score(images[1400:], labels[1400:])
    print(f"{full_steps} full steps of {steps}: {score:.1%} of the test images are right")
    return full_steps, steps, score


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        main()
        main(speedup=1)
        main(speedup=1, updates={})
