"""Finds in the graph of a loss the products that belong to a derivative of the network."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, final

from hybrid_predict.torch.nodes import PRODUCTS, inputs_of, is_leaf, operation_of, shape_of
from hybrid_predict.torch.operands import MatrixIndex, Operand, weights_of

_ROWS, _COLUMNS, _UNKNOWN = 0, 1, 2
"""Axes of a weight that a product sums over; a function of the user's does not show which."""

_Edge = tuple[Any, int]
"""A node and the number of its output."""


@final
@dataclass(frozen=True)
class Reversed:
    r"""The products with matrices that a backward pass has made, as for forces or residuals.

    A layer's product h = W x has the reverse Wᵀ δ, which goes from the layer's outputs to its
    inputs. In the graph of a derivative the first layer therefore stands next to the loss.

    Args:
        products: Nodes of reverse products.
        first: Those among them with which a derivative begins: of the network's last layer.
        unsure: Nodes of products that may be such a first one, or a layer of constants.
    """

    products: frozenset[Any] = frozenset()
    first: frozenset[Any] = frozenset()
    unsure: frozenset[Any] = frozenset()


def reversed_products(
    nodes: Sequence[Any], operands: Mapping[Any, Operand | None], index: MatrixIndex
) -> Reversed:
    """Find the reverse products in a graph.

    Names of nodes tell it only for convolutions. Otherwise, a product with W is a reverse one if
    it sums over the other axis of W than a second product with W, and if its data depend on that
    second product without a product in between: the activation's derivative at h is a factor of δ.
    They also depend on the next layer's reverse product, or on a constant times W if W is the last
    matrix; this tells it from a layer whose own transpose follows, as in a tied autoencoder. Other
    layers, such as two without an activation in between, follow from their neighbours.

    Args:
        nodes: All nodes of the graph, each one after its inputs.
        operands: What each node is computed from.
        index: The parameters of the model.
    """
    weights = {n: found for n in nodes if _multiplies(n) and (found := weights_of(n, operands))}
    uses = {node: _uses(node, found) for node, found in weights.items()}
    sides: dict[_Edge, set[int]] = {}
    for base, side in (use for found in uses.values() for use in found):
        sides.setdefault(base, set()).add(side)
    named = frozenset(node for node in uses if "BackwardBackward" in node.name())
    if not named and all(len(found) < 2 for found in sides.values()):
        return Reversed()
    linear = {base for base in sides if is_leaf(base[0]) and index.key(base[0]) in index.linear}
    return _Search(_products(nodes, weights, uses), linear).result(named)


@final
@dataclass(frozen=True)
class _Product:
    """A product of a graph.

    Args:
        bit: Its place in a set of products, which is an integer.
        reach: Products that its data depend on without another product in between.
        behind: All products that its data depend on.
        uses: Its weights without transposes, and which axis of each it sums over.
    """

    bit: int
    reach: int
    behind: int
    uses: Sequence[tuple[_Edge, int]]


@final
class _Search:
    """The search for reverse products among the products of a graph, in the order of nodes."""

    def __init__(self, products: Mapping[Any, _Product], linear: Set[_Edge]) -> None:
        self._products, self._linear = products, linear
        self._by_bit = {product.bit: product for product in products.values()}
        self._users: dict[_Edge, dict[int, int]] = {}
        for product in products.values():
            for base, side in product.uses:
                users = self._users.setdefault(base, {})
                users[side] = users.get(side, 0) | product.bit
        self._sides = self._proven()
        alike = set(self._sides.values())
        usual = alike.pop() if len(alike) == 1 else None
        self._usual = {base: _ROWS if base in linear else usual for base in self._users}

    def result(self, found: frozenset[Any]) -> Reversed:
        """Add to the products that are known by name until none is added."""
        found, before = found | self._chained(), None
        while found != before:
            before = found
            ones = _union(p.bit for p in self._of(found))
            touched = _union(p.reach for p in self._of(found))
            found |= {n for n, p in self._products.items() if self._is_reverse(p, ones, touched)}
        rest = {n: p for n, p in self._products.items() if n not in found}
        unsure = {n for n, p in rest.items() if p.bit & touched and self._is_open(p)}
        ones |= _union(p.bit for p in self._of(unsure))
        first = frozenset(n for n in found if not self._products[n].reach & ones)
        return Reversed(found, first, frozenset(unsure))

    def _proven(self) -> dict[_Edge, int]:
        """Return the axis over which reverse products sum, for each weight that shows it."""
        sides: dict[_Edge, int] = {}
        for product in self._products.values():
            for base, side in product.uses:
                users = self._users[base]
                if not product.reach & ~_union(users.values()):
                    continue
                for twins in (users[other] & product.reach for other in users.keys() - {side}):
                    # A derivative of a derivative has a layer's own product behind its reverse.
                    earlier = (self._by_bit[bit].behind for bit in _bits(twins))
                    if any(not behind & users[side] for behind in earlier):
                        sides.setdefault(base, side)
        return sides

    def _chained(self) -> frozenset[Any]:
        """Return products with linear layers' rows that follow each other from a constant.

        Activations of straight pieces have derivatives that do not depend on the layers' products.
        """
        found: dict[Any, _Product] = {}
        bits = 0
        for node, product in self._products.items():
            turned = all(
                base in self._linear and side == _ROWS and len(self._users[base]) > 1
                for base, side in product.uses
            )
            if product.uses and turned and not product.behind & ~bits:
                found[node] = product
                bits |= product.bit
        return frozenset(found) if any(p.behind for p in found.values()) else frozenset()

    def _is_reverse(self, product: _Product, ones: int, touched: int) -> bool:
        for base, side in product.uses:
            if base in self._sides:
                return side == self._sides[base]
            if side == _UNKNOWN:
                continue
            if product.bit & touched and self._usual[base] == side:
                return True
            if product.reach & ones and len(self._users[base]) > 1:
                return True
        return False

    def _is_open(self, product: _Product) -> bool:
        """Whether nothing shows on which side a product of constants has its weight."""
        bases = [base for base, _ in product.uses if base not in self._sides]
        return not product.reach and any(self._usual[base] is None for base in bases)

    def _of(self, nodes: Iterable[Any]) -> list[_Product]:
        return [self._products[node] for node in nodes]


def _bits(number: int) -> Iterator[int]:
    while number:
        yield number & -number
        number &= number - 1


def _union(sets: Iterable[int]) -> int:
    return reduce(or_, sets, 0)


def _products(
    nodes: Sequence[Any],
    weights: Mapping[Any, Mapping[Any, Any]],
    uses: Mapping[Any, Sequence[tuple[_Edge, int]]],
) -> dict[Any, _Product]:
    """Return the products with what their data depend on."""
    found: dict[Any, _Product] = {}
    near: dict[Any, int] = {None: 0}
    far: dict[Any, int] = {None: 0}
    for node in nodes:
        data = [n for n in inputs_of(node) if n not in weights.get(node, ())]
        near[node], far[node] = _union(near[n] for n in data), _union(far[n] for n in data)
        if node in weights:
            bit = 1 << len(found)
            found[node] = _Product(bit, near[node], far[node], uses[node])
            near[node], far[node] = bit, far[node] | bit
    return found


def _multiplies(node: Any) -> bool:
    return operation_of(node) in (*PRODUCTS, "opaque")


def _uses(node: Any, weights: Mapping[Any, Any]) -> list[tuple[_Edge, int]]:
    operation, edges = operation_of(node), node.next_functions
    if operation == "opaque":
        return [(_base(edge)[0], _UNKNOWN) for edge in edges if edge[0] in weights]
    if operation != "product":
        return []
    # The second factor is summed over its first axis, the first one over its second; a linear
    # function transposes its weight.
    linear = node.name().lower().startswith(("linear", "mkldnnlinear"))
    factors = [(edges[1], _COLUMNS)] if linear else [(edges[-1], _ROWS), (edges[-2], _COLUMNS)]
    bases = [(_base(edge), side) for edge, side in factors if edge[0] in weights]
    return [(base, side ^ turned) for (base, turned), side in bases]


def _base(edge: _Edge) -> tuple[_Edge, bool]:
    """Return the tensor below transposes of a matrix or a stack, and whether they turn it."""
    turned = False
    while _transposes(edge[0]):
        edge, turned = edge[0].next_functions[0], not turned
    return edge, turned


def _transposes(node: Any) -> bool:
    name, rank = node.name(), len(shape_of(node))
    if name.startswith("TBackward"):
        return True
    if name.startswith("PermuteBackward"):
        return rank == 2 and _axis(node._saved_dims[0], 2) == 1
    if name.startswith("TransposeBackward"):
        return {_axis(k, rank) for k in (node._saved_dim0, node._saved_dim1)} == {
            rank - 2,
            rank - 1,
        }
    return False


def _axis(number: int, rank: int) -> int:
    """Return an axis counted from 0; the graph stores a negative one as 64 bits without a sign."""
    return (number - 2**64 if number >= 2**63 else number) % rank
