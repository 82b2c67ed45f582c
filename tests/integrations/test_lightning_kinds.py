"""The callback shows the graphs of a Lightning run's losses before their backward passes."""

import lightning.pytorch as pl
import torch
from kind_cases import CountDecoder, rows
from lightning_models import StopAt, fit, weights

from hybrid_predict import HybridPredict


def heads(callback):
    mapper = callback.engine.mapper
    return {n for n, kind in zip(mapper.names, mapper.kinds, strict=True) if kind == "head"}


class Counts(pl.LightningModule):
    """A network whose heads names and shapes do not tell."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = CountDecoder()
        del self.net.px_r_decoder, self.net.px_dropout_decoder  # which are not used

    def training_step(self, batch, batch_idx):
        return self.net(rows()).square().mean()

    def validation_step(self, batch, batch_idx):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_the_first_correction_knows_the_heads():
    callback = HybridPredict(speedup=1, max_overhead=100.0)
    options = {"max_steps": 9, "accumulate_grad_batches": 2}
    plain, hybrid = (
        weights(fit([*callbacks, StopAt(1)], Counts(), **options)[1])
        for callbacks in ([], [callback])
    )
    assert heads(callback) == {"net.px_r", "net.px_scale_decoder.0.weight"}
    corrected = {name for name in plain if not torch.equal(plain[name], hybrid[name])}
    assert corrected == {"net.px_decoder.0.weight", "net.px_decoder.2.weight"}
    assert callback.ledger.events == []
