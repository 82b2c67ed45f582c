"""The model's parameters by name: classified, visited, transformed, moved."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hybrid_predict.errors import ConfigError, ContractError, UnsupportedSetupError
from hybrid_predict.model.deltas import Movement, WeightDelta
from hybrid_predict.model.graph import GraphFindings, MatrixIndex
from hybrid_predict.model.kinds import classify, matrix_index, resolve
from hybrid_predict.tensors import shards


class ParameterMapper:
    """Names and kinds of the parameters that are trained, and what maps onto them.

    Each parameter is listed once, tied ones included. Of a sharded parameter everything here is
    this rank's shard.

    Args:
        model: The model that the parameters belong to; its modules give names and kinds.
        parameters: The parameters that the optimizers update; None for all of the model.
        overrides: Glob pattern over names to kind; the first match wins over the classification.
        owners: Number of the optimizer by ``id`` of the parameter, where there are several.

    Raises:
        ConfigError: If the model is none, no parameter can be trained, or an override matches
            nothing.
        UnsupportedSetupError: If parameters are sharded in a way that is not supported, or a lazy
            module has not seen its first input yet.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Iterable[Tensor] | None = None,
        overrides: Mapping[str, str] | None = None,
        owners: Mapping[int, int] | None = None,
    ) -> None:
        _check_initialised(model)
        shards.check_supported(model)
        self._model, self._overrides = model, dict(overrides or {})
        # What FSDP2 keeps in full would hide the parameters that the optimizers hold.
        self.written = shards.Resharder(model)
        self.written()
        self._kinds: dict[int, str] = {}
        self.parameters: list[Tensor] = []
        given = model.parameters() if parameters is None else parameters
        self.follow(given, owners)
        self._check()
        _check_overrides(self.names, self._overrides)

    def follow(self, parameters: Iterable[Tensor], owners: Mapping[int, int] | None = None) -> None:
        """List the parameters anew, as they are now; those known before keep their kinds."""
        known = {id(p): name for name, p in self._model.named_parameters()}
        unique = list({id(p): p for p in parameters}.values())
        self.names = tuple(known.get(id(p), f"unnamed.{k}") for k, p in enumerate(unique))
        kinds, before = classify(self._model, owners), self._kinds
        self._kinds = {}
        for p in unique:
            found = kinds.get(id(p), "hidden" if p.dim() > 1 else "vector")
            self._kinds[id(p)] = before.get(id(p)) or found
        # Not earlier, and no kind is kept for longer: what is freed leaves its id to others.
        self.parameters = unique
        self._override()
        self._index = {name: k for k, name in enumerate(self.names)}
        self.by_id = {id(p): name for name, p in zip(self.names, unique, strict=True)}

    def matrix_index(self, owners: Mapping[int, int]) -> MatrixIndex:
        """What has to be known of the model to find its matrices in a graph."""
        return matrix_index(self._model, owners)

    def gathered(self) -> dict[int, int]:
        """What stands for a parameter in a graph, by ``id``: the whole for its shard."""
        return shards.unsharded_ids(self._model)

    def resolve(
        self,
        keys: Collection[int],
        seen: GraphFindings,
        index: MatrixIndex,
        with_gradient: Collection[int],
    ) -> tuple[dict[str, str], list[str]]:
        """Kinds of some parameters by what graphs have shown; nothing changes yet.

        Args:
            keys: The parameters, by ``id``.
            seen: What graphs have shown.
            index: What :meth:`matrix_index` gave before the graphs were made.
            with_gradient: Parameters by ``id`` that have a gradient.

        Returns:
            Kinds by name, and the names of those that no graph has shown the place of.
        """
        known = {key: kind for key, kind in self._kinds.items() if key in keys}
        kinds, unseen = resolve(self._model, known, seen, index, with_gradient)
        return {self.by_id[key]: kind for key, kind in kinds.items()}, [
            self.by_id[key] for key in unseen
        ]

    @property
    def found(self) -> dict[str, str]:
        """The kinds by name as they were found, without overrides."""
        return {
            name: self._kinds[id(p)] for name, p in zip(self.names, self.parameters, strict=True)
        }

    def assign(self, kinds: Mapping[str, str]) -> None:
        """Give parameters other kinds, by name; overrides still win."""
        for name in self._index.keys() & kinds.keys():
            self._kinds[id(self.parameters[self._index[name]])] = kinds[name]
        self._override()

    def _override(self) -> None:
        columns = zip(self.names, self.parameters, strict=True)
        self.kinds = tuple(_override(n, self._kinds[id(p)], self._overrides) for n, p in columns)

    def visit(self, fn: Callable[[str, Tensor], object]) -> None:
        """Call ``fn(name, tensor)`` for every parameter; the tensors are to be read only.

        Raises:
            ContractError: If ``fn`` has written to one.
        """
        for name, p in zip(self.names, self.parameters, strict=True):
            value = shards.local(p)
            before = value._version
            with torch.no_grad():
                fn(name, value)
            if value._version != before:
                raise ContractError("fn", f"a function that only reads {name}", "a write to it")

    def map(self, fn: Callable[[str, Tensor], Tensor]) -> None:
        """Replace every parameter's values by ``fn(name, tensor)``, all of them or none.

        Args:
            fn: Gives the new values, shaped like the tensor, which it must not write to.

        Raises:
            ConfigError: If a result is no tensor of the parameter's shape; no weight has moved.
        """
        values = [shards.local(p) for p in self.parameters]
        with torch.no_grad():
            pairs = zip(self.names, values, strict=True)
            found = [fn(name, value.clone()) for name, value in pairs]
            for name, value, new in zip(self.names, values, found, strict=True):
                if not isinstance(new, Tensor):
                    raise ConfigError("fn", f"a tensor for {name}", type(new).__name__)
                if new.shape != value.shape:
                    expected = f"shape {tuple(value.shape)} for {name}"
                    raise ConfigError("fn", expected, tuple(new.shape))
            for value, new in zip(values, found, strict=True):
                value.copy_(new)
        self.written()

    def apply(self, delta: WeightDelta, carries: dict[str, Tensor] | None = None) -> Movement:
        """Move the parameters in place.

        Args:
            delta: By what, each name at most once.
            carries: See :class:`~hybrid_predict.model.deltas.Movement`.

        Returns:
            What undoes it.

        Raises:
            ConfigError: If the delta names an unknown parameter or has a wrong shape; no weight has
                moved then.
        """
        movement = self.movement(delta, carries)
        try:
            movement.apply()
        except BaseException:
            movement.undo()
            raise
        return movement

    def movement(self, delta: WeightDelta, carries: dict[str, Tensor] | None = None) -> Movement:
        """What :meth:`apply` makes, with no weight moved yet."""
        return Movement(delta, self._targets(delta), self.written, carries)

    def _targets(self, delta: WeightDelta) -> list[Tensor]:
        found = []
        for name, direction in zip(delta.names, delta.directions, strict=True):
            if name not in self._index:
                raise ConfigError("delta", "names of trained parameters", name)
            value = shards.local(self.parameters[self._index[name]])
            if direction.shape != value.shape:
                expected = f"shape {tuple(value.shape)} for {name}"
                raise ConfigError("delta", expected, tuple(direction.shape))
            found.append(value)
        return found

    def _check(self) -> None:
        known = {id(p) for p in self._model.parameters()}
        if not any(p.requires_grad for p in self.parameters):
            raise ConfigError(
                "optimizer",
                "at least one parameter that requires a gradient",
                0,
                "Give the optimizer the model's trainable parameters.",
            )
        if not any(id(p) in known for p in self.parameters):
            raise ConfigError(
                "optimizer",
                "parameters of this model",
                f"{len(self.parameters)} parameters of another",
                "Make the optimizer from model.parameters().",
            )


def overlapping(tensors: Sequence[Tensor]) -> set[int]:
    """Positions of the tensors whose memory another one uses too."""
    spans = []
    for k, x in enumerate(tensors):
        if x.numel():
            reach = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
            spans.append((str(x.device), x.data_ptr(), x.data_ptr() + reach * x.element_size(), k))
    spans.sort()
    found: set[int] = set()
    furthest = ("", 0, 0, 0)
    for span in spans:
        if span[0] == furthest[0] and span[1] < furthest[2]:
            found |= {span[3], furthest[3]}
        if span[0] != furthest[0] or span[2] > furthest[2]:
            furthest = span
    return found


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


def _override(name: str, kind: str, overrides: Mapping[str, str]) -> str:
    for pattern, wanted in overrides.items():
        if fnmatchcase(name, pattern):
            return wanted
    return kind


def _check_overrides(names: Sequence[str], overrides: Mapping[str, str]) -> None:
    for pattern in overrides:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ConfigError(
                "kinds",
                "patterns that match at least one trained parameter",
                pattern,
                f"Names look like {names[0]!r}.",
            )
