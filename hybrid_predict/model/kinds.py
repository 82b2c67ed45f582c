"""Classifies parameters as hidden matrices, embeddings, heads or vectors."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from torch import Tensor, nn

from hybrid_predict.model.uses import Findings
from hybrid_predict.ranks.shards import clean, form, named_parameters

_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
_LAYERS = (nn.Linear, nn.Bilinear, nn.MultiheadAttention, nn.modules.conv._ConvNd, nn.RNNBase)
_EMBEDDING_WORDS = frozenset({"pos", "posemb", "posembed", "token", "tokens"})
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def classify(model: nn.Module, optimizers: Mapping[int, int] | None = None) -> dict[int, str]:
    """Classify every parameter of a model by module types, names and shapes.

    This is used before the first full step; then :func:`resolve` uses what the loss has shown.

    ``hidden`` matrices are weights of two or more dimensions, including convolutions, attention
    projections and low-rank adapters, but not embedding tables, learned positions and heads. The
    head is the last trained matrix, or the last one of the shape of a vocabulary. A model with a
    layer that is tied to an embedding has none. Where every optimizer trains a network of its own,
    each network ends in a head. Kinds, and ``optimizers`` by their numbers, are by ``id`` of the
    parameter.
    """
    kinds, matrices = _listed(model)
    tables = [m for m in model.modules() if isinstance(m, _EMBEDDINGS)]
    shared = {id(m._parameters.get("weight")) for m in tables}
    layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
    if any(id(m._parameters.get("weight")) in shared for m in layers):
        return kinds
    vocabularies = {(m.num_embeddings, m.embedding_dim) for m in tables}
    trained = [p for p in matrices if p.requires_grad]
    if trained and len(matrices) > 1:
        # Inner matrices can have the shape of a vocabulary by chance; the head comes last.
        head = ([p for p in trained if tuple(form(p).shape) in vocabularies] or trained)[-1]
        kinds[id(head)] = "head"
    kinds.update(dict.fromkeys(_ends(model, matrices, optimizers or {}), "head"))
    return kinds


def matrix_index(model: nn.Module, optimizers: Mapping[int, int]) -> dict[int, Tensor]:
    """List the trained matrices by ``id`` whose kinds a loss may show; not one that is alone.

    The ends of separate networks are none: a discriminator follows the head of a generator.
    """
    _, matrices = _listed(model)
    ends = _ends(model, matrices, optimizers)
    trained = [p for p in matrices if p.requires_grad and id(p) not in ends]
    return {id(p): form(p) for p in trained if len(matrices) > 1}


def _ends(model: nn.Module, matrices: Sequence[Tensor], optimizers: Mapping[int, int]) -> set[int]:
    """Return the last matrix of each network, if every optimizer trains children of its own.

    Each of these has to have several matrices: others are parts of one network.
    """
    children: dict[int, set[str]] = defaultdict(set)
    for name, p in named_parameters(model):
        if id(p) in optimizers:
            children[optimizers[id(p)]].add(name.split(".")[0])
    held: dict[int, list[int]] = defaultdict(list)
    for key in map(id, matrices):
        if key in optimizers:
            held[optimizers[key]].append(key)
    shared = sum(map(len, children.values())) > len(set[str]().union(*children.values()))
    several = len(held) > 1 and all(len(held[number]) > 1 for number in children)
    return {keys[-1] for keys in held.values()} if several and not shared else set()


def resolve(
    known: Mapping[int, str],
    seen: Findings,
    index: Mapping[int, Tensor],
    with_gradient: Collection[int],
) -> tuple[dict[int, str], list[int]]:
    """Change the known kinds of parameters, by ``id``, to what losses have shown.

    A head stays one if it is also used inside, as in a model that feeds its prediction back, and a
    table an embedding, whatever else it is used for. Kinds do not change for matrices that are not
    in the ``index``, and for those that no loss shows.

    Returns:
        Kinds by ``id``, and the ``id`` of matrices with a gradient whose place was not shown.
    """
    kinds = dict(known)
    unseen = []
    for key, kind in known.items():
        p = index.get(key)
        if p is None or kind == "embedding":
            continue
        if key in seen.tables:
            kinds[key] = "embedding"
        elif key in seen.heads:
            kinds[key] = "head"
        elif key in seen.inside:
            kinds[key] = "vector" if _is_vector(p.shape) else "hidden"
        elif key in seen.elementwise - seen.weights:
            kinds[key] = "vector"
        elif kind != "vector" and key in with_gradient:
            unseen.append(key)
    return kinds, unseen


def _listed(model: nn.Module) -> tuple[dict[int, str], list[Tensor]]:
    kinds: dict[int, str] = {}
    matrices: list[Tensor] = []
    for module_name, module in model.named_modules():
        for name, p in module.named_parameters(recurse=False):
            if id(p) in kinds:
                continue
            shape = tuple(form(p).shape)
            leaf = ".".join(clean(f"{module_name}.{name}").rsplit(".", 2)[-2:])
            if isinstance(module, _EMBEDDINGS):
                kinds[id(p)] = "embedding"
            elif _is_vector(shape):
                kinds[id(p)] = "vector"
                if isinstance(module, nn.Linear) and len(shape) == 2:
                    matrices.append(p)
            elif _named_embedding(leaf) and not isinstance(module, _LAYERS):
                kinds[id(p)] = "embedding"
            else:
                kinds[id(p)] = "hidden"
                matrices.append(p)
    return kinds, matrices


def _is_vector(shape: Sequence[int]) -> bool:
    return sum(size > 1 for size in shape) < 2


def _named_embedding(name: str) -> bool:
    words = [word.lower() for word in _WORD.findall(name)]
    return any(w in _EMBEDDING_WORDS or w.startswith(("embed", "position")) for w in words)
