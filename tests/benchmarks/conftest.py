"""Runs of the benchmark take one thread each."""

import pytest

from hybrid_predict.runs.runtime import threads


@pytest.fixture
def one_thread():
    with threads(1):
        yield
