"""Finds in the graph of a loss the matrices that meet data element by element, not in a product."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hybrid_predict.torch.nodes import PRODUCTS, inputs_of, operation_of, shape_of
from hybrid_predict.torch.operands import MatrixIndex, Operand, weights_of

_NONE: frozenset[int] = frozenset()


def elementwise_and_weights(
    nodes: Sequence[Any], operands: Mapping[Any, Operand | None], index: MatrixIndex
) -> tuple[set[int], set[int]]:
    """Find how matrices are used: element by element, and as weights of a product.

    Attention vectors of graph networks, inducing points of Gaussian processes and learned positions
    are multiplied with data, subtracted or added, so that the result has the data's shape. A matrix
    that keeps its own shape is still a weight, such as one that gets noise or an inner update. It
    may also be one if the product of two data has a factor that it was scaled into, as in a
    convolution whose weight depends on a style.

    Args:
        nodes: All nodes of the graph, each one after its inputs.
        operands: What each node is computed from.
        index: The parameters of the model.

    Returns:
        Both as sets of ``id``; a matrix may be in both or in none.
    """
    elementwise: set[int] = set()
    weights: set[int] = set()
    near: dict[Any, frozenset[int]] = {None: _NONE}
    for node in nodes:
        inputs, operation = inputs_of(node), operation_of(node)
        near[node] = _NONE
        if operation in (*PRODUCTS, "opaque", "compiled"):
            held = weights_of(node, operands).values()
            factors = inputs[1:2] if operation == "convolution" else inputs
            weights.update(*(held or (near[n] for n in factors)))
        elif operation != "lookup":
            met = _union(operands[n] for n in inputs) - _union([operands[node]])
            shape = _sizes(shape_of(node))
            elementwise |= {key for key in met if _sizes(index.matrices[key].shape) != shape}
            if operation not in ("reduction", "joint"):
                near[node] = met.union(*(near[n] for n in inputs))
    return elementwise, weights


def _union(operands: Iterable[Operand | None]) -> frozenset[int]:
    return _NONE.union(*(o.plain | o.multiplied for o in operands if o))


def _sizes(shape: Sequence[int]) -> list[int]:
    return sorted(size for size in shape if size > 1)
