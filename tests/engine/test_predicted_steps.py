"""A run of N steps takes fewer full steps, and weights move between them as forecast."""

import copy

import pytest
import torch
from cases import OPTIMIZERS, UNGATED
from loops import Bench, make_config, same_bits, weights
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from hybrid_predict import HybridConfig, HybridEngine, MomentumPredictor, Phase

DECAY, COEFFICIENT = 0.9, 0.5


class Counted:
    """A run that counts forward and backward passes, and watches the weights at every point."""

    def __init__(self, total=300, optimizer="adamw", schedule=None, **changes):
        torch.manual_seed(0)
        layers = nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 1)
        self.model = nn.Sequential(*layers)
        self.optimizer = OPTIMIZERS[optimizer](list(self.model.parameters()))
        self.scheduler = LambdaLR(self.optimizer, schedule or (lambda step: 1.0))
        self.config = HybridConfig(
            **{"total_steps": total, "max_overhead": 100.0, "predictors": UNGATED, **changes}
        )
        self.engine = HybridEngine(self.model, self.optimizer, self.config)
        self.forwards = self.backwards = 0
        self.records, self.rates = [], []
        self.between, self.updates = [], []

    def count_backward(self, gradient):
        self.backwards += 1

    def step(self):
        at_end = weights(self.model)
        self.engine.before_step()
        opened = weights(self.model)
        self.between.append({n: opened[n] - at_end[n] for n in opened})
        self.rates.append(self.optimizer.param_groups[0]["lr"])
        generator = torch.Generator().manual_seed(len(self.records))
        x = torch.randn(16, 5, generator=generator)
        loss = (self.model(x) - x.sum(1, keepdim=True).sin()).square().mean()
        self.forwards += 1
        loss.register_hook(self.count_backward)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        closed = weights(self.model)
        self.updates.append({n: closed[n] - opened[n] for n in closed})
        record = self.engine.after_step(loss)
        assert same_bits(weights(self.model), closed)
        for _ in range(record.ticks):
            self.scheduler.step()
        self.records.append(record)

    def finish(self):
        while not self.engine.done:
            self.step()
        return self

    @property
    def moved(self):
        """Whether any weight moved right before each full step."""
        return [any(bool(m.any()) for m in step.values()) for step in self.between]


def test_a_run_of_300_steps_takes_200_full_steps():
    run = Counted(speedup=1.5).finish()
    ledger = run.engine.ledger
    assert (run.forwards, run.backwards, ledger.full_steps) == (200, 200, 200)
    assert (ledger.steps, ledger.predicted_steps, ledger.undone_steps) == (300, 100, 0)
    assert sum(record.ticks for record in run.records) == 300
    assert run.scheduler.last_epoch == 300
    assert run.moved == [record.predicted > 0 for record in run.records]
    assert {record.predicted for record in run.records} == {0, 1}
    assert [r.ticks for r in run.records] == [1 + r.predicted for r in run.records]
    assert ledger.saved_steps_fraction == pytest.approx(1 / 3)
    assert ledger.corrected_steps == 200 - 15  # the cooldown is left to the optimizer


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("updates", [{"hidden": "spectral"}, {}], ids=["corrected", "plain"])
def test_weights_move_by_coefficient_times_rate_times_drift(updates, optimizer):
    run = Counted(
        60,
        optimizer,
        schedule=lambda step: 1.0 - step / 80,
        speedup=1.5,
        updates=updates,
        predictors={"hidden": MomentumPredictor(decay=DECAY, coefficient=COEFFICIENT, gated=False)},
    ).finish()
    hidden = {"0.weight", "2.weight"}
    drift = {name: torch.zeros_like(run.updates[0][name]) for name in hidden}
    for t, record in enumerate(run.records):
        for name, moved in run.between[t].items():
            wanted = torch.zeros_like(moved)
            if name in hidden:
                wanted = record.predicted * COEFFICIENT * run.rates[t] * drift[name]
            torch.testing.assert_close(moved, wanted, rtol=1e-4, atol=1e-6)
        decay = min(DECAY, 1 - 1 / (t + 1))
        for name in hidden:
            unit = run.updates[t][name] / run.rates[t]
            drift[name] = decay * drift[name] + (1 - decay) * unit
    assert sum(run.moved) == run.engine.ledger.predicted_steps == 20


def test_several_predicted_steps_in_a_row_move_so_much_further():
    run = Counted(60, full_steps=1, predict_steps=3, warmup_steps=4, cooldown_steps=2).finish()
    # 54 between: 13 groups of 4, then a full and a predicted step, cut short by the cooldown.
    assert {record.predicted for record in run.records} == {0, 1, 3}
    assert run.engine.ledger.predicted_steps == 13 * 3 + 1


@pytest.mark.parametrize("speedup", [1.2, 1.5, 1.9, 2, 3])
def test_a_run_takes_total_over_speedup_full_steps(speedup):
    run = Counted(120, speedup=speedup, warmup_steps=2, cooldown_steps=2).finish()
    assert len(run.records) == round(120 / speedup)
    assert sum(record.ticks for record in run.records) == 120
    if speedup < 2:
        assert max(record.predicted for record in run.records) == 1
    if speedup == 3:
        assert max(record.predicted for record in run.records) in (2, 3)


def test_phases_follow_each_other():
    run = Counted(40, speedup=1.5, warmup_steps=5, cooldown_steps=4).finish()
    phases = [record.phase for record in run.records]
    between = phases[5:-4]
    assert phases[:5] == [Phase.WARMUP] * 5
    assert phases[-4:] == [Phase.COOLDOWN] * 4 or phases[-4] is Phase.PREDICT
    assert set(between) == {Phase.FULL, Phase.PREDICT}
    for record in run.records:
        assert (record.phase is Phase.PREDICT) == (record.predicted > 0)


def test_predicted_steps_and_their_verifying_step_share_one_rate():
    run = Counted(60, speedup=1.5, schedule=lambda step: 1.0 / (1 + step)).finish()
    at = 0
    for rate, record in zip(run.rates, run.records, strict=True):
        assert rate == pytest.approx(0.01 / (1 + at))
        at += record.ticks


def test_what_does_not_fit_is_warned_of(caplog):
    Counted(30, speedup=1.9, warmup_steps=10, cooldown_steps=10)
    (message,) = [r.getMessage() for r in caplog.records if "fit" in r.getMessage()]
    assert "only 5 of 14 predicted steps fit" in message


def test_the_last_step_is_a_full_one_and_the_first_as_well():
    for total in (1, 2, 3, 5, 8):
        bench = Bench(make_config(total_steps=total, warmup_steps=0, cooldown_steps=0))
        records = bench.finish()
        assert records[0].predicted == 0
        assert sum(record.ticks for record in records) == total


@pytest.mark.parametrize("changes", [{}, {"speedup": 1}, {"enabled": False}, {"lag": 3}], ids=str)
def test_full_steps_after_the_last_step_are_plain_training_and_tick_nothing(changes):
    bench = Bench(make_config(**changes))
    scheduler = torch.optim.lr_scheduler.OneCycleLR(bench.optimizer, 0.01, total_steps=30)
    ticks = sum(record.ticks for record in bench.finish())
    plain = Bench()
    plain.taken = bench.taken
    plain.model.load_state_dict(copy.deepcopy(bench.model.state_dict()))
    plain.optimizer.load_state_dict(copy.deepcopy(bench.optimizer.state_dict()))
    for each in (bench, plain):
        torch.manual_seed(3)
        records = each.train(5)
        if each is bench:
            assert {(r.ticks, r.phase.value, r.predicted) for r in records} == {(0, "plain", 0)}
    for _ in range(ticks):
        scheduler.step()  # raises after total_steps
    assert ticks == 30
    for p, q in zip(bench.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(p, q)
    (told,) = [e for e in bench.engine.ledger.events if "leave the loop" in e["reason"]]
    assert told["count"] == 5
    assert bench.engine.ledger.steps == 35  # what was done beyond the run is not hidden
