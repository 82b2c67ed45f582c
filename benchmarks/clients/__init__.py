"""Published packages that train with the plug-in, each by a module of its name; see `About`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hybrid_predict import HybridEngine

if TYPE_CHECKING:
    from hybrid_predict import HybridPredict

CLIENTS = {
    "scvi": "scvi-tools==1.4.2",
    "chemprop": "chemprop==2.3.1",
    "nhits": "neuralforecast==3.3.0",
    "tide": "darts==0.48.1",
    "fusion": "pytorch-forecasting==1.8.0",
    "deeptab": "deeptab==2.1.0",
    "deepxde": "DeepXDE==1.15.0",
    "neuraloperator": "neuraloperator==2.0.0",
    "geometric": "torch_geometric==2.8.1",
    "nequip": "nequip==0.19.1",
    "speechbrain": "speechbrain==1.1.2 torchaudio==2.11.0",
    "asteroid": "asteroid==0.5.1 torchaudio==2.11.0 requests<3",
    "pykeen": "pykeen==1.11.1",
    "sentence_transformers": "sentence-transformers==6.2.0 datasets==5.2.0 accelerate==1.15.0",
    "recbole": "recbole==1.2.1 numpy<2 pandas<3",
    "fastai": "fastai==2.8.12 scikit-learn==1.9.1",
    "monai": "monai==1.6.1",
    "smp": "segmentation-models-pytorch==0.6.0",
    "lightly": "lightly==1.6.0 scikit-learn==1.9.1",
    "deepinv": "deepinv==0.5.0 scikit-learn==1.9.1",
}
"""What pip needs for each client beyond torch, Lightning and this project, its package first."""

QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "logger": False,
}


Callbacks = Sequence[Any]
"""Callbacks of Lightning: one HybridPredict, or none."""


@dataclass(frozen=True, kw_only=True)
class About:
    """What a client is: a module with ``ABOUT`` and three functions.

    ``data(seed)`` returns data for training and validation. ``train(data, length, callbacks)``
    trains a model of the package with them by the package's own code, as its documentation does;
    it is seeded before. ``quality(trained, data)`` returns the metric of what ``train`` returned,
    on data held out from training.

    ``trains`` says what is trained, and names settings that are not the package's defaults. The
    full run lasts for ``length`` epochs or steps, whichever ``unit`` says. ``lower`` says whether a
    lower metric is better.
    """

    trains: str
    metric: str
    length: int
    lower: bool = True
    unit: str = "epochs"


def validated(metric: str, part: int | None = None) -> Callable[[Any, Any], float]:
    """Return a quality: what a Lightning Trainer logs as it validates a part of the data."""

    def quality(trained: Any, data: Any) -> float:
        held = data if part is None else data[part]
        return float(trained.validate(trained.model, held, verbose=False)[0][metric])

    return quality


def engine_for(callback: HybridPredict, model: Any, optimizer: Any, steps: int) -> HybridEngine:
    """Return an engine for a package's own loop; the callback has its settings and its ledger."""
    engine = HybridEngine(model, optimizer, callback.config.with_length(steps))
    callback.engine = engine
    return engine


def fitted(
    module: Any, data: Sequence[Any], epochs: int, callbacks: Callbacks, **options: Any
) -> Any:
    """Return a Lightning Trainer that has trained a module; ``data`` are what ``fit`` is given."""
    import lightning.pytorch as pl

    trainer = pl.Trainer(
        max_epochs=epochs, callbacks=list(callbacks), enable_checkpointing=False, **QUIET, **options
    )
    trainer.fit(module, *data)
    return trainer


def learner(net: Any, optimizer: Any, loss: Any, judge: Any = None) -> Any:
    """Return a LightningModule that trains a net by ``loss(net, batch)``.

    Its ``configure_optimizers`` returns ``optimizer``. For a batch held out, ``judge(net, batch)``
    returns the metric, which is logged as ``judged``, and the size of the batch.
    """
    import lightning.pytorch as pl

    class Learner(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def configure_optimizers(self) -> Any:
            return optimizer

        def training_step(self, batch: Any, index: int) -> Any:
            return loss(self.net, batch)

        def validation_step(self, batch: Any, index: int) -> None:
            value, size = judge(self.net, batch)
            self.log("judged", value, batch_size=size)

    return Learner()


def client(name: str) -> Any:
    """Return the module of a client; see `About`."""
    return import_module(f"benchmarks.clients.{name}")


def package(name: str) -> str:
    """Return the name of a client's package."""
    return CLIENTS[name].partition("==")[0]
