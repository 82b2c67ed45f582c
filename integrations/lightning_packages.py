"""The two packages that a Trainer may come from: ``lightning`` and ``pytorch_lightning``."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from hybrid_predict.errors import MissingExtraError, UnsupportedSetupError

__all__ = ["PACKAGES", "TrainerCallback", "follow_imports", "package_of"]

PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def package_of(trainer: Any) -> Any:
    """The package that a Trainer's class comes from, as a module.

    Raises:
        UnsupportedSetupError: If it comes from neither.
    """
    homes = [cls.__module__ for cls in type(trainer).__mro__]
    for name in PACKAGES:
        if any(home.startswith(f"{name}.") for home in homes):
            return sys.modules[name]
    expected = f"a Trainer of {' or '.join(PACKAGES)}"
    raise UnsupportedSetupError("Trainer", expected, type(trainer).__name__)


class _Anchor:
    """Stands for ``object``, which python lets no class exchange for other bases."""


def follow_imports() -> bool:
    """Give callbacks the bases of all packages that have been imported; True if one is new."""
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
        """A ``Callback`` of every Lightning package that has been imported, were it only just now.

        Trainers ask with ``isinstance`` for the ``Callback`` of their own package. No package is
        imported for that: where both are installed, a callback may be made before either is used.
        """

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            """Take the bases of what has been imported by now."""
            follow_imports()
            return object.__new__(cls)

        @property
        def __class__(self) -> type:
            # What isinstance() asks if type() has no such base. It passes over type() itself.
            return type("Callback", (type(self),), {}) if follow_imports() else type(self)


# Where one package is installed it is imported, so that a command line knows its callbacks.
if not any(name in sys.modules for name in PACKAGES):
    installed = [name for name in PACKAGES if find_spec(name.split(".")[0])]
    if not installed:
        raise MissingExtraError("HybridPredict", "lightning")
    if len(installed) == 1:
        import_module(installed[0])
follow_imports()
