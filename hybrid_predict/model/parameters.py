"""The parameters of a model by name: their kinds, and reading, replacing and moving them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hybrid_predict.errors import ConfigError, UnsupportedSetupError
from hybrid_predict.model.kinds import classify, resolve
from hybrid_predict.model.uses import Findings
from hybrid_predict.ranks import shards
from hybrid_predict.ranks.shards import form, named_parameters


@final
class ParameterMapper:
    """Lists the trained parameters with names and kinds, and moves them.

    Each parameter is listed once, also if it is tied. For sharded parameters, all tensors are local
    shards.

    Args:
        model: The model.
        parameters: The parameters that the optimizers update; None for all parameters of the model.
        overrides: Glob pattern over names to kind; the first pattern that matches wins over the
            classification.
        optimizers: Number of the optimizer by ``id`` of the parameter, if there are several.

    Raises:
        ConfigError: If ``model`` is not a module, no parameter is trained, or an override matches
            no parameter.
        UnsupportedSetupError: If the sharding is not supported, or a lazy module is not
            initialised.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Iterable[Tensor] | None = None,
        overrides: Mapping[str, str] | None = None,
        optimizers: Mapping[int, int] | None = None,
    ) -> None:
        _check_initialised(model)
        shards.note(model)
        self.model = model
        self._overrides = dict(overrides or {})
        self._keepers = shards.keepers(model)
        self._kinds: dict[int, str] = {}
        self.follow(model.parameters() if parameters is None else parameters, optimizers)
        self._check()

    def written(self) -> None:
        """Free what FSDP gathered in a forward pass alone, which hides writes into its shards."""
        for free in self._keepers:
            free()

    def list_buffers(self) -> None:
        """List the modules whose buffers undone steps restore: a module has to have one by now."""
        self.buffered = [module for module in self.model.modules() if module._buffers]

    def follow(
        self, parameters: Iterable[Tensor], optimizers: Mapping[int, int] | None = None
    ) -> None:
        """List parameters, and modules with buffers, again; known parameters keep their kinds."""
        self.written()  # else the optimizers' shards may not be the model's parameters
        self.list_buffers()
        known = {id(p): name for name, p in named_parameters(self.model)}
        unique = {id(p): p for p in parameters}
        kinds = classify(self.model, optimizers)
        self._kinds = {
            key: self._kinds.get(key) or kinds.get(key, "hidden" if form(p).dim() > 1 else "vector")
            for key, p in unique.items()
        }
        # Set together with the kinds: the id of a freed parameter can be used by a new one.
        self.parameters = list(unique.values())
        self.by_id = {key: known.get(key, f"unnamed.{k}") for k, key in enumerate(unique)}
        self.names = tuple(self.by_id.values())
        self._by_name = dict(zip(self.names, self.parameters, strict=True))
        self._override()

    def resolve(
        self,
        seen: Findings,
        index: Mapping[int, Tensor],
        with_gradient: Collection[int],
    ) -> tuple[dict[str, str], list[str]]:
        """Do as `kinds.resolve`, by names; no kind is changed yet."""
        kinds, unseen = resolve(self._kinds, seen, index, with_gradient)
        by_name = {self.by_id[key]: kind for key, kind in kinds.items()}
        return by_name, [self.by_id[key] for key in unseen]

    @property
    def found(self) -> dict[str, str]:
        """Kinds by name as they were classified, without overrides."""
        return {name: self._kinds[key] for key, name in self.by_id.items()}

    def assign(self, kinds: Mapping[str, str]) -> None:
        """Change the kinds of parameters by name; overrides still win."""
        self._kinds.update((k, kinds[name]) for k, name in self.by_id.items() if name in kinds)
        self._override()

    def _override(self) -> None:
        self.kinds = tuple(
            next((k for o, k in self._overrides.items() if fnmatchcase(name, o)), kind)
            for name, kind in self.found.items()
        )

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the whole parameters."""
        return [tuple(form(p).shape) for p in self.parameters]

    def count_trained(self) -> int:
        """Return the number of trained weights outside embeddings."""
        columns = zip(self.parameters, self.kinds, strict=True)
        trained = [p for p, kind in columns if p.requires_grad and kind != "embedding"]
        return sum(form(p).numel() for p in trained)

    def visit(self, fn: Callable[[str, Tensor], object]) -> None:
        """Call ``fn(name, tensor)``, which only reads, for every parameter's local shard."""
        with torch.no_grad():
            for name, p in self._by_name.items():
                fn(name, shards.local(p))

    def map(self, fn: Callable[[str, Tensor], Tensor]) -> None:
        """Replace every parameter's values by ``fn(name, tensor)``; on an error none is replaced.

        Args:
            fn: Function that returns the new values, in the tensor's shape; it gets a copy.

        Raises:
            ConfigError: If a result is not a tensor of the parameter's shape; no weight is changed.
        """
        values = {name: shards.local(p) for name, p in self._by_name.items()}
        with torch.no_grad():
            results = {name: fn(name, value.clone()) for name, value in values.items()}
            for name, new in results.items():
                if not isinstance(new, Tensor):
                    raise ConfigError("fn", f"a tensor for {name}", type(new).__name__)
                if new.shape != values[name].shape:
                    expected = f"shape {tuple(values[name].shape)} for {name}"
                    raise ConfigError("fn", expected, tuple(new.shape))
            for name, new in results.items():
                values[name].copy_(new)
        self.written()

    def _check(self) -> None:
        known = {id(p) for p in self.model.parameters()}
        if not any(p.requires_grad for p in self.parameters) or not known & self.by_id.keys():
            expected = "parameters of this model, of which at least one requires a gradient"
            remedy = "Make the optimizer from the model's trainable parameters."
            raise ConfigError("optimizer", expected, len(self.parameters), remedy)
        for pattern in self._overrides:
            if not any(fnmatchcase(name, pattern) for name in self.names):
                expected = "patterns that match at least one trained parameter"
                remedy = f"Names look like {self.names[0]!r}."
                raise ConfigError("kinds", expected, pattern, remedy)


def _check_initialised(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise ConfigError("model", "a torch.nn.Module", type(model).__name__)
    lazy = [name for name, p in model.named_parameters() if is_lazy(p)]
    if lazy:
        got = f"the uninitialised {lazy[0]!r}"
        remedy = "Run one batch through the model before training starts."
        raise UnsupportedSetupError("model", "initialised parameters", got, remedy)
