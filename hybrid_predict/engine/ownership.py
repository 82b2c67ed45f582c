"""Which engine a parameter belongs to: two would correct and predict it twice."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import NoReturn

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from hybrid_predict.errors import UnsupportedSetupError, UsageError

_OWNED = WeakTensorKeyDictionary()


class Uncopied:
    """What belongs to one model and its optimizers, by hooks that a copy would not have."""

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse to be copied or pickled.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            f"{type(self).__name__}: expected its state_dict() to be copied or pickled, got the "
            "object itself. Make another one for a copy of the model, and load the state."
        )


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
