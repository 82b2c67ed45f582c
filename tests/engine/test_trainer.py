"""The loop that the package owns: the same steps as by hand, with the loss known in time."""

import pytest
from loops import NAN, Bench, make_config, same_bits, weights
from torch import nn

from hybrid_predict import HybridTrainer, OptimizerWrapper, TorchModel, Verdict
from hybrid_predict.errors import ConfigError


class Workshop:
    """A trainer on the same model, batches and optimizer as a :class:`Bench`."""

    def __init__(self, config, spoiled=None):
        self.bench = Bench(None, "conv")
        self.spoiled = spoiled or {}
        self.trainer = HybridTrainer(
            TorchModel(self.bench.model, self.loss), OptimizerWrapper(self.bench.optimizer), config
        )

    def loss(self, model, k):
        factor, offset = self.spoiled.get(k, (1.0, 0.0))
        return self.bench.case.loss(model, self.bench.case.batch(k)) * factor + offset

    def steps(self, count):
        return [self.trainer.step(k) for k in range(count)]


@pytest.mark.parametrize("changes", [{}, {"enabled": False}], ids=str)
def test_trainer_takes_the_same_steps_as_the_loop_by_hand(changes):
    config = make_config(**changes)
    hand = Bench(config, "conv")
    records = hand.train(12)
    expected = hand.trace()
    shop = Workshop(config)
    results = shop.steps(12)
    assert same_bits(shop.bench.trace(), expected)
    assert [r.record.ticks for r in results] == [r.ticks for r in records]


VERIFYING = 3
"""The number of the first full step that verifies predicted steps."""


def test_a_bad_loss_is_known_before_the_update_and_undoes_predicted_steps():
    """A loss that is offset has good gradients: only the loss itself can tell."""
    config = make_config(total_steps=60)
    shop = Workshop(config, spoiled={VERIFYING: (1.0, NAN)})
    shop.steps(VERIFYING)
    before = weights(shop.bench.model)
    record = shop.trainer.step(VERIFYING).record
    assert (record.verdict, record.ticks) == (Verdict.UNDONE, 1)
    assert same_bits(weights(shop.bench.model), before)
    assert shop.trainer.ledger.undone_steps == record.predicted == 1


def test_a_batch_that_raises_undoes_the_predicted_steps_before_it():
    shop = Workshop(make_config())
    shop.steps(VERIFYING)
    before = weights(shop.bench.model)
    moved = []

    def fail(*_):
        moved.append(weights(shop.bench.model))
        raise KeyboardInterrupt

    shop.bench.model.register_forward_pre_hook(fail)
    with pytest.raises(KeyboardInterrupt):
        shop.trainer.step(VERIFYING)
    assert not same_bits(moved[0], before)
    assert same_bits(weights(shop.bench.model), before)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("net", len), "module: expected a torch.nn.Module"), ((nn.Linear(1, 1), 3), "loss_fn: ")],
)
def test_arguments_of_a_model_are_checked(arguments, words):
    with pytest.raises(ConfigError, match=words):
        TorchModel(*arguments)
