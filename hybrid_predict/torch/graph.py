"""Finds in the graph of a loss which matrices are heads, which are inside, and which no weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import final

from torch import Tensor

from hybrid_predict.torch.derivatives import mark_reversed
from hybrid_predict.torch.nodes import MULTIPLYING, NONE, UNKNOWN, MatrixIndex, Node, read, union

_FREE, _UNSURE, _BEHIND, _SLOPE = 1, 2, 4, 8
"""Paths from the loss to a node: through no matrix, possibly through one, through one, or through
products of a derivative alone."""


@final
@dataclass
class GraphFindings:
    """Findings from the graphs of losses, as sets of the ``id`` of parameters.

    Attributes:
        heads: Matrices in a product that no product with another matrix follows.
        inside: Matrices in a product that products with other matrices follow.
        tables: Matrices in which rows are looked up.
        elementwise: Matrices that are combined with data element by element.
        weights: Matrices in a product, or in what may be one.
        reached: All parameters that a loss depends on.
    """

    heads: set[int] = field(default_factory=set)
    inside: set[int] = field(default_factory=set)
    tables: set[int] = field(default_factory=set)
    elementwise: set[int] = field(default_factory=set)
    weights: set[int] = field(default_factory=set)
    reached: set[int] = field(default_factory=set)

    def add(self, loss: Tensor, index: MatrixIndex) -> None:
        """Walk the graph of a loss, before or after its backward pass, without changing it."""
        nodes = read(loss, index)
        self.reached |= {node.key for node in nodes if node.key is not None}
        self._add_uses(nodes, index)
        mark_reversed(nodes, index)
        for network in index.networks:
            self._add_places(nodes, union(index.networks) - network, index)

    def _add_uses(self, nodes: Sequence[Node], index: MatrixIndex) -> None:
        """Find how matrices are used: element by element, and as weights of a product.

        Attention vectors of graph networks, inducing points of Gaussian processes and learned
        positions are multiplied with data, subtracted or added, so that the result has the data's
        shape. A matrix that keeps its own shape is still a weight, such as one that gets noise or
        an inner update. It may also be one if the product of two data has a factor that it was
        scaled into, as in a convolution whose weight depends on a style.
        """
        near: dict[Node | None, frozenset[int]] = {None: NONE}
        for node in nodes:
            near[node] = NONE
            if node.operation in MULTIPLYING:
                factors = node.inputs[1:2] if node.operation == "convolution" else node.inputs
                self.weights.update(*(node.weights.values() or (near[n] for n in factors)))
            elif node.operation != "lookup":
                met = _matrices(node.inputs) - _matrices([node])
                shape = _sizes(node.shape())
                self.elementwise |= {k for k in met if _sizes(index.matrices[k].shape) != shape}
                if node.operation not in ("reduction", "joint"):
                    near[node] = met.union(*(near[n] for n in node.inputs))

    def _add_places(
        self, nodes: Sequence[Node], others: frozenset[int], index: MatrixIndex
    ) -> None:
        """Find the places of the matrices of one network, from the loss to the leaves."""
        paths = dict.fromkeys(nodes, 0) | {nodes[-1]: _FREE}
        for node in reversed(nodes):
            passed = paths[node]
            if passed and node.operation == "lookup":
                self.tables.update(*(n.plain for n in node.inputs if n))
                continue
            if passed and node.operation in MULTIPLYING:
                passed = self._add_product(node, passed, others, index)
            for n in node.data:
                paths[n] |= passed

    def _add_product(
        self, node: Node, paths: int, others: frozenset[int], index: MatrixIndex
    ) -> int:
        """Add what a product shows, and return the paths from the loss to its data."""
        matrices = union(node.weights.values()) - others
        opaque = node.operation in UNKNOWN
        several = len(matrices) > 1 and (opaque or node.operation == "recurrent")
        # A product of weights alone, as in a penalty, does not show the place of these weights.
        varies = any(not n.alone or n.multiplied for n in node.data)
        if matrices and (None in node.inputs or varies):
            self._record(node, matrices, paths | _UNSURE if several else paths)
        if opaque and (several or not matrices or node.operation == "compiled"):
            ahead = paths & (_FREE | _SLOPE)
            return paths & ~ahead | _UNSURE if ahead else paths
        if matrices and node.turned in ("first", "inner"):
            return _SLOPE if paths & (_FREE | _SLOPE) else paths
        return _BEHIND if matrices or (not node.weights and _meets_frozen(node, index)) else paths

    def _record(self, node: Node, matrices: Iterable[int], paths: int) -> None:
        first, plain = node.turned == "first", not node.turned
        if (plain and paths == _FREE) or (first and paths & (_FREE | _SLOPE)):
            self.heads.update(matrices)
        elif node.turned == "inner" or (plain and paths & (_BEHIND | _SLOPE)):
            self.inside.update(matrices)


def _matrices(nodes: Iterable[Node | None]) -> frozenset[int]:
    return union(n.plain | n.multiplied for n in nodes if n is not None)


def _sizes(shape: Sequence[int]) -> list[int]:
    return sorted(size for size in shape if size > 1)


def _meets_frozen(node: Node, index: MatrixIndex) -> bool:
    """Return whether the other factor of a product's data has the shape of a frozen weight."""
    if node.operation == "recurrent":
        return True
    known = [n for n in node.data if not n.alone]
    if len(known) != 1 or not index.frozen:
        return False
    number = next(k for n, k in node.raw.next_functions if n is known[0].raw)
    into, out = known[0].shape(number), node.shape()
    if min(len(into), len(out)) < 2:
        return False
    axis = 1 if node.operation == "convolution" else -1
    if axis == -1 and node.inputs[-1] is known[0]:  # the data are the right factor
        axis = -2
    return any(_maps(shape, into[axis], out[axis]) for shape in index.frozen)


def _maps(shape: tuple[int, ...], into: int, out: int) -> bool:
    """Return whether a weight of this shape, or a grouped one, can map ``into`` to ``out``."""
    if len(shape) == 2:
        rows, columns = shape
        packed = (rows, rows / 3, rows / 1.5)  # attention may pack its projections in one weight
        return (columns == into and out in packed) or (rows == into and columns == out)
    pairs = ((shape[0], shape[1]), (shape[1], shape[0]), shape[-2:], shape[:-3:-1])
    return any(a == out and b > 0 and into % b == 0 for a, b in pairs)
