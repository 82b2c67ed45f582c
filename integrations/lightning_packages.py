"""Supports both packages of the Trainer: ``lightning`` and ``pytorch_lightning``."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from hybrid_predict.errors import MissingExtraError, UnsupportedSetupError

__all__ = ["PACKAGES", "TrainerCallback", "follow_imports", "package_of"]

PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def package_of(trainer: Any) -> Any:
    """Return the package that a Trainer's class comes from, as a module.

    Raises:
        UnsupportedSetupError: If it comes from another package.
    """
    homes = [cls.__module__ for cls in type(trainer).__mro__]
    for name in PACKAGES:
        if any(home.startswith(f"{name}.") for home in homes):
            return sys.modules[name]
    expected = f"a Trainer of {' or '.join(PACKAGES)}"
    raise UnsupportedSetupError("Trainer", expected, type(trainer).__name__)


class _Anchor:
    """A base class in place of ``object``, since Python cannot replace ``object`` as a base."""


def follow_imports() -> bool:
    """Set ``Callback`` of all imported packages as bases; return whether there is a new one."""
    modules: list[Any] = [sys.modules.get(f"{name}.callbacks") for name in PACKAGES]
    bases = (*(module.Callback for module in modules if hasattr(module, "Callback")), _Anchor)
    if bases == TrainerCallback.__bases__:
        return False
    TrainerCallback.__bases__ = bases
    return True


if TYPE_CHECKING:
    from lightning.pytorch.callbacks import Callback as TrainerCallback
else:

    class TrainerCallback(_Anchor):
        """A ``Callback`` of every Lightning package that has been imported by now.

        Trainers check with ``isinstance`` for the ``Callback`` of their own package. If both
        packages are installed, none is imported here, and a callback can be made before the
        Trainer's package is imported.
        """

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            """Make an instance after adding the bases of all imported packages."""
            follow_imports()
            return object.__new__(cls)

        @property
        def __class__(self) -> type:
            # isinstance() reads __class__ if type() does not have the base.
            return type("Callback", (type(self),), {}) if follow_imports() else type(self)


# A single installed package is imported, so that LightningCLI knows its callbacks.
if not any(name in sys.modules for name in PACKAGES):
    installed = [name for name in PACKAGES if find_spec(name.split(".")[0])]
    if not installed:
        raise MissingExtraError("HybridPredict", "lightning")
    if len(installed) == 1:
        import_module(installed[0])
follow_imports()
