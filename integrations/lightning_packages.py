"""Supports both packages of the Trainer: ``lightning`` and ``pytorch_lightning``."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hybrid_predict.errors import MissingExtraError, UnsupportedSetupError

__all__ = ["TrainerCallback", "package_of"]

_NAMES = ("pytorch_lightning", "lightning.pytorch")
_INSTALLED: list[Any] = []
_shared: Any = sys.modules.get("lightning_utilities.core.rank_zero")
_log = _shared.log if {*_NAMES} & sys.modules.keys() else None
for _name in _NAMES:
    with suppress(ImportError):
        _INSTALLED.append(import_module(_name))
if _log is not None:  # importing a package redirects the messages of the other to its own logger
    _shared.log = _log
if not _INSTALLED:
    raise MissingExtraError("HybridPredict", "lightning")

if TYPE_CHECKING:
    from lightning.pytorch.callbacks import Callback as TrainerCallback
else:

    class TrainerCallback(*(package.Callback for package in _INSTALLED)):
        """A ``Callback`` of every installed package, as each Trainer asks for its own."""


def package_of(trainer: Any) -> Any:
    """Return the package that a Trainer's class comes from, as a module.

    Raises:
        UnsupportedSetupError: If it comes from another package.
    """
    for package in _INSTALLED:
        if isinstance(trainer, package.Trainer):
            return package
    expected = "a Trainer of lightning.pytorch or pytorch_lightning"
    raise UnsupportedSetupError("Trainer", expected, type(trainer).__name__)
