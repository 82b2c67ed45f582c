"""Finds in the graph of a loss the products that belong to a derivative of the network."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any

from hybrid_predict.torch.nodes import MatrixIndex, Node

_ROWS, _COLUMNS, _UNKNOWN = 0, 1, 2
"""Axes of a weight that a product sums over; a function of the user's does not show which."""

_Edge = tuple[Any, int]
"""A node of autograd and the number of its output."""


def mark_reversed(nodes: Sequence[Node], index: MatrixIndex) -> None:
    r"""Mark the products that a backward pass has made, as for forces or residuals.

    A layer's product h = W x has the reverse Wᵀ δ, which goes from the layer's outputs to its
    inputs. So in the graph of a derivative the first layer is next to the loss.

    There are none unless the graph shows one: a convolution's by its name, or a product with W that
    sums over the other axis of W than a second product with W. To distinguish it from a layer whose
    own transpose follows, as in a tied autoencoder, its data have to depend

    - on that second product without a product in between, since the activation's derivative at h is
      a factor of δ, and on a product with another weight, the next layer's reverse; or
    - on constants alone, if W is the weight of a linear layer, and the sum goes over its rows.

    Then all products are reverse ones that sum over the same axis of their weight. It is the axis
    that was shown for this weight, else the rows of a linear layer, else what all others showed.
    """
    uses = {n: list(_uses(n)) for n in nodes if n.weights and n.operation != "compiled"}
    bits = {product: 1 << k for k, product in enumerate(uses)}
    users: dict[_Edge, dict[int, int]] = {}
    for product, pairs in uses.items():
        for base, side in pairs:
            sides = users.setdefault(base, {})
            sides[side] = sides.get(side, 0) | bits[product]
    named = {product for product in uses if "BackwardBackward" in product.raw.name()}
    if not named and all(len(sides) < 2 for sides in users.values()):
        return
    near, behind = _reach(nodes, bits)
    leaves = {n.raw for n in nodes if n.key in index.linear}
    linear = {base for base in users if base[0] in leaves}
    shown: dict[_Edge, int] = {}
    begun = bool(named)
    for product, pairs in uses.items():
        for base, side in pairs:
            own, every = users[base][side], _union(users[base].values())
            if base not in shown and near[product] & ~every:
                twins = _bits(near[product] & every & ~own)
                # A derivative of a derivative has a layer's own product behind its reverse.
                if any(not behind[twin] & own for twin in twins):
                    shown[base] = side
            begun |= base in linear and side == _ROWS and own != every and not near[product]
    if not (begun or shown):
        return
    axes = set(shown.values())
    usual = axes.pop() if len(axes) == 1 else None
    axis = {base: shown.get(base, _ROWS if base in linear else usual) for base in users}
    turned = named | {p for p in uses if any(axis[base] == side for base, side in uses[p])}
    alone = {p for p in uses if not near[p] and any(axis[base] is None for base, _ in uses[p])}
    marked = _union(bits[product] for product in turned | alone)
    for product in turned | alone:
        begins = not near[product] & marked
        product.turned = "unsure" if product not in turned else "first" if begins else "inner"


def _reach(
    nodes: Sequence[Node], bits: Mapping[Node, int]
) -> tuple[dict[Node, int], dict[int, int]]:
    """Return the products that each depends on, as sets of bits of products.

    These are those with none in between, by node, and all of them, by the product's bit.
    """
    near: dict[Node, int] = {}
    behind: dict[int, int] = {}
    seen: dict[Node, tuple[int, int]] = {}
    for node in nodes:
        data = node.data if node in bits else [n for n in node.inputs if n is not None]
        direct, whole = _union(seen[n][0] for n in data), _union(seen[n][1] for n in data)
        if bit := bits.get(node):
            near[node], behind[bit] = direct, whole
            direct, whole = bit, whole | bit
        seen[node] = direct, whole
    return near, behind


def _union(sets: Iterable[int]) -> int:
    return reduce(or_, sets, 0)


def _bits(number: int) -> Iterator[int]:
    while number:
        yield number & -number
        number &= number - 1


def _uses(product: Node) -> Iterator[tuple[_Edge, int]]:
    """Yield the weights of a product, without transposes, and the axis that it sums over."""
    edges = product.raw.next_functions
    held = {n.raw for n in product.weights}
    # The second factor is summed over its first axis, the first one over its second; a linear
    # function transposes its weight.
    factors = []
    if product.operation == "opaque":
        factors = [(edge, _UNKNOWN) for edge in edges]
    elif product.raw.name().lower().startswith(("linear", "mkldnnlinear")):
        factors = [(edges[1], _COLUMNS)]
    elif product.operation == "product":
        factors = [(edges[-1], _ROWS), (edges[-2], _COLUMNS)]
    for edge, side in factors:
        if edge[0] not in held:
            continue
        while _transposes(edge[0]):
            edge = edge[0].next_functions[0]
            side = side if side == _UNKNOWN else 1 - side
        yield edge, side


def _transposes(raw: Any) -> bool:
    """Return whether a node turns a matrix, or each one in a stack."""
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
