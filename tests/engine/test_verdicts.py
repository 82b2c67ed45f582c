"""What the verdict depends on: the loss where it is known in time, gradients, and a scaler."""

import pytest
import torch
from loops import NAN, Bench, make_config, same_bits, weights
from verifying import run

from hybrid_predict import Verdict
from hybrid_predict.ledger import Phase
from hybrid_predict.policy.limits import IDLE


def scaled_step(bench, scaler, factor=1.0):
    bench.engine.before_step()
    loss = bench.loss() * factor
    scaler.scale(loss).backward()
    scaler.step(bench.optimizer)
    scaler.update()
    bench.optimizer.zero_grad()
    bench.taken += 1
    return bench.engine.after_step(loss)


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_the_gradient_scaler_skips_is_undone(fused):
    bench = run("adamw, fused" if fused else "adamw", model="mlp", total_steps=60)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1000)
    records = [scaled_step(bench, scaler) for _ in range(2)]
    assert [record.verdict for record in records] == [Verdict.STANDS] * 2
    before = bench.kept()
    record = scaled_step(bench, scaler, NAN)
    assert (record.predicted, record.ticks, record.verdict) == (1, 1, Verdict.UNDONE)
    assert same_bits(bench.kept(), before)
    assert scaler.get_scale() == 2.0
    assert scaled_step(bench, scaler).predicted == 0  # a pause
    assert not same_bits(bench.kept(), before)


@pytest.mark.parametrize(("every", "paused"), [(2, 0), (1, 1)])
def test_a_verifying_step_without_an_update_is_no_alarm_unless_many_come_in_a_row(every, paused):
    bench, verifying = run(model="mlp", total_steps=200), 0
    while bench.engine.ledger.undone_steps < IDLE:
        bench.engine.before_step()
        loss = bench.loss()
        loss.backward()
        verifying += bench.engine._step.predicted
        if verifying % every or not bench.engine._step.predicted:
            bench.optimizer.step()
        bench.optimizer.zero_grad()
        bench.taken += 1
        bench.engine.after_step(loss)
    assert bench.engine._policy.limits.pauses == paused
    assert bench.reasons == ["predicted steps were undone: no update followed the predicted steps"]


def update(bench, factor=1.0):
    (bench.loss() * factor).backward()
    bench.optimizer.step()
    bench.optimizer.zero_grad()
    bench.taken += 1


def test_of_several_updates_in_a_full_step_the_first_verifies():
    bench = run(model="mlp")
    before, now = bench.kept(), []
    bench.engine.before_step()
    for factor in (NAN, 1.0, 1.0):
        update(bench, factor)
        now.append(bench.kept())
    assert bench.engine.after_step().verdict is Verdict.UNDONE
    assert same_bits(now[0], before)
    counts = [{float(s["step"]) for s in o["state"].values()} for _, o in now]
    assert counts == [{6.0}, {7.0}, {8.0}]
    assert all(torch.isfinite(p).all() for p in bench.model.parameters())


def test_a_loss_that_need_not_fall_decides_nothing():
    bench = Bench(make_config(total_steps=150, warmup_steps=20, watch_loss=False))
    records = []
    while not bench.engine.done:  # the gradients stay as they are
        rise = 0.0 if bench.taken < 30 else 1e6
        records.append(bench.step(lambda model, loss, rise=rise: loss + rise))
    ledger = bench.engine.ledger
    assert Phase.PLAIN not in {record.phase for record in records}
    assert (ledger.steps, ledger.undone_steps, ledger.events) == (150, 0, [])
    assert ledger.predicted_steps > 20 and records[-1].loss > 1e5


def test_every_update_of_a_full_step_is_corrected():
    bench = run(model="mlp")
    bench.engine.before_step()
    for _ in range(3):
        before = weights(bench.model)
        update(bench)
        moved = bench.model[0].weight.detach() - before["0.weight"]
        values = torch.linalg.svdvals(moved)  # an orthogonal factor, not Adam's constant entries
        assert float(values.min() / values.max()) > 0.3
