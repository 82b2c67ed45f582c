"""Parameters in an autograd graph: what a tensor is computed from, and the weights of a product."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from torch import Tensor

from hybrid_predict.torch.nodes import PRODUCTS, inputs_of, is_leaf, operation_of, shape_of


@final
@dataclass(frozen=True)
class MatrixIndex:
    """The parameters of a model, as needed to find its matrices in a graph.

    Args:
        matrices: Trained parameters of two or more dimensions, by ``id``.
        vectors: All other trained parameters, by ``id``.
        networks: ``id`` of the matrices of each network that an optimizer of its own trains. For a
            network, matrices of other networks do not count, so that a generator followed by its
            discriminator has a head.
        frozen: Shapes of frozen weights; a product with a constant of such a shape counts as a
            product with a matrix.
        linear: Those of ``matrices`` that are weights of linear layers, by ``id``.
        aliases: ``id`` of the parameter that a tensor in the graph stands for, by ``id`` of that
            tensor.
    """

    matrices: Mapping[int, Tensor]
    vectors: frozenset[int]
    networks: Sequence[frozenset[int]]
    frozen: frozenset[tuple[int, ...]]
    linear: frozenset[int] = frozenset()
    aliases: Mapping[int, int] = field(default_factory=dict)

    def key(self, leaf: Any) -> int:
        """Return the ``id`` of the parameter at a leaf of the graph."""
        key = id(leaf.variable)
        return self.aliases.get(key, key)


@final
@dataclass(frozen=True)
class Operand:
    """A tensor in the graph that is computed from parameters alone.

    Args:
        plain: Matrices in it that were not multiplied with each other.
        multiplied: Matrices in it that were, such as the factors of a low-rank weight.
    """

    plain: frozenset[int] = frozenset()
    multiplied: frozenset[int] = frozenset()


def operands_in(nodes: Sequence[Any], index: MatrixIndex) -> dict[Any, Operand | None]:
    """Return for every node what it is computed from, if from parameters alone, else None.

    Args:
        nodes: All nodes of a graph, each one after its inputs.
        index: The parameters of the model.
    """
    found: dict[Any, Operand | None] = {None: None}
    for node in nodes:
        found[node] = _operand(node, [found[n] for n in inputs_of(node)], index)
    return found


def weights_of(node: Any, operands: Mapping[Any, Operand | None]) -> dict[Any, frozenset[int]]:
    """Return the matrices that are a node's weights, by the input that holds them."""
    inputs = [n for n in inputs_of(node) if n is not None]
    plain = {n: o.plain for n in inputs if (o := operands[n]) and o.plain}
    return plain or {n: o.multiplied for n in inputs if (o := operands[n]) and o.multiplied}


def _grown(node: Any, inputs: Iterable[Any]) -> bool:
    """Whether the output has more entries than any input that is not a constant."""
    return math.prod(shape_of(node)) > max(math.prod(shape_of(n)) for n in inputs if n is not None)


def _operand(node: Any, inputs: Sequence[Operand | None], index: MatrixIndex) -> Operand | None:
    if is_leaf(node):
        key = index.key(node)
        if key in index.matrices:
            return Operand(frozenset([key]))
        return Operand() if key in index.vectors else None
    nodes, operation = inputs_of(node), operation_of(node)
    made = [o for n, o in zip(nodes, inputs, strict=True) if n is not None]
    known = [o for o in made if o is not None]
    plain = frozenset().union(*(o.plain for o in known))
    multiplied = frozenset().union(*(o.multiplied for o in known))
    if operation in ("opaque", "compiled"):
        # An unknown function that rounds or masks a weight keeps its shape.
        shapes = {tuple(index.matrices[key].shape) for key in plain}
        kept = len(plain) == 1 and shape_of(node) in shapes
        return Operand(plain) if kept and len(known) == len(made) else None
    if operation in ("lookup", "recurrent") or len(known) < len(made):
        return None
    if operation in PRODUCTS:
        filled = [o for o in known if o.plain or o.multiplied]
        return Operand(multiplied=plain | multiplied) if len(filled) > 1 else None
    # Data need no gradient in a first layer, where a scale or learned positions meet them.
    added = None in nodes and operation in ("sum", "joint")
    if (added or (None in nodes and operation == "scale")) and _grown(node, nodes):
        return None
    return Operand(frozenset() if added else plain, multiplied)
