"""A run of N steps takes fewer full steps, and weights move between them as forecast."""

import pytest
from cases import OPTIMIZERS, UNGATED
from loops import Bench, Run, load, make_config, net, normal, same_bits, save
from torch.optim.lr_scheduler import LambdaLR

from hybrid_predict import HybridConfig


class Scheduled(Run):
    """A run with a schedule, which counts forward and backward passes."""

    def __init__(self, total=300, optimizer="adamw", schedule=lambda step: 1.0, **changes):
        model = net(5, 12, 12, 1)
        settings = {"total_steps": total, "max_overhead": 100.0, "predictors": UNGATED, **changes}
        optimizer = OPTIMIZERS[optimizer](list(model.parameters()))
        super().__init__(model, optimizer, HybridConfig(**settings), self.counted)
        self.scheduler = LambdaLR(self.optimizer, schedule)
        self.forwards, self.backwards, self.rates = 0, [], []

    def counted(self, model, k):
        x = normal(k, 16, 5)
        loss = (model(x) - x.sum(1, keepdim=True).sin()).square().mean()
        self.forwards += 1
        loss.register_hook(self.backwards.append)
        return loss

    def step(self):
        self.rates.append(self.optimizer.param_groups[0]["lr"])
        for _ in range(super().step().ticks):
            self.scheduler.step()
        return self.records[-1]


def test_a_run_of_300_steps_takes_200_full_steps():
    run = Scheduled(speedup=1.5).finish()
    ledger = run.engine.ledger
    assert (run.forwards, len(run.backwards), ledger.full_steps) == (200, 200, 200)
    assert (ledger.steps, ledger.predicted_steps, ledger.undone_steps) == (300, 100, 0)
    assert sum(record.ticks for record in run.records) == 300 == run.scheduler.last_epoch
    moved = [any(m.any() for m in step.values()) for step in run.between]
    assert moved == [record.predicted > 0 for record in run.records]
    assert {record.predicted for record in run.records} == {0, 1}
    assert [r.ticks for r in run.records] == [1 + r.predicted for r in run.records]
    assert ledger.saved_steps_fraction == pytest.approx(1 / 3)
    assert ledger.corrected_steps == 200 - 15  # the cooldown is left to the optimizer


def test_full_steps_after_the_last_step_are_plain_training_and_tick_nothing():
    bench = Bench(make_config())
    assert sum(record.ticks for record in bench.finish()) == 30
    saved = save(bench)
    records = bench.train(5)
    assert {(r.ticks, r.phase.value, r.predicted) for r in records} == {(0, "plain", 0)}
    plain = load(saved, None)
    plain.train(5)
    assert same_bits(dict(bench.model.state_dict()), dict(plain.model.state_dict()))
    (told,) = [e for e in bench.engine.ledger.events if "leave the loop" in e["reason"]]
    assert told["count"] == 5
    assert bench.engine.ledger.steps == 35  # what was done beyond the run is not hidden
