"""Which engine a parameter belongs to: two would correct and predict it twice."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from hybrid_predict.errors import UnsupportedSetupError

_OWNED = WeakTensorKeyDictionary()


def own(engine: object, parameters: Iterable[Tensor]) -> None:
    """Note that parameters belong to an engine.

    Raises:
        UnsupportedSetupError: If one belongs to another engine that is still there.
    """
    for p in parameters:
        owner = _OWNED.get(p)
        if owner is not None and owner() not in (None, engine):
            raise UnsupportedSetupError(
                "model",
                "parameters that no other engine has",
                "a model that another HybridEngine trains",
                "Call detach() on the other engine first.",
            )
        _OWNED[p] = weakref.ref(engine)


def give_back(engine: object, parameters: Iterable[Tensor]) -> None:
    """Note that parameters do not belong to an engine any more."""
    for p in parameters:
        if (owner := _OWNED.get(p)) is not None and owner() is engine:
            del _OWNED[p]
