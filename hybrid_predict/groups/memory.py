"""The memory of a group of tensors between full steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, final

from torch import Tensor

from hybrid_predict.policy.confidence import window_length
from hybrid_predict.ranks import processes, shards
from hybrid_predict.ranks.owners import fetch
from hybrid_predict.tensors import lists
from hybrid_predict.updates.base import AbstractUpdate, UpdateState

if TYPE_CHECKING:
    from hybrid_predict.forecast.forecaster import Forecaster
    from hybrid_predict.forecast.predictors import AbstractPredictor


@final
class Treatment(NamedTuple):
    """How a group of tensors is treated."""

    kind: str
    optimizer: int  # its number
    update: AbstractUpdate | None
    predictor: AbstractPredictor | None
    short: bool = False  # whether the first windows of displacements are short

    def key(self) -> list[Any]:
        """Return the values in which a saved group and the group that loads it must agree."""
        return [self.kind, self.optimizer, repr(self.update), repr(self.predictor)]


@final
class Memory:
    """The arrays of a group, which begin as before its first full step.

    ``owners`` are the ranks that have the arrays of the update, by tensor; None for a single rank.
    """

    def __init__(
        self,
        treatment: Treatment,
        names: Sequence[str],
        tensors: Sequence[Tensor],
        history: str,
        momentum: float,
        owners: list[int] | None,
    ) -> None:
        values = [shards.local(p) for p in tensors]
        half = any(x.dtype in lists.HALF for x in values)
        update = treatment.update
        self.owners = owners
        self.average = lists.zeros(values, history)  # of gradients
        self.carries = lists.zeros(values) if half else []  # rounding errors of 16-bit weights
        self.update = _update_state(update, tensors, history, owners) if update else None
        self.forecaster: Forecaster | None = None
        if treatment.predictor is not None:
            # Runs without predicted steps import nothing about forecasts.
            from hybrid_predict.forecast.forecaster import Forecaster

            about = treatment.predictor, names, tensors, history, window_length(momentum)
            self.forecaster = Forecaster(*about, short=treatment.short)

    def arrays(self) -> dict[str, list[Tensor]]:
        """Return lists of local shards by name, as in a saved state."""
        arrays = {"average": self.average, "carry": self.carries}
        return arrays if self.forecaster is None else {**arrays, **self.forecaster.arrays}

    def owned(self) -> dict[str, list[Tensor]]:
        """Return lists of whole tensors that each owner has, named as in a saved state."""
        arrays = self.update.arrays if self.update is not None else {}
        return {f"update.{name}": values for name, values in arrays.items()}

    def fetch(self, name: str, k: int, tensor: Tensor) -> Tensor:
        """Return a tensor of :meth:`owned` on every rank; all of them have to call it."""
        value = self.owned()[name][k]
        return value if self.owners is None else fetch(value, self.owners[k], tensor)

    @property
    def held_bytes(self) -> int:
        """Memory in bytes that is kept between full steps now."""
        held = [x for each in (self.average, self.carries, *self.owned().values()) for x in each]
        held += [] if self.forecaster is None else self.forecaster.held
        return sum(x.nbytes for x in held if not x.is_meta)

    def inherit(
        self, other: Memory, pairs: Sequence[tuple[int, int]], tensors: Sequence[Tensor]
    ) -> None:
        """Copy the state of tensors that another group with the same treatment has.

        ``pairs`` are positions here and there. Every rank has to call it, as owners may change.
        """
        known = {**other.arrays(), **other.owned()}
        owned = self.owned()
        for name, arrays in {**self.arrays(), **owned}.items():
            for k, source in pairs if arrays and known[name] else ():
                if arrays[k].shape == known[name][source].shape:
                    value = known[name][source]
                    if name in owned:
                        value = other.fetch(name, source, tensors[k])
                    arrays[k].copy_(value)
        if self.forecaster is not None and other.forecaster is not None:
            self.forecaster.inherit(other.forecaster, pairs)

    def save(self, tensors: Sequence[Tensor], *, whole: bool) -> dict[str, Any] | None:
        """Return counts, numbers and arrays about the parameters ``tensors``.

        With ``whole`` every rank has to call it for full tensors, and arrays of other owners; of
        sharded ones rank 0 gets them on its host, the others None. Else each gets what it has.
        """
        own = self.forecaster.state_dict() if self.forecaster is not None else {}
        window = own.get("window")
        state = {"count": own.get("count", 0), **self.arrays()}
        owned = self.owned()
        if not whole:
            return {**state, **owned, "windows": [window]}
        for name in owned:
            owned[name] = [self.fetch(name, k, tensor) for k, tensor in enumerate(tensors)]
        # The samples of local shards differ between ranks.
        sharded = shards.any_sharded(tensors)
        windows = processes.gather(window) if sharded else [window]
        if not sharded:
            return {**state, **owned, "windows": windows}
        arrays = {n: shards.on_host(values, tensors) for n, values in self.arrays().items()}
        if processes.rank() > 0:
            return None
        owned = {name: [x.cpu() for x in values] for name, values in owned.items()}
        return {"count": state["count"], **arrays, **owned, "windows": windows}

    def load(self, saved: dict[str, Any], tensors: Sequence[Tensor]) -> None:
        """Load a state of :meth:`save`, gathered or local."""
        for name, arrays in {**self.arrays(), **self.owned()}.items():
            for k, (target, source) in enumerate(zip(arrays, saved[name], strict=True)):
                part = source
                if target.shape != source.shape:
                    part = shards.local_shard(source, tensors[k])
                if target.shape != part.shape:
                    raise ValueError(f"{name} has shape {tuple(source.shape)}")
                target.copy_(part)
        if self.forecaster is not None:
            self.forecaster.load_state_dict(saved["count"], saved["windows"], tensors)


def _update_state(
    update: AbstractUpdate, tensors: Sequence[Tensor], history: str, owned_by: list[int] | None
) -> UpdateState:
    like = [shards.form(p).detach() for p in tensors]
    if owned_by is None:
        return update.init(like, history)
    # One by one, so that a rank does not hold what others own, not even for a moment.
    together: dict[str, list[Tensor]] = {}
    for x, owner in zip(like, owned_by, strict=True):
        for name, (array,) in update.init([x], history).arrays.items():
            elsewhere = owner != processes.rank()
            together.setdefault(name, []).append(array.to("meta") if elsewhere else array)
    return UpdateState(together)
