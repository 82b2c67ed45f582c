"""The random generators go on where they were."""

import io
import random

import numpy as np
import torch

from hybrid_predict.tensors.random_states import random_states, set_random_states


def drawn():
    normal = [float(np.random.randn()) for _ in range(3)]  # an odd number, of which one is cached
    return [random.random(), random.gauss(0, 1), *normal, *torch.rand(3).tolist()]


def test_generators_continue_from_a_saved_state():
    drawn()
    buffer = io.BytesIO()
    torch.save(random_states(), buffer)
    random_states()  # draws nothing
    wanted = [drawn() for _ in range(3)]
    buffer.seek(0)
    set_random_states(torch.load(buffer, weights_only=True))
    assert [drawn() for _ in range(3)] == wanted
