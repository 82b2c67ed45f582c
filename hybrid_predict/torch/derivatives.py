"""Finds in the graph of a loss the products that belong to a derivative of the network."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, final

from hybrid_predict.torch.nodes import MatrixIndex, Node

_ROWS, _COLUMNS, _UNKNOWN = 0, 1, 2
"""Axes of a weight that a product sums over; a function of the user's does not show which."""

_Edge = tuple[Any, int]
"""A node of autograd and the number of its output."""


@final
@dataclass(frozen=True)
class Reversed:
    r"""The products with matrices that a backward pass has made, as for forces or residuals.

    A layer's product h = W x has the reverse Wᵀ δ, which goes from the layer's outputs to its
    inputs. So in the graph of a derivative the first layer is next to the loss.

    Args:
        products: Nodes of reverse products.
        first: Those among them with which a derivative begins: of the network's last layer.
        unsure: Nodes of products that may be such a first one, or a layer of constants.
    """

    products: frozenset[Node] = frozenset()
    first: frozenset[Node] = frozenset()
    unsure: frozenset[Node] = frozenset()


def reversed_products(nodes: Sequence[Node], index: MatrixIndex) -> Reversed:
    """Find the reverse products in a graph.

    Node names identify reverse products only for convolutions. Otherwise, a product with W is a
    reverse one if it sums over the other axis of W than a second product with W, and if its data
    depend on that second product without a product in between: the activation's derivative at h is
    a factor of δ. They also depend on the next layer's reverse product, or on a constant times W if
    W is the last matrix; this distinguishes it from a layer whose own transpose follows, as in a
    tied autoencoder. Other layers, such as two without an activation in between, are inferred from
    their neighbours.

    Args:
        nodes: All nodes of the graph, each one after its inputs.
        index: The parameters of the model.
    """
    products = _products(nodes)
    named = [p for p in products if "BackwardBackward" in p.node.raw.name()]
    sides: dict[_Edge, set[int]] = {}
    for base, side in (use for product in products for use in product.uses):
        sides.setdefault(base, set()).add(side)
    if not named and all(len(known) < 2 for known in sides.values()):
        return Reversed()
    leaves = {n.raw: n.key for n in nodes if n.key in index.linear}
    return _Search(products, {base for base in sides if base[0] in leaves}).result(named)


@final
@dataclass(frozen=True, eq=False)
class _Product:
    """A product of a graph.

    Args:
        node: Its node.
        bit: Its place in a set of products, which is an integer.
        reach: Products that its data depend on without another product in between.
        behind: All products that its data depend on.
        uses: Its weights without transposes, and which axis of each it sums over.
    """

    node: Node
    bit: int
    reach: int
    behind: int
    uses: Sequence[tuple[_Edge, int]]


@final
class _Search:
    """The search for reverse products among the products of a graph, in the order of nodes."""

    def __init__(self, products: Sequence[_Product], linear: set[_Edge]) -> None:
        self._products, self._linear = products, linear
        self._behind = {product.bit: product.behind for product in products}
        self._users: dict[_Edge, dict[int, int]] = {}
        for product in products:
            for base, side in product.uses:
                users = self._users.setdefault(base, {})
                users[side] = users.get(side, 0) | product.bit
        self._sides = self._proven()
        alike = set(self._sides.values())
        usual = alike.pop() if len(alike) == 1 else None
        self._usual = {base: _ROWS if base in linear else usual for base in self._users}

    def result(self, named: Sequence[_Product]) -> Reversed:
        """Add to the products that are known by name until none is added."""
        turned, grown = {*named, *self._chained()}, True
        while grown:
            ones, touched = _union(p.bit for p in turned), _union(p.reach for p in turned)
            more = {p for p in self._products if self._is_reverse(p, ones, touched)} - turned
            turned, grown = turned | more, bool(more)
        unsure = {p for p in self._products if p.bit & touched and self._is_open(p)} - turned
        ones |= _union(p.bit for p in unsure)
        first = [p for p in turned if not p.reach & ones]
        return Reversed(*(frozenset(p.node for p in part) for part in (turned, first, unsure)))

    def _proven(self) -> dict[_Edge, int]:
        """Return the axis over which reverse products sum, for each weight that shows it."""
        sides: dict[_Edge, int] = {}
        for product in self._products:
            for base, side in product.uses:
                users = self._users[base]
                if not product.reach & ~_union(users.values()):
                    continue
                for twins in (users[other] & product.reach for other in users.keys() - {side}):
                    # A derivative of a derivative has a layer's own product behind its reverse.
                    if any(not self._behind[bit] & users[side] for bit in _bits(twins)):
                        sides.setdefault(base, side)
        return sides

    def _chained(self) -> list[_Product]:
        """Return products with linear layers' rows that follow each other from a constant.

        Activations of straight pieces have derivatives that do not depend on the layers' products.
        """
        chain: list[_Product] = []
        bits = 0
        for product in self._products:
            turned = all(
                base in self._linear and side == _ROWS and len(self._users[base]) > 1
                for base, side in product.uses
            )
            if product.uses and turned and not product.behind & ~bits:
                chain.append(product)
                bits |= product.bit
        return chain if any(p.behind for p in chain) else []

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
        """Return whether nothing shows on which side a product of constants has its weight."""
        bases = [base for base, _ in product.uses if base not in self._sides]
        return not product.reach and any(self._usual[base] is None for base in bases)


def _bits(number: int) -> Iterator[int]:
    while number:
        yield number & -number
        number &= number - 1


def _union(sets: Iterable[int]) -> int:
    return reduce(or_, sets, 0)


def _products(nodes: Sequence[Node]) -> list[_Product]:
    """Return the products with weights, and what their data depend on."""
    products: list[_Product] = []
    near: dict[Node, int] = {}
    far: dict[Node, int] = {}
    for node in nodes:
        multiplies = node.weights and node.operation != "compiled"
        data = node.data if multiplies else [n for n in node.inputs if n is not None]
        near[node], far[node] = _union(near[n] for n in data), _union(far[n] for n in data)
        if multiplies:
            bit = 1 << len(products)
            products.append(_Product(node, bit, near[node], far[node], _uses(node)))
            near[node], far[node] = bit, far[node] | bit
    return products


def _uses(node: Node) -> list[tuple[_Edge, int]]:
    edges = node.raw.next_functions
    held = {n.raw for n in node.weights}
    if node.operation == "opaque":
        return [(_base(edge)[0], _UNKNOWN) for edge in edges if edge[0] in held]
    if node.operation != "product":
        return []
    # The second factor is summed over its first axis, the first one over its second; a linear
    # function transposes its weight.
    linear = node.raw.name().lower().startswith(("linear", "mkldnnlinear"))
    factors = [(edges[1], _COLUMNS)] if linear else [(edges[-1], _ROWS), (edges[-2], _COLUMNS)]
    bases = [(_base(edge), side) for edge, side in factors if edge[0] in held]
    return [(base, side ^ turned) for (base, turned), side in bases]


def _base(edge: _Edge) -> tuple[_Edge, bool]:
    """Return the tensor below transposes of a matrix or a stack, and whether they turn it."""
    turned = False
    while _transposes(edge[0]):
        edge, turned = edge[0].next_functions[0], not turned
    return edge, turned


def _transposes(raw: Any) -> bool:
    name, outputs = raw.name(), getattr(raw, "_input_metadata", ())
    if name.startswith("TBackward"):
        return True
    if not outputs or not name.startswith(("PermuteBackward", "TransposeBackward")):
        return False
    rank = len(outputs[0].shape)
    if name.startswith("Permute"):
        return rank == 2 and _axis(raw._saved_dims[0], 2) == 1
    axes = {_axis(k, rank) for k in (raw._saved_dim0, raw._saved_dim1)}
    return axes == {rank - 2, rank - 1}


def _axis(number: int, rank: int) -> int:
    """Return an axis counted from 0; the graph stores a negative one as 64 bits without a sign."""
    return (number - 2**64 if number >= 2**63 else number) % rank
