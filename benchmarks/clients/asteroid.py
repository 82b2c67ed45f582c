"""asteroid: two voices separated from their sum, by a System of a package built on Lightning."""

from tempfile import TemporaryDirectory
from typing import Any

import pytorch_lightning as pl
import torch
from asteroid.engine import System
from asteroid.losses import PITLossWrapper, pairwise_neg_sisdr
from asteroid.models import ConvTasNet
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.clients import QUIET, Callbacks
from benchmarks.clients.voices import SPEAKERS, voices

MIXTURES = 240


def data(seed: int) -> Any:
    draw = torch.Generator().manual_seed(seed)
    of = torch.randint(SPEAKERS, (2 * (MIXTURES + 72),), generator=draw)
    parts = torch.cat([voices(k, draw, noise=0.1) for k in of.split(104)])
    targets = (parts / parts.std(-1, keepdim=True)).view(-1, 2, parts.shape[-1])[..., ::2]
    sums = targets.sum(1)
    train = TensorDataset(sums[:MIXTURES], targets[:MIXTURES])
    held_out = TensorDataset(sums[MIXTURES:], targets[MIXTURES:])
    return DataLoader(train, batch_size=4, shuffle=True), DataLoader(held_out, batch_size=8)


def train(data: Any, length: int, callbacks: Callbacks) -> Any:
    model = ConvTasNet(2, n_repeats=2, n_blocks=3, n_filters=128, bn_chan=64, hid_chan=128,
                       skip_chan=64)  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss = PITLossWrapper(pairwise_neg_sisdr, pit_from="pw_mtx")
    with TemporaryDirectory() as folder:  # a System cannot do without a logger
        own = {**QUIET, "logger": pl.loggers.CSVLogger(folder), "gradient_clip_val": 5.0}
        trainer = pl.Trainer(
            max_epochs=length, callbacks=list(callbacks), enable_checkpointing=False, **own
        )
        trainer.fit(System(model, optimizer, loss, *data))
    return trainer


def quality(trained: Any, data: Any) -> float:
    return float(trained.callback_metrics["val_loss"])
