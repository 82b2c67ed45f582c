"""Rows whose gradient is masked on the way stand still, but for weight decay."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from functional_loops import KINDS, batch, loss_and_gradients, weights

from hybrid_predict import FittedPredictor, HybridConfig
from hybrid_predict.functional import correct, init, predict, verify

RATE = 0.05
DECAY = 0.1
FROM = 25
FROZEN = slice(4, None)
SETTINGS = HybridConfig(
    total_steps=90, kinds=KINDS, predictors={"hidden": FittedPredictor(gated=False)}
)


def test_masked_rows_stand_still() -> None:
    w, seen = weights(), []
    state = init(w, SETTINGS)
    while state.clock.steps < 90:
        w, state = predict(state, w, RATE)
        seen.append(w["2.weight"])
        step = state.clock.full_steps
        loss, gradients = loss_and_gradients(w, *batch(step))
        if step >= FROM:
            gradients["2.weight"][FROZEN] = 0.0
        _, state = verify(state, gradients, loss)
        after = {n: x - RATE * (gradients[n] + DECAY * x) for n, x in w.items()}
        w, state = correct(state, gradients, w, after, RATE, weight_decay=DECAY)
        seen.append(w["2.weight"])
    later = [x[FROZEN] for x in seen[2 * FROM + 1 :]]
    moved = [np.abs(b - a).max() for a, b in pairwise(later)]
    assert max(moved[::2]) == 0.0  # predicted steps
    assert max(moved) <= 1.001 * RATE * DECAY * np.abs(later[0]).max()
    assert np.abs(seen[-1] - seen[2 * FROM])[:4].min() > 0
