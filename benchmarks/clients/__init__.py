"""Published packages that train with the plug-in, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
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
    lower metric is better. ``requires`` are the client's requirements of pip beyond torch,
    Lightning and this project, its package first.
    """

    trains: str
    metric: str
    length: int
    requires: tuple[str, ...]
    lower: bool = True
    unit: str = "epochs"

    @property
    def package(self) -> str:
        """Name of the package."""
        return self.requires[0].partition("==")[0]

    def to_dict(self) -> dict[str, Any]:
        """Return the description of the client as plain data."""
        plain = asdict(self)
        del plain["requires"]
        return {"package": self.package, **plain, "version": version(self.package)}


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


def client(name: str) -> Any:
    """Return the module of a client; see `About`."""
    return import_module(f"benchmarks.clients.{CLIENTS[name]}")
