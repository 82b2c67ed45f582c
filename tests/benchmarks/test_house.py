"""What a full step of a small GPT costs besides the model's own work, and what is public."""

import json
import subprocess
import sys

import pytest

import hybrid_predict

MOST = {"1": (1_900, 420), "1.5": (3_800, 600)}
"""Own calls, and own operations on tensors, per full step, by speedup."""


@pytest.mark.slow
@pytest.mark.parametrize("speedup", MOST)
def test_a_full_step_takes_few_calls_and_operations_of_its_own(speedup):
    command = [sys.executable, "-m", "benchmarks.traced_step", speedup]
    step = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    calls, operations = MOST[speedup]
    assert 0 < step["calls"] <= calls
    assert 0 < step["operations"] <= operations


def test_few_names_are_public():
    assert len(hybrid_predict.__all__) <= 18
