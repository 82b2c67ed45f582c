"""Finds in the autograd graph of a loss which matrices are at its end and which are inside."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from torch import Tensor

from hybrid_predict.torch.derivatives import Reversed, reversed_products
from hybrid_predict.torch.elementwise import elementwise_and_weights
from hybrid_predict.torch.nodes import (
    PRODUCTS,
    from_leaves,
    inputs_of,
    is_leaf,
    operation_of,
    shape_of,
)
from hybrid_predict.torch.operands import MatrixIndex, Operand, operands_in, weights_of

_FREE, _UNSURE, _BEHIND, _SLOPE = 1, 2, 4, 8
"""Paths from the loss to a node: through no matrix, possibly through one, through one, or through
products of a derivative alone."""


@final
@dataclass
class GraphFindings:
    """What the graphs of losses have shown, as sets of the ``id`` of parameters.

    Attributes:
        heads: Matrices in a product that no product with another matrix follows.
        inside: Matrices in a product that products with other matrices follow.
        tables: Matrices in which rows are looked up.
        elementwise: Matrices that meet data element by element.
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
        """Walk the graph of a loss, before or after its backward pass, without changing it.

        Tensors that the graph has saved are not read, because checkpointed parts would be
        recomputed.
        """
        nodes = from_leaves(loss.grad_fn)
        self.reached |= {index.key(n) for n in nodes if is_leaf(n)}
        operands = operands_in(nodes, index)
        elementwise, weights = elementwise_and_weights(nodes, operands, index)
        self.elementwise |= elementwise
        self.weights |= weights
        turned = reversed_products(nodes, operands, index)
        for network in index.networks:
            others = frozenset().union(*index.networks) - network
            _Walk(self, operands, turned, index, others).run(nodes)


@final
class _Walk:
    """One pass from a loss to the leaves, for the matrices of one network."""

    def __init__(
        self,
        found: GraphFindings,
        operands: Mapping[Any, Operand | None],
        turned: Reversed,
        index: MatrixIndex,
        others: frozenset[int],
    ) -> None:
        self._found, self._operands, self._turned = found, operands, turned
        self._index, self._others = index, others
        self._paths: dict[Any, int] = {}

    def run(self, nodes: Sequence[Any]) -> None:
        """Visit all nodes; ``nodes`` are ordered from the leaves to the loss."""
        self._paths[nodes[-1]] = _FREE
        for node in reversed(nodes):
            if paths := self._paths.get(node, 0):
                self._visit(node, paths)

    def _visit(self, node: Any, paths: int) -> None:
        inputs = [n for n in inputs_of(node) if n is not None]
        operation = operation_of(node)
        opaque = operation in ("opaque", "compiled")
        if operation == "lookup":
            plain = [o.plain for n in inputs if (o := self._operands[n])]
            self._found.tables.update(*plain)
            return
        if operation not in PRODUCTS and not opaque:
            self._pass(inputs, paths)
            return
        weights = weights_of(node, self._operands)
        data = [n for n in inputs if n not in weights]
        own = frozenset().union(*weights.values()) - self._others
        several = len(own) > 1 and (opaque or operation == "recurrent")
        # A product of weights alone, as in a penalty, does not show the place of these weights.
        known = None in inputs_of(node) or any(self._varies(n) for n in data)
        if own and known:
            self._record(node, own, paths | _UNSURE if several else paths)
        if opaque and (several or not own or operation == "compiled"):
            ahead = paths & (_FREE | _SLOPE)
            paths = paths & ~ahead | _UNSURE if ahead else paths
        elif own and node in self._turned.products:
            paths = _SLOPE if paths & (_FREE | _SLOPE) else paths
        elif own or (not weights and self._meets_frozen(node, data)):
            paths = _BEHIND
        self._pass(data, paths)

    def _varies(self, node: Any) -> bool:
        operand = self._operands[node]
        return operand is None or bool(operand.multiplied)

    def _record(self, node: Any, matrices: Iterable[int], paths: int) -> None:
        if node in self._turned.unsure:
            return
        if node in self._turned.products:
            if node not in self._turned.first:
                self._found.inside.update(matrices)
            elif paths & (_FREE | _SLOPE):
                self._found.heads.update(matrices)
        elif paths == _FREE:
            self._found.heads.update(matrices)
        elif paths & (_BEHIND | _SLOPE):
            self._found.inside.update(matrices)

    def _pass(self, inputs: Iterable[Any], paths: int) -> None:
        for node in inputs:
            self._paths[node] = self._paths.get(node, 0) | paths

    def _meets_frozen(self, node: Any, data: Sequence[Any]) -> bool:
        """Whether the other factor of the data has the shape of a frozen weight."""
        if operation_of(node) == "recurrent":
            return True
        known = [n for n in data if self._operands[n] is None]
        if len(known) != 1 or not self._index.frozen:
            return False
        number = next(k for n, k in node.next_functions if n is known[0])
        into, out = shape_of(known[0], number), shape_of(node)
        if min(len(into), len(out)) < 2:
            return False
        axis = 1 if operation_of(node) == "convolution" else -1
        if axis == -1 and inputs_of(node)[-1] is known[0]:  # the data stand on the right
            axis = -2
        return any(_maps(shape, into[axis], out[axis]) for shape in self._index.frozen)


def _maps(shape: tuple[int, ...], into: int, out: int) -> bool:
    """Whether a weight of this shape, also with groups, can map ``into`` features to ``out``."""
    if len(shape) == 2:
        rows, columns = shape
        packed = (rows, rows / 3, rows / 1.5)  # attention may pack its projections in one weight
        return (columns == into and out in packed) or (rows == into and columns == out)
    pairs = ((shape[0], shape[1]), (shape[1], shape[0]), shape[-2:], shape[:-3:-1])
    return any(a == out and b > 0 and into % b == 0 for a, b in pairs)
