"""The loop that the package owns, in which the loss is known in time.

``integrations/test_same_trajectory`` has its steps beside those of a plain loop.
"""

import pytest
from loops import NAN, Bench, make_config, same_bits, weights
from torch import nn

from hybrid_predict import HybridTrainer, OptimizerWrapper, TorchModel, Verdict
from hybrid_predict.errors import ConfigError

VERIFYING = 3
"""The number of the first full step that verifies predicted steps."""


def before_verifying():
    """A model and its trainer; a batch is its number, and what its loss is offset by."""
    bench = Bench(None, "conv")

    def loss(model, batch):
        number, offset = batch
        return bench.case.loss(model, bench.case.batch(number)) + offset

    model, optimizer = TorchModel(bench.model, loss), OptimizerWrapper(bench.optimizer)
    trainer = HybridTrainer(model, optimizer, make_config(total_steps=60))
    for k in range(VERIFYING):
        trainer.step((k, 0.0))
    return bench.model, trainer


def test_a_bad_loss_is_known_before_the_update_and_undoes_predicted_steps():
    """A loss that is offset has good gradients: only the loss itself can tell."""
    model, trainer = before_verifying()
    before = weights(model)
    record = trainer.step((VERIFYING, NAN)).record
    assert (record.verdict, record.ticks) == (Verdict.UNDONE, 1)
    assert same_bits(weights(model), before)
    assert trainer.ledger.undone_steps == record.predicted == 1


def test_a_batch_that_raises_undoes_the_predicted_steps_before_it():
    model, trainer = before_verifying()
    before, moved = weights(model), []

    def fail(*_):
        moved.append(weights(model))
        raise KeyboardInterrupt

    model.register_forward_pre_hook(fail)
    with pytest.raises(KeyboardInterrupt):
        trainer.step((VERIFYING, 0.0))
    assert not same_bits(moved[0], before)
    assert same_bits(weights(model), before)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("net", len), "module: expected a torch.nn.Module"), ((nn.Linear(1, 1), 3), "loss_fn: ")],
)
def test_arguments_of_a_model_are_checked(arguments, words):
    with pytest.raises(ConfigError, match=words):
        TorchModel(*arguments)
