"""Published packages that train with the plug-in, by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, ClassVar, final

from hybrid_predict import HybridEngine

if TYPE_CHECKING:
    from hybrid_predict import HybridPredict

CLIENTS = {
    "scvi": "scvi_tools",
    "chemprop": "chemprop",
    "nhits": "nhits",
    "tide": "tide",
    "fusion": "pytorch_forecasting",
    "deeptab": "deeptab",
    "deepxde": "deepxde",
    "neuraloperator": "neuraloperator",
    "geometric": "torch_geometric",
    "nequip": "nequip",
    "speechbrain": "speechbrain",
    "asteroid": "asteroid",
    "pykeen": "pykeen",
    "sentence_transformers": "sentence_transformers",
    "recbole": "recbole",
    "fastai": "fastai",
    "monai": "monai",
    "smp": "smp",
    "lightly": "lightly",
    "deepinv": "deepinv",
}

QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "logger": False,
}


class Client(ABC):
    """A model of a package, trained by the package's own code on small data.

    ``trains`` says what is trained, and names settings that are not the package's defaults. The
    full run lasts for ``length`` epochs or steps, whichever ``unit`` says. ``lower`` says whether a
    lower metric is better. ``requires`` are the client's requirements of pip beyond torch,
    Lightning and this project.
    """

    package: ClassVar[str]
    trains: ClassVar[str]
    metric: ClassVar[str]
    lower: ClassVar[bool] = True
    length: ClassVar[int]
    unit: ClassVar[str] = "epochs"
    requires: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def data(self, seed: int) -> Any:
        """Return data for training and validation."""

    @abstractmethod
    def train(self, data: Any, length: int, callbacks: Sequence[Any]) -> Any:
        """Train for ``length`` units as the package's documentation does, seeded before."""

    @abstractmethod
    def quality(self, trained: Any, data: Any) -> float:
        """Return the metric of a trained model on data held out from training."""

    @final
    def to_dict(self) -> dict[str, Any]:
        """Return the description of the client as plain data."""
        names = ("package", "trains", "metric", "lower", "length", "unit")
        return {**{n: getattr(self, n) for n in names}, "version": version(self.package)}


def engine_for(callback: HybridPredict, model: Any, optimizer: Any, steps: int) -> HybridEngine:
    """Return an engine for a package's own loop; the callback has its settings and its ledger."""
    engine = HybridEngine(model, optimizer, callback.config.with_length(steps))
    callback.engine = engine
    return engine


def fitted(
    module: Any, data: Sequence[Any], epochs: int, callbacks: Sequence[Any], **options: Any
) -> Any:
    """Return a Lightning Trainer that has trained a module; ``data`` are what ``fit`` is given."""
    import lightning.pytorch as pl

    trainer = pl.Trainer(
        max_epochs=epochs, callbacks=list(callbacks), enable_checkpointing=False, **QUIET, **options
    )
    trainer.fit(module, *data)
    return trainer


def client(name: str) -> Client:
    """Return a client by name."""
    chosen: Client = import_module(f"benchmarks.clients.{CLIENTS[name]}").CLIENT
    return chosen
