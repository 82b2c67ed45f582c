"""The model's parameters as forecasts see them: named, classified, snapshotted, moved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from hybrid_predict.backends import TorchBackend
from hybrid_predict.errors import ConfigError

_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
_EMBEDDING_WORDS = ("embed", "pos", "token")


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
        return {name: factor * direction for name, direction, factor in triples}


class ParameterMapper:
    """Maps forecasts onto a model: names, kinds, and the base weights behind a forecast.

    Parameters come from the optimizers' groups, each once, tied weights included; frozen ones are
    left out, and so are those that :meth:`leave_out` names because they never had a gradient.

    Args:
        model: The model that the parameters belong to; its module types give the kinds.
        parameters: The parameters that the optimizers update.
        overrides: Glob pattern over names to kind; the first match wins over the classification.

    Raises:
        ConfigError: If there is no model, or no parameter to train, or an override matches
            nothing.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Iterable[Tensor],
        overrides: Mapping[str, str] | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise ConfigError("model", "a torch.nn.Module", type(model).__name__)
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
        kinds = classify(model)
        self.kinds = tuple(
            _override(name, kinds.get(id(p), "hidden" if p.dim() > 1 else "vector"), overrides)
            for name, p in zip(self.names, unique, strict=True)
        )
        _check_overrides(self.names, overrides or {})
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
        """Positions of the parameters of the given kinds."""
        wanted = set(kinds)
        return [k for k, kind in enumerate(self.kinds) if kind in wanted]

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
        return [p.detach() for p in chosen]

    def displacement(self, positions: Sequence[int]) -> list[Tensor]:
        """Current weights minus snapshotted base weights; overwrites the snapshot."""
        before = [self._base[k] for k in positions]
        return self._backend.difference(before, self.values(positions))

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
        self._delta = delta  # first, so that a move that breaks off half-way can be rolled back
        self._backend.add_scaled(self.values(positions), delta.directions, delta.factors)

    def forget(self) -> None:
        """Give back the memory of the snapshot, when the parameters are base weights for good."""
        self._base = []

    def rollback(self) -> None:
        """Put every parameter back to the snapshotted base weights, bit for bit."""
        if self._delta is not None:
            self._backend.copy(self.values(), self._base)
            self._delta = None

    def restore(self, good: Tensor | bool, parameters: Iterable[Tensor]) -> None:
        """Put these parameters back to their base weights where ``good`` is false."""
        wanted = {id(p) for p in parameters}
        for p, base in zip(self.parameters, self._base, strict=True):
            if id(p) in wanted:
                restore_unless(good, p.detach(), base)

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
        bases = {p.data_ptr(): b for p, b in zip(self.parameters, self._base, strict=True)}
        entries = {name: v for name, v in state.items() if isinstance(v, Tensor)}
        return {
            name: bases[v.data_ptr()].clone()
            for name, v in entries.items()
            if v.data_ptr() in bases and v.shape == bases[v.data_ptr()].shape
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
            if direction.shape != self.parameters[k].shape:
                shape = tuple(self.parameters[k].shape)
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


def classify(model: nn.Module) -> dict[int, str]:
    """The kind of every parameter of a model, by ``id``, from module types and shapes.

    Weights of two or more dimensions are ``hidden`` matrices, convolutions and attention
    projections included, except embedding tables, learned positions and the head. The head is a
    linear layer that maps back onto an embedding's vocabulary, or else the last matrix. Children of
    the model that are frozen as a whole, such as a teacher, are left out.
    """
    kinds: dict[int, str] = {}
    vocabularies = {
        (m.num_embeddings, m.embedding_dim) for m in model.modules() if isinstance(m, _EMBEDDINGS)
    }
    matrices: list[tuple[int, tuple[int, ...]]] = []
    apart = _frozen_apart(model)
    for module_name, module in model.named_modules():
        if module_name.split(".")[0] in apart:
            continue
        for name, p in module.named_parameters(recurse=False):
            if id(p) in kinds:
                continue
            leaf = f"{module_name}.{name}".lower().rsplit(".", 2)[-2:]
            if isinstance(module, _EMBEDDINGS):
                kinds[id(p)] = "embedding"
            elif sum(size > 1 for size in p.shape) < 2:
                kinds[id(p)] = "vector"
                if isinstance(module, nn.Linear) and p.dim() == 2:
                    matrices.append((id(p), tuple(p.shape)))
            elif not _is_layer(module) and any(
                w in part for part in leaf for w in _EMBEDDING_WORDS
            ):
                kinds[id(p)] = "embedding"
            else:
                kinds[id(p)] = "hidden"
                matrices.append((id(p), tuple(p.shape)))
    if len(matrices) > 1 and not _tied_head(model):
        # Inner matrices may happen to have a vocabulary's shape; a head comes after them.
        matching = [key for key, shape in matrices if shape in vocabularies]
        kinds[matching[-1] if matching else matrices[-1][0]] = "head"
    return kinds


def hidden_and_rest(model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """The hidden matrices, and the other parameters, of those that want a gradient."""
    kinds = classify(model)
    wanted: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
    hidden = [p for p in wanted if kinds[id(p)] == "hidden"]
    return hidden, [p for p in wanted if kinds[id(p)] != "hidden"]


def _frozen_apart(model: nn.Module) -> set[str]:
    """Names of the model's children in which nothing is trained, while something else is."""
    trained = {
        name: any(p.requires_grad for p in child.parameters())
        for name, child in model.named_children()
    }
    return {name for name, any_trained in trained.items() if not any_trained}


def _is_layer(module: nn.Module) -> bool:
    layers = (nn.Linear, nn.Bilinear, nn.modules.conv._ConvNd, nn.MultiheadAttention, nn.RNNBase)
    return isinstance(module, layers)


def _tied_head(model: nn.Module) -> bool:
    tables = {id(m.weight) for m in model.modules() if isinstance(m, _EMBEDDINGS)}
    return any(id(m.weight) in tables for m in model.modules() if isinstance(m, nn.Linear))


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
