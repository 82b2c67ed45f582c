"""Runs of the benchmark take one thread each, and no random numbers of the user's."""

import random

import numpy as np
import pytest
import torch


@pytest.fixture
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def after_seeds():
    """Call a function after two global seeds; what it gives, if it left their states alone."""

    def states():
        numpy_state = np.random.get_state()
        return random.getstate(), torch.get_rng_state().tolist(), *map(str, numpy_state[1:])

    def call(use):
        found = []
        for seed in (3, 4):
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed)
            before = states()
            found.append(use())
            assert states() == before
        return found

    return call
