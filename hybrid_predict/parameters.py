"""The model's parameters as forecasts see them: named, classified, snapshotted, moved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hybrid_predict import distributed
from hybrid_predict.backends import TorchBackend, wide
from hybrid_predict.errors import CheckpointError, ConfigError, UnsupportedSetupError
from hybrid_predict.kinds import classify
from hybrid_predict.rounding import RoundingCarry


@dataclass(frozen=True)
class WeightDelta:
    r"""A predicted displacement, kept as directions and factors so that scaling it is free.

    .. math:: \hat\Delta_k = f_k \, d_k

    Args:
        names: Parameter names, K of them.
        directions: Tensors d_k, shaped like the parameters, parameter units.
        factors: Dimensionless f_k, one per tensor.
    """

    names: tuple[str, ...]
    directions: tuple[Tensor, ...]
    factors: tuple[float, ...]

    def __post_init__(self) -> None:
        if not len(self.names) == len(self.directions) == len(self.factors):
            raise ConfigError(
                "WeightDelta",
                "as many directions and factors as names",
                (len(self.names), len(self.directions), len(self.factors)),
            )

    def scaled(self, factor: float) -> WeightDelta:
        """The same displacement, ``factor`` times as long."""
        return WeightDelta(self.names, self.directions, tuple(factor * f for f in self.factors))

    def tensors(self) -> dict[str, Tensor]:
        """The displacement of every parameter, as new tensors by name."""
        triples = zip(self.names, self.directions, self.factors, strict=True)
        return {name: factor * wide(direction) for name, direction, factor in triples}


class ParameterMapper:
    """Maps forecasts onto a model: names, kinds, and the base weights behind a forecast.

    Parameters come from the optimizers' groups, each once, tied weights included; frozen ones are
    left out, and so are those that :meth:`leave_out` names because they never had a gradient.
    Of a sharded parameter everything here is this rank's part.

    Args:
        model: The model that the parameters belong to; its module types give the kinds.
        parameters: The parameters that the optimizers update.
        overrides: Glob pattern over names to kind; the first match wins over the classification.
        owners: Number of the optimizer by ``id`` of the parameter, where there are several.

    Raises:
        ConfigError: If the model is none, no parameter can be trained, or an override matches
            nothing.
        UnsupportedSetupError: If parameters are sharded in a way that cannot be forecast, or a lazy
            module has not seen its first input yet.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Iterable[Tensor],
        overrides: Mapping[str, str] | None = None,
        owners: Mapping[int, int] | None = None,
    ) -> None:
        _check_initialised(model)
        distributed.refuse(model)
        # What FSDP2 keeps whole would hide the parameters that the optimizers hold.
        self._written = distributed.Resharder(model)
        self._written()
        unique = list({id(p): p for p in parameters if p.requires_grad}.values())
        if not unique:
            raise ConfigError(
                "optimizer",
                "at least one parameter that requires a gradient",
                0,
                "Give the optimizer the model's trainable parameters.",
            )
        known = {id(p): name for name, p in model.named_parameters()}
        if not any(id(p) in known for p in unique):
            raise ConfigError(
                "optimizer",
                "parameters of this model",
                f"{len(unique)} parameters of another",
                "Make the optimizer from model.parameters().",
            )
        self.parameters: list[Tensor] = unique
        self.names = tuple(known.get(id(p), f"unnamed.{k}") for k, p in enumerate(unique))
        kinds = classify(model, owners)
        self.kinds = tuple(
            _override(name, kinds.get(id(p), "hidden" if p.dim() > 1 else "vector"), overrides)
            for name, p in zip(self.names, unique, strict=True)
        )
        _check_overrides(self.names, overrides or {})
        self.rounding = RoundingCarry()
        self._backend = TorchBackend()
        self._base: list[Tensor] = []
        self._delta: WeightDelta | None = None
        self._suspended: WeightDelta | None = None
        self._mapped = {id(p) for p in unique}
        self._index = {name: k for k, name in enumerate(self.names)}

    def __contains__(self, parameter: Tensor) -> bool:
        return id(parameter) in self._mapped

    @property
    def displaced(self) -> bool:
        """Whether the parameters stand at a forecast point instead of the base weights."""
        return self._delta is not None

    def select(self, kinds: Iterable[str]) -> list[int]:
        """Positions of the parameters of the given kinds; complex and empty ones are left out."""
        wanted = set(kinds)
        columns = enumerate(zip(self.parameters, self.kinds, strict=True))
        return [
            k for k, (p, kind) in columns if kind in wanted and p.numel() and not p.is_complex()
        ]

    def leave_out(self, positions: Iterable[int]) -> None:
        """Forget the parameters at these positions, for those that never get a gradient."""
        gone = set(positions)
        kept = [k for k in range(len(self.parameters)) if k not in gone]
        self.parameters = [self.parameters[k] for k in kept]
        self.names = tuple(self.names[k] for k in kept)
        self.kinds = tuple(self.kinds[k] for k in kept)
        self._index = {name: k for k, name in enumerate(self.names)}
        self._mapped = {id(p) for p in self.parameters}
        self._base = []

    def values(self, positions: Sequence[int] | None = None) -> list[Tensor]:
        """The parameters without their autograd history, aliasing the model's storage."""
        chosen = self.parameters if positions is None else [self.parameters[k] for k in positions]
        return [distributed.local(p) for p in chosen]

    def displacement(self, positions: Sequence[int]) -> list[Tensor]:
        """Current weights minus snapshotted base weights; overwrites the snapshot."""
        before = [self._base[k] for k in positions]
        return self._backend.difference(before, self.values(positions))

    def points(self, positions: Sequence[int], delta: WeightDelta | None) -> list[Tensor]:
        """Where a full step took these parameters' gradients, as new tensors.

        Args:
            positions: Of the parameters asked for.
            delta: The forecast that was applied to all of them, None without one.
        """
        found = [self._base[k].clone() for k in positions]
        if delta is not None:
            self.rounding.add(delta.names, found, delta.directions, delta.factors)
        return found

    def take_back(
        self,
        positions: Sequence[int],
        points: Sequence[Tensor],
        shrink: Sequence[float],
        kept: Sequence[float],
    ) -> None:
        """Put parameters that hold their updates, negated, at the points that these started from.

        Args:
            positions: Of the parameters.
            points: Where they stood before.
            shrink: What decoupled weight decay takes off, as a fraction.
            kept: Share of the update that stands, in [0, 1].
        """
        columns = zip(self.values(positions), points, shrink, kept, strict=True)
        for value, point, fraction, share in columns:
            if share:
                value.mul_(-share).add_(point, alpha=1.0 - fraction * (1.0 - share))
            else:  # whatever the update was, even if it is not finite
                torch.mul(point, 1.0 - fraction, out=value)
        self._written()

    def snapshot(self) -> None:
        """Remember the current weights as the base weights."""
        if not self._base:
            self._base = [torch.empty_like(p) for p in self.values()]
        self._base = self._backend.copy(self._base, self.values())

    def apply(self, delta: WeightDelta) -> None:
        """Move the parameters from the base weights to the forecast point, in place.

        Raises:
            ConfigError: If the forecast names an unknown parameter or has a wrong shape.
        """
        positions = self._positions(delta)
        values = self.values(positions)
        self._delta = delta  # first, so that a move that breaks off half-way can be rolled back
        self.rounding.add(delta.names, values, delta.directions, delta.factors)
        self._written()

    def forget(self) -> None:
        """Give back the memory of the snapshot, when the parameters are base weights for good."""
        self._base = []

    def rounding_state(self) -> dict[str, Tensor]:
        """What is carried of rounding, whole; where parameters are sharded, all ranks call it.

        Then the first rank gets it on the host, and the others nothing.
        """
        carry = self.rounding.state_dict()
        held = [self.parameters[self._index[name]] for name in carry]
        complete = distributed.collected({"carry": list(carry.values())}, held)
        return dict(zip(carry, complete["carry"], strict=True)) if complete else {}

    def load_rounding(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a saved carry of rounding.

        Raises:
            CheckpointError: If it does not belong to these parameters.
        """
        held = {name: p for name, p in zip(self.names, self.parameters, strict=True)
                if name in state}  # fmt: skip
        odd = [n for n, carry in state.items() if n not in held or not torch.is_tensor(carry)
               or held[n].shape != carry.shape or not carry.isfinite().all()]  # fmt: skip
        if odd:
            raise CheckpointError(
                f"state: expected finite rounding of this model's parameters, got another of "
                f"{odd[:3]}. Resume from another checkpoint."
            )
        own = distributed.spread({"carry": [state[n] for n in held]}, list(held.values()))
        self.rounding.load_state_dict(dict(zip(held, own["carry"], strict=True)))

    def rollback(self) -> None:
        """Put every parameter back to the snapshotted base weights, bit for bit."""
        if self._delta is not None:
            self._backend.copy(self.values(), self._base)
            self._written()
            self.rounding.drop()
            self._delta = None

    def restore(self, good: Tensor | bool, parameters: Iterable[Tensor]) -> None:
        """Put these parameters back to their base weights where ``good`` is false."""
        wanted = {id(p) for p in parameters}
        for name, p, base in zip(self.names, self.parameters, self._base, strict=True):
            if id(p) in wanted:
                restore_unless(good, distributed.local(p), base)
                self.rounding.restore(good, name)
        if wanted:
            self._written()

    def settle(self) -> None:
        """Accept where the parameters are: after a full step they are the base weights."""
        self._delta = self._suspended = None

    def suspend(self) -> None:
        """Show the base weights until :meth:`resume`; nothing happens without a forecast."""
        if self._delta is not None:
            self._suspended = self._delta
            self.rollback()

    def resume(self) -> None:
        """Show the forecast point again after :meth:`suspend`."""
        delta, self._suspended = self._suspended, None
        if delta is not None:
            self.snapshot()
            self.apply(delta)

    @contextmanager
    def base_weights(self) -> Iterator[None]:
        """Show the base weights inside the block, and the forecast point again after it."""
        outermost = self.displaced
        self.suspend()
        try:
            yield
        finally:
            if outermost:
                self.resume()

    def base_by_name(self, state: Mapping[str, object]) -> dict[str, Tensor]:
        """Copies of the base weights for the entries of a state dict that alias displaced ones."""
        if self._delta is None:
            return {}
        live = [p.data_ptr() for p in self.values()]
        bases = dict(zip(live, self._base, strict=True))
        entries = [
            (name, value, distributed.local(value))
            for name, value in state.items()
            if isinstance(value, Tensor)
        ]
        return {
            name: distributed.like(bases[own.data_ptr()].clone(), value)
            for name, value, own in entries
            if own.data_ptr() in bases and own.shape == bases[own.data_ptr()].shape
        }

    def displacement_by_id(self, delta: WeightDelta) -> dict[int, Tensor]:
        """A forecast's displacement, as new tensors by ``id`` of the parameter."""
        moved = delta.tensors()
        columns = zip(self.names, self.parameters, strict=True)
        return {id(p): moved[name] for name, p in columns if name in moved}

    def _positions(self, delta: WeightDelta) -> list[int]:
        positions = []
        for name, direction in zip(delta.names, delta.directions, strict=True):
            k = self._index.get(name)
            if k is None:
                raise ConfigError("delta", "names of mapped parameters", name)
            shape = tuple(distributed.local(self.parameters[k]).shape)
            if direction.shape != shape:
                raise ConfigError("delta", f"shape {shape} for {name}", tuple(direction.shape))
            positions.append(k)
        return positions


class BaseWeightsHook:
    """A state-dict hook through which a save inside a full step gets base weights.

    Copies and pickles of a model carry a hook that does nothing: they have no forecast.

    Args:
        mapper: The parameters of the model that it is registered on.
    """

    def __init__(self, mapper: ParameterMapper | None = None) -> None:
        self._mapper = mapper

    def __call__(
        self, module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any
    ) -> None:
        """Replace the entries that alias displaced parameters."""
        if self._mapper is not None:
            state.update(self._mapper.base_by_name(state))

    def __reduce__(self) -> tuple[Any, ...]:
        return (BaseWeightsHook, ())


def named_buffers(model: nn.Module) -> list[tuple[nn.Module, str, Tensor]]:
    """Every buffer with the module and the name that hold it, since modules may replace them."""
    return [
        (module, name, buffer)
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]


def restore_unless(good: Tensor | bool, target: Tensor, kept: Tensor) -> None:
    """Target := kept where ``good`` is false; a tensor ``good`` is never read by the host."""
    if isinstance(good, Tensor):
        target.copy_(torch.where(good, target, kept))
    elif not good:
        target.copy_(kept)


def _check_initialised(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise ConfigError("model", "a torch.nn.Module", type(model).__name__)
    lazy = [name for name, p in model.named_parameters() if is_lazy(p)]
    if lazy:
        raise UnsupportedSetupError(
            "model",
            "initialised parameters",
            f"the uninitialised {lazy[0]!r}",
            "Run one batch through the model before training starts.",
        )


def _override(name: str, kind: str, overrides: Mapping[str, str] | None) -> str:
    for pattern, wanted in (overrides or {}).items():
        if fnmatchcase(name, pattern):
            return wanted
    return kind


def _check_overrides(names: Sequence[str], overrides: Mapping[str, str]) -> None:
    for pattern in overrides:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ConfigError(
                "kinds",
                "patterns that match at least one trainable parameter",
                pattern,
                f"Names look like {names[0]!r}.",
            )
