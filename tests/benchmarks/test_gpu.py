"""The study of a GPU: its order and its limit, and a rehearsal."""

import pytest

from benchmarks.plan import Selection
from benchmarks.studies import gpu
from benchmarks.tasks.gpu import TIMED


def test_times_come_first_and_a_run_that_may_not_end_in_time_is_not_begun(monkeypatch):
    plan = gpu.GPUPlan(Selection(seeds=2))
    keys = plan.ready({})
    assert len(keys) == len(set(keys)) == len(TIMED) + 2 * len(gpu.RUNS)
    assert [key.task for key in keys[: len(TIMED)]] == list(TIMED)
    done = {keys[0]: {"elapsed": 0.4 * gpu.SECONDS}}
    assert plan.ready(done) == keys[1:]
    done[keys[0]] = {"elapsed": 0.6 * gpu.SECONDS}
    assert plan.ready(done) == []


@pytest.mark.slow
@pytest.mark.parametrize("first", [*TIMED, "run"])
def test_without_a_gpu_it_is_rehearsed(first, monkeypatch):
    monkeypatch.setattr(gpu, "TOY_STEPS", 60)
    monkeypatch.setattr(gpu, "BLOCKS", 2)
    plan = gpu.GPUPlan(Selection())
    keys = plan.ready({})
    key = next(k for k in keys if k.task == first or (first == "run" and k.arm == "hybrid"))
    found = plan.work(key)
    assert plan.key(found) == key and plan.holds(found) and found["toy"]
    tables = {name: make() for name, make in gpu.blocks([found]).items()}
    assert "toy size" in tables["gpu runs" if key.arm else "gpu steps"]
    if key.arm:
        assert found["predicted_steps"] > 0
        assert len(found["curve"]) == gpu.EVALUATIONS
        assert found["best"] == min(point["loss"] for point in found["curve"])
