"""Hundreds of full steps, one of them undone: nothing piles up."""

import gc
import threading

import torch
from loops import NAN, Bench, load, make_config, save, spoil_with
from torch import nn

STEPS, SPOILED = 300, 260
"""Full steps, and about the one that verifies predicted steps which cannot stand."""


def held():
    """How many tensors and threads there are."""
    gc.collect()
    found = sum(1 for thing in gc.get_objects() if type(thing) in (torch.Tensor, nn.Parameter))
    return found, threading.active_count()


def test_undone_steps_and_copies_leave_nothing_behind():
    config = make_config(total_steps=4 * STEPS, warmup_steps=8)
    alarms = 0
    first = None
    bench = Bench(config)
    for step in range(STEPS):
        if step in (STEPS // 5, STEPS - 1):  # fresh objects have none of the copies made so far
            bench = load(save(bench), config)
            first = first or held()
        due = bench.engine._policy.due(bench.engine.position)
        spoils = due and not alarms and step > SPOILED
        alarms += bool(spoils)
        bench.step(spoil_with(factor=NAN) if spoils else None)
    assert bench.engine.ledger.undone_steps == alarms > 0
    found = held()
    assert found[0] < first[0] + 20  # an open window has some
    assert found[1] == first[1]
    assert len(bench.optimizer._optimizer_step_pre_hooks) == 1
    assert len(bench.optimizer._optimizer_step_post_hooks) == 1
