"""Published packages that train with the plug-in, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

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


@dataclass(frozen=True, kw_only=True)
class Client:
    """A model of a package, trained by the package's own code on small data.

    ``trains`` says what is trained, and names settings that are not the package's defaults. The
    full run lasts for ``length`` epochs or steps, whichever ``unit`` says. ``lower`` says whether a
    lower metric is better. ``requires`` are the client's requirements of pip beyond torch,
    Lightning and this project.

    ``data`` returns data for training and validation from a seed. ``train`` trains with them for a
    length, with callbacks, as the package's documentation does; it is seeded before. ``quality``
    returns the metric of what ``train`` returned, on data held out from training.
    """

    package: str
    trains: str
    metric: str
    length: int
    data: Callable[[int], Any]
    train: Callable[[Any, int, Sequence[Any]], Any]
    quality: Callable[[Any, Any], float]
    lower: bool = True
    unit: str = "epochs"
    requires: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the description of the client as plain data."""
        names = ("package", "trains", "metric", "lower", "length", "unit")
        return {**{n: getattr(self, n) for n in names}, "version": version(self.package)}


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
