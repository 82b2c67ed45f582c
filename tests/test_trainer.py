"""The loop that the package owns: the same steps as by hand, and spoiled batches retried."""

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from cases import OPTIMIZERS
from hybrid_predict import (
    ConfigError,
    FixedHorizon,
    HybridTrainer,
    OptimizerWrapper,
    TorchModel,
    TrainableModel,
    Verdict,
)
from loops import INF, NAN, Bench, make_config, same_bits, weights


class Workshop:
    """A trainer on the same model, batches and optimizer as a :class:`Bench`."""

    def __init__(self, config, optimizer="adamw", spoiled=(), spoil=NAN, scheduled=False):
        self.bench = Bench(None, "conv", optimizer)
        self.spoiled, self.spoil = set(spoiled), spoil
        self.seen = []
        scheduler = LambdaLR(self.bench.optimizer, lambda tick: 0.9**tick) if scheduled else None
        self.scheduler = scheduler
        self.trainer = HybridTrainer(
            TorchModel(self.bench.model, self.loss),
            OptimizerWrapper(self.bench.optimizer),
            config,
            scheduler,
        )

    def loss(self, model, k):
        """The loss of batch k, spoiled the first time that a spoiled batch is seen."""
        self.seen.append(k)
        loss = self.bench.case.loss(model, self.bench.case.batch(k))
        if k in self.spoiled:
            self.spoiled.discard(k)
            return loss + self.spoil if self.spoil == INF else loss * self.spoil
        return loss

    def steps(self, count):
        return [self.trainer.step(k) for k in range(count)]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("changes", [{}, {"lag": 3}, {"enabled": False}, {"shadow": True}], ids=str)
def test_trainer_takes_the_same_steps_as_the_loop_by_hand(changes, optimizer):
    config = make_config(**changes)
    hand = Bench(config, "conv", optimizer)
    records = hand.train(12)
    expected = hand.trace()
    shop = Workshop(config, optimizer)
    results = shop.steps(12)
    assert same_bits(shop.bench.trace(), expected)
    assert [r.record.ticks for r in results] == [r.ticks for r in records]
    assert {r.retried for r in results} == {0}


@pytest.mark.parametrize("scheduled_ticks", [10, 30])
def test_scheduler_follows_the_clock(scheduled_ticks):
    shop = Workshop(make_config(speedup=2), scheduled=True)
    ticks = 0
    for k in range(30):
        if ticks >= scheduled_ticks:
            break
        ticks += shop.trainer.step(k).ticks
        assert shop.scheduler.last_epoch == ticks == shop.trainer.ledger.equivalent_steps
    assert ticks >= scheduled_ticks
    (rate,) = OptimizerWrapper(shop.bench.optimizer).learning_rates()
    assert rate == pytest.approx(0.01 * 0.9**ticks)


@pytest.mark.parametrize("spoil", [NAN, INF])
@pytest.mark.parametrize("lag", [0, 3])
def test_batch_spoiled_at_a_forecast_point_is_trained_again_at_base_weights(lag, spoil):
    shop = Workshop(make_config(lag=lag, total_steps=60), spoiled=[6], spoil=spoil)
    results = shop.steps(14)
    assert shop.seen.count(6) == 2
    assert [k for k, result in enumerate(results) if result.retried] == [6 + lag]
    assert all(torch.isfinite(p).all() for p in shop.bench.model.parameters())
    assert shop.trainer.ledger.full_steps == 15
    assert shop.trainer.ledger.rejected == 1


def test_retried_batch_ends_where_training_it_at_base_weights_does():
    spoiled = Workshop(make_config(), spoiled=[6])
    spoiled.steps(7)
    plain = Workshop(make_config())
    plain.steps(6)
    engine, bench = plain.trainer.engine, plain.bench
    engine.before_step(forecast=False)
    plain.loss(bench.model, 6).backward()
    bench.optimizer.step()
    engine.after_step()
    assert same_bits(spoiled.bench.trace(), bench.trace())


def test_every_one_of_several_spoiled_batches_in_a_row_is_trained_again():
    shop = Workshop(make_config(lag=3, total_steps=60), spoiled=[6, 7, 8])
    results = shop.steps(16)
    assert [shop.seen.count(k) for k in (5, 6, 7, 8, 9)] == [1, 2, 2, 2, 1]
    assert sum(result.retried for result in results) == 3


def test_ticks_of_a_retry_are_counted_with_the_step():
    shop = Workshop(make_config(speedup=2), spoiled=[6])
    results = shop.steps(8)
    assert results[6].ticks == 2
    assert sum(r.ticks for r in results) == shop.trainer.ledger.equivalent_steps


@pytest.mark.parametrize(
    "changes",
    [
        {"enabled": False},
        {"shadow": True},
        {"horizon": FixedHorizon(updates=0.0)},
        {"shadow": True, "lag": 3},
    ],
    ids=str,
)
def test_batch_spoiled_at_base_weights_is_not_trained_again(changes):
    shop = Workshop(make_config(**changes), spoiled=[6])
    results = shop.steps(12)
    assert shop.seen == list(range(12))
    assert {r.retried for r in results} == {0}


def test_fit_trains_until_the_run_is_done():
    shop = Workshop(make_config(speedup=1.5))
    ledger = shop.trainer.fit(range(1000))
    assert shop.trainer.done
    assert (ledger.full_steps, ledger.equivalent_steps) == (20, 30)


def test_fit_ends_with_its_batches():
    shop = Workshop(make_config())
    assert shop.trainer.fit(range(4)).full_steps == 4
    assert not shop.trainer.done


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_fit_restores_base_weights_when_a_batch_raises(error):
    shop = Workshop(make_config())
    seen = {}

    class Failing(TrainableModel):
        module = shop.bench.model

        def forward(self, batch):
            seen["moved"] = weights(self.module)
            if batch == 8:
                raise error
            return shop.loss(self.module, batch)

        def backward(self, loss):
            loss.backward()

    def batches():
        for k in range(20):
            seen["base"] = weights(shop.bench.model)
            yield k

    trainer = HybridTrainer(Failing(), OptimizerWrapper(shop.bench.optimizer), make_config())
    with pytest.raises(error):
        trainer.fit(batches())
    assert not same_bits(seen["moved"], seen["base"])
    assert same_bits(weights(shop.bench.model), seen["base"])


def test_result_holds_the_loss_of_the_batch_without_its_history():
    shop = Workshop(make_config())
    result = shop.trainer.step(0)
    assert not result.loss.requires_grad
    assert result.loss.item() == pytest.approx(result.record.loss)
    assert result.record.verdict is None


def test_loss_check_runs_on_the_coming_batch():
    config = make_config(loss_tolerance=0.0, loss_check_every=1)
    shop = Workshop(config)
    shop.steps(3)
    assert shop.seen == [0, 1, 2, 2, 2]
    assert shop.trainer.ledger.forward_passes == 2


def test_several_optimizers_update_and_forget_their_gradients():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in model]
    before = weights(model)
    trainer = HybridTrainer(
        TorchModel(model, lambda net, x: net(x).square().mean()),
        OptimizerWrapper(optimizers),
        make_config(),
    )
    verdicts = [trainer.step(torch.ones(2, 3)).record.verdict for _ in range(5)]
    assert all(p.grad is None for p in model.parameters())
    assert not any(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert Verdict.REJECTED not in verdicts


@pytest.mark.parametrize(
    ("build", "argument"),
    [
        (lambda: TorchModel("net", print), "module"),
        (lambda: TorchModel(nn.Linear(1, 1), "loss"), "loss_fn"),
        (lambda: HybridTrainer(nn.Linear(1, 1), None, make_config()), "model"),
    ],
    ids=["module", "loss_fn", "model"],
)
def test_wrong_arguments_are_refused_by_name(build, argument):
    with pytest.raises(ConfigError, match=f"^{argument}: expected"):
        build()
