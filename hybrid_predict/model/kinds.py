"""Classifies parameters as hidden matrices, embeddings, heads or vectors."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import nn

from hybrid_predict.model.uses import Findings, MatrixIndex
from hybrid_predict.ranks.fsdp1 import named_children, named_modules, named_parameters
from hybrid_predict.ranks.shards import form

_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
_CONVOLUTIONS = (nn.modules.conv._ConvNd, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_RECURRENT = (nn.RNNBase, nn.LSTM, nn.GRU)
_LAYERS = (nn.Linear, nn.Bilinear, nn.MultiheadAttention, *_CONVOLUTIONS, *_RECURRENT)
_EMBEDDING_WORDS = frozenset({"pos", "posemb", "posembed", "token", "tokens"})
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def classify(model: nn.Module, owners: Mapping[int, int] | None = None) -> dict[int, str]:
    """Classify every parameter of a model by module types, names and shapes.

    This is used before the first full step; then :func:`resolve` uses what the loss has shown.

    ``hidden`` matrices are weights of two or more dimensions, including convolutions, attention
    projections and low-rank adapters, but not embedding tables, learned positions and heads. A
    model with a layer that is tied to an embedding has no head; else each network may have one.
    Kinds and ``owners``, the numbers of several optimizers, are by ``id`` of the parameter.
    """
    kinds, matrices = _listed(model)
    tied = not _weights(model, _EMBEDDINGS).isdisjoint(_weights(model, (nn.Linear,)))
    for network in [] if tied else _networks(model, matrices, owners or {}):
        if (head := _head(model, network)) is not None:
            kinds[head.key] = "head"
            kinds.update((m.key, "head") for m in _sibling_heads(model, network, head))
    return kinds


def matrix_index(model: nn.Module, owners: Mapping[int, int] | None = None) -> MatrixIndex:
    """List the trained matrices of a model, to be followed through a full step."""
    networks = _networks(model, _listed(model)[1], owners or {})
    trained = {id(p): form(p) for p in model.parameters() if p.requires_grad}
    return MatrixIndex(
        {key: p for key, p in trained.items() if p.dim() > 1},
        [frozenset(m.key for m in network) for network in networks],
    )


def resolve(
    model: nn.Module,
    known: Mapping[int, str],
    seen: Findings,
    index: MatrixIndex,
    with_gradient: Collection[int],
) -> tuple[dict[int, str], list[int]]:
    """Change the known kinds of parameters, by ``id``, to what losses have shown.

    A head is a matrix whose product reaches the loss without a product with another matrix in
    between. It stays a head if it is also used inside, as in a model that feeds its prediction
    back. A table in which rows are looked up is an embedding, whatever else it is used for. A
    parameter that is only combined with data element by element is a vector. Kinds do not change
    for the only matrix of a network, and for matrices that no loss shows. The sibling of a head,
    without gradient, is one.

    Returns:
        Kinds by ``id``, and the ``id`` of matrices whose place was not shown.
    """
    matrices = {m.key: m for m in _listed(model)[1]}
    alone = {key for network in index.networks if len(network) < 2 for key in network}
    heads = (seen.heads & matrices.keys()) - alone
    for network in index.networks:
        members = [m for key, m in matrices.items() if key in network]
        for head in [m for m in members if m.key in heads]:
            siblings = {m.key for m in _sibling_heads(model, members, head)}
            heads |= siblings - set(with_gradient)
    kinds = dict(known)
    unseen = []
    for key, kind in known.items():
        p = index.matrices.get(key)
        if p is None or kind == "embedding" or key in alone:
            continue
        inner = "hidden" if sum(size > 1 for size in p.shape) > 1 else "vector"
        if key in seen.tables:
            kinds[key] = "embedding"
        elif key in heads:
            kinds[key] = "head"
        elif key in seen.inside or key not in with_gradient:
            kinds[key] = inner
        elif key in seen.elementwise - seen.weights:
            kinds[key] = "vector"
        elif kind != "vector":
            unseen.append(key)
    return kinds, unseen


def _listed(model: nn.Module) -> tuple[dict[int, str], list[_Matrix]]:
    """Return kinds as if there were no head, and the matrices in order."""
    kinds: dict[int, str] = {}
    matrices: list[_Matrix] = []
    for module_name, module in named_modules(model):
        for name, p in module.named_parameters(recurse=False):
            if id(p) in kinds:
                continue
            shape = tuple(form(p).shape)
            leaf = ".".join(f"{module_name}.{name}".rsplit(".", 2)[-2:])
            matrix = _Matrix(id(p), shape, p.requires_grad, module_name)
            if _is(module, _EMBEDDINGS):
                kinds[id(p)] = "embedding"
            elif sum(size > 1 for size in shape) < 2:
                kinds[id(p)] = "vector"
                if _is(module, (nn.Linear,)) and len(shape) == 2:
                    matrices.append(matrix)
            elif _named_embedding(leaf) and not _is(module, _LAYERS):
                kinds[id(p)] = "embedding"
            else:
                kinds[id(p)] = "hidden"
                matrices.append(matrix)
    return kinds, matrices


def _named_embedding(name: str) -> bool:
    """Return whether a word of a name, split at underscores, dots and capitals, means embedding."""
    words = [word.lower() for word in _WORD.findall(name)]
    return any(w in _EMBEDDING_WORDS or w.startswith(("embed", "position")) for w in words)


@final
@dataclass(frozen=True)
class _Matrix:
    key: int
    shape: tuple[int, ...]
    trained: bool
    module: str

    @property
    def child(self) -> str:
        return self.module.split(".")[0]

    def takes_outputs_of(self, other: _Matrix) -> bool:
        inputs = math.prod(self.shape[1:])
        outputs = other.shape[0]
        flattened = len(other.shape) > 2 and outputs > 0 and inputs % outputs == 0  # conv outputs
        return flattened or inputs == outputs


def _head(model: nn.Module, matrices: Sequence[_Matrix]) -> _Matrix | None:
    """Return the head, or None if the network has a single matrix or none is trained.

    It is a linear layer that maps back to the vocabulary of an embedding, or otherwise the last
    matrix. Frozen matrices are candidates only after the last trained one: in a network that
    continues with frozen layers, the trained matrices are inner matrices or adapters. A child
    module that is frozen completely belongs to the network if it has a single matrix, or if its
    first matrix can take the outputs of the last trained one. Otherwise it is a separate network,
    such as a teacher.
    """
    last = max((k for k, m in enumerate(matrices) if m.trained), default=None)
    if last is None:
        return None
    children = dict(named_children(model))
    trained = {n for n, c in children.items() if any(p.requires_grad for p in c.parameters())}
    frozen = children.keys() - trained
    behind = list(matrices[last + 1 :])
    for child in frozen:
        inner = [m for m in matrices if m.child == child]
        if len(inner) > 1 and not inner[0].takes_outputs_of(matrices[last]):
            behind = [m for m in behind if m.child != child]
    before = [m for m in matrices[: last + 1] if m.child not in frozen]
    if len(before) + len(behind) < 2:
        return None
    tables = [m for m in model.modules() if _is(m, _EMBEDDINGS)]
    vocabularies: set[Any] = {(m.num_embeddings, m.embedding_dim) for m in tables}
    candidates = [m for m in before if m.trained] + behind
    # Inner matrices can have the shape of a vocabulary by chance; the head comes last.
    matching = [m for m in candidates if m.shape in vocabularies]
    return (matching or behind or before)[-1]


def _networks(
    model: nn.Module, matrices: Sequence[_Matrix], owners: Mapping[int, int]
) -> list[list[_Matrix]]:
    """Return the matrices of each network that has its own optimizer, or all as one network.

    There are several if every optimizer trains its own neighbouring children of the model, with
    several matrices each: a generator and a discriminator.
    """
    owned: dict[str, set[int]] = {}
    for name, p in named_parameters(model):
        if id(p) in owners:
            child = name.rpartition(".")[0].split(".")[0]
            owned.setdefault(child, set()).add(owners[id(p)])
    order = [min(those) for those in owned.values()]
    runs = [k for i, k in enumerate(order) if i == 0 or order[i - 1] != k]
    parts = [[m for m in matrices if owned.get(m.child, {k}) == {k}] for k in runs]
    shared = any(len(those) > 1 for those in owned.values()) or len(set(runs)) < len(runs)
    small = any(sum(m.child in owned for m in part) < 2 for part in parts)
    return [list(matrices)] if shared or small or len(parts) < 2 else parts


def _sibling_heads(
    model: nn.Module, matrices: Sequence[_Matrix], head: _Matrix
) -> Iterator[_Matrix]:
    """Yield the heads of modules next to the one that ends in the head, at every level.

    They have the same class, take the same inputs, and do not feed each other, as a policy and a
    value.
    """
    path = head.module.split(".") if head.module else []
    modules = dict(named_modules(model, remove_duplicate=False))
    for depth in range(len(path)):
        prefix = "".join(f"{name}." for name in path[:depth])
        children = dict(named_children(modules[prefix[:-1]]))
        holding = {
            name: [m for m in matrices if f"{m.module}.".startswith(f"{prefix}{name}.")]
            for name in children
        }
        names = [name for name, inner in holding.items() if inner]
        at = names.index(path[depth])
        first = holding[path[depth]][0]
        cls = _class(children[path[depth]])
        for side in (reversed(names[:at]), names[at + 1 :]):
            for name in side:
                inner = holding[name]
                alike = _class(children[name]) == cls and inner[-1].trained
                parallel = inner[0].shape[1:] == first.shape[1:]
                if not (alike and parallel) or inner[-1].shape[0] == first.shape[1]:
                    break
                yield inner[-1]


def _class(module: nn.Module) -> type | str:
    """Return the class of a module, or its original name after ``torch.jit.script``."""
    scripted = isinstance(module, torch.jit.ScriptModule)
    return str(module.original_name) if scripted else type(module)


def _is(module: nn.Module, classes: Sequence[type]) -> bool:
    """Return whether a module has one of these classes, also after ``torch.jit.script``."""
    return isinstance(module, tuple(classes)) or _class(module) in [c.__name__ for c in classes]


def _weights(model: nn.Module, classes: Sequence[type]) -> frozenset[int]:
    """Return the ``id`` of the weights of layers; a parametrized weight would be computed."""
    own = (m.named_parameters(recurse=False) for m in model.modules() if _is(m, classes))
    return frozenset(id(p) for parameters in own for name, p in parameters if name == "weight")
