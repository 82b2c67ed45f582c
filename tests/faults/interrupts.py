"""Interrupts at the lines of a full step."""

from itertools import count

from loops import same_bits
from verifying import run

from faulty import Interrupt, check_consistent
from hybrid_predict.errors import UsageError
from hybrid_predict.ledger import FELL_BACK
from hybrid_predict.policy.schedule import due


def prepared(model):
    """A run whose next full step is a verifying one."""
    bench = run(model=model)
    assert due(bench.engine.schedule, bench.engine.position) == 1
    return bench


def interrupted(model, every, error=KeyboardInterrupt):
    """Runs that were interrupted in one full step, each at another line; every n-th is taken."""
    for at in count(0, every):
        bench = prepared(model)
        try:
            with Interrupt(at, error):
                bench.step()
        except error:
            yield bench
            continue
        assert at > 300
        return


def watched(bench):
    """Weights right after the optimizer's update."""
    seen = []
    original = bench.engine.after_update

    def noting(*args):
        seen.append(bench.kept()[0])
        original(*args)

    bench.engine.after_update = noting
    bench.step()
    return seen[0]


def check_between(found, before, own, after, *, counted):
    """Every tensor is what the optimizer has made of it, or corrected.

    An update that its hook has not counted is undone with the predicted steps before it.
    """
    assert same_bits(found[1], after[1])
    if not counted:
        assert same_bits(found[0], before[0])
        return
    for name, value in found[0].items():
        assert same_bits(value, own[name]) or same_bits(value, after[0][name]), name


def interrupt_lines(model, every):
    """Ctrl-C at every n-th line of a full step, and what weights and state were left like."""
    bench = prepared(model)
    before = bench.kept()
    own = watched(bench)
    after = bench.kept()
    assert not same_bits(before, after)
    seen = {"before": 0, "after": 0, "between": 0}
    for bench in interrupted(model, every):
        step = bench.engine._step
        counted = step is None or bool(step.calls)
        bench.engine.detach()
        found = bench.kept()
        if same_bits(found, before):
            seen["before"] += 1
        elif same_bits(found, after):
            seen["after"] += 1
        else:
            seen["between"] += 1
            check_between(found, before, own, after, counted=counted)
        assert not bench.optimizer._optimizer_step_pre_hooks
    assert seen["before"] and seen["after"]
    return seen


def interrupt_and_go_on(model, every, error):
    """After an interrupt at every n-th line the same engine finishes its run."""
    for bench in interrupted(model, every, error):
        try:
            bench.engine.abandon()
        except UsageError:  # the update has happened
            bench.engine.after_step()
        bench.optimizer.zero_grad()
        while not bench.engine.done:
            bench.step()
        check_consistent(bench)
        assert bench.engine.ledger.steps == bench.engine.schedule.total
        assert not bench.engine.ledger.last_event(FELL_BACK)[1]
