"""What every test shares: one thread, fixed seeds, and the benchmarks of the checkout."""

import functools
import gc
import importlib.metadata
import os
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings

# At the end: an installed hybrid_predict comes before the one in the checkout.
sys.path.append(str(Path(__file__).parents[1]))

torch.set_num_threads(1)
# Every Trainer asks for them, which reads about all installed packages: a tenth of a short run.
importlib.metadata.entry_points = functools.cache(importlib.metadata.entry_points)
# Compiling takes longer than what is compiled.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
settings.register_profile("suite", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("suite")


@pytest.fixture(autouse=True, scope="module")
def objects_of_other_modules_set_aside():
    """Hide all objects that are alive from the garbage collector.

    It looks at every other object, again and again, and so do measurements of memory. Imported
    packages leave millions.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def undrawn(monkeypatch):
    """Leave figures empty: to draw them takes five times as long as the rest of a short audit."""
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda *_, **__: None)


@pytest.fixture(autouse=True)
def seeds():
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
