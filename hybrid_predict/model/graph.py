"""Finds in the autograd graph of a loss which matrices are at its end and which are inside."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, final

from torch import Tensor
from torch.autograd.function import BackwardCFunction

_OPERATIONS = {
    "product": r"\w*mm(activation|dtype|v2)?|(add)?mv|\w*matmul|(mkldnn)?linear|trilinear",
    "convolution": r"\w*conv\w*",
    "recurrent": r"\w*rnn\w*|lstmmps",
    "lookup": r"embedding\w*",
    "sum": r"add|sub|cat|stack|where",
    "compiled": r"compiledfunction",
    "opaque": r".*(cppnode|differentiablegraph).*",
}
"""Operations by the node's name without ``Backward0``; all others work element by element."""

_PRODUCTS = ("product", "convolution", "recurrent")
_IDENTITY = ("_DDPSink", "RegisterPostBackwardFunction", "_ToTorchTensor", "_FromTorchTensor")
"""Python functions that return their input unchanged."""

_FREE, _UNSURE, _BEHIND = 1, 2, 4
"""Paths from the loss to a node: through no matrix, possibly through one, through one."""


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
        aliases: ``id`` of the parameter that a tensor in the graph stands for, by ``id`` of that
            tensor.
    """

    matrices: Mapping[int, Tensor]
    vectors: frozenset[int]
    networks: Sequence[frozenset[int]]
    frozen: frozenset[tuple[int, ...]]
    aliases: Mapping[int, int] = field(default_factory=dict)

    def key(self, leaf: Any) -> int:
        """Return the ``id`` of the parameter at a leaf of the graph."""
        key = id(leaf.variable)
        return self.aliases.get(key, key)


@final
@dataclass
class GraphFindings:
    """What the graphs of losses have shown, as sets of the ``id`` of parameters.

    Attributes:
        heads: Matrices in a product that no product with another matrix follows.
        inside: Matrices in a product that products with other matrices follow.
        tables: Matrices in which rows are looked up.
        reached: All parameters that a loss depends on.
    """

    heads: set[int] = field(default_factory=set)
    inside: set[int] = field(default_factory=set)
    tables: set[int] = field(default_factory=set)
    reached: set[int] = field(default_factory=set)

    def add(self, loss: Tensor, index: MatrixIndex) -> None:
        """Walk the graph of a loss, before or after its backward pass, without changing it.

        Tensors that the graph has saved are not read, because checkpointed parts would be
        recomputed.
        """
        nodes = _from_leaves(loss.grad_fn)
        self.reached |= {index.key(n) for n in nodes if _is_leaf(n)}
        operands: dict[Any, _Operand | None] = {None: None}
        slopes: set[Any] = set()
        for node in nodes:
            inputs = _inputs(node)
            operands[node] = _operand(node, [operands[n] for n in inputs], index)
            if "BackwardBackward" in node.name() or not slopes.isdisjoint(inputs):
                slopes.add(node)
        for network in index.networks:
            others = frozenset().union(*index.networks) - network
            _Walk(self, operands, slopes, index, others).run(nodes)


@final
@dataclass(frozen=True)
class _Operand:
    """A tensor in the graph that is computed from parameters alone.

    Args:
        plain: Matrices in it that were not multiplied with each other.
        multiplied: Matrices in it that were, such as the factors of a low-rank weight.
    """

    plain: frozenset[int] = frozenset()
    multiplied: frozenset[int] = frozenset()


@final
class _Walk:
    """One pass from a loss to the leaves, for the matrices of one network."""

    def __init__(
        self,
        found: GraphFindings,
        operands: Mapping[Any, _Operand | None],
        slopes: Set[Any],
        index: MatrixIndex,
        others: frozenset[int],
    ) -> None:
        self._found, self._operands, self._slopes = found, operands, slopes
        self._index, self._others = index, others
        self._paths: dict[Any, int] = {}

    def run(self, nodes: Sequence[Any]) -> None:
        """Visit all nodes; ``nodes`` are ordered from the leaves to the loss."""
        self._paths[nodes[-1]] = _FREE
        for node in reversed(nodes):
            if paths := self._paths.get(node, 0):
                self._visit(node, paths)

    def _visit(self, node: Any, paths: int) -> None:
        inputs = [n for n in _inputs(node) if n is not None]
        operation = _operation(node)
        if "BackwardBackward" in node.name():  # inside a derivative the order is not known
            paths = _UNSURE
        opaque = operation in ("opaque", "compiled")
        plain = {n: o.plain for n in inputs if (o := self._operands[n]) and o.plain}
        if operation == "lookup":
            self._found.tables.update(*plain.values())
            return
        if operation not in _PRODUCTS and not opaque:
            self._pass(inputs, paths)
            return
        weights = plain or {
            n: o.multiplied for n in inputs if (o := self._operands[n]) and o.multiplied
        }
        data = [n for n in inputs if n not in weights]
        own = frozenset().union(*weights.values()) - self._others
        several = len(own) > 1 and (opaque or operation == "recurrent")
        # A product of weights alone, as in a penalty, does not show the place of these weights. In
        # a gradient penalty the first matrix is the last factor.
        known = None in _inputs(node) or any(self._varies(n) for n in data)
        if own and known and self._slopes.isdisjoint(data):
            self._record(own, paths | _UNSURE if several else paths)
        if opaque and (several or not own or operation == "compiled"):
            paths = paths & ~_FREE | _UNSURE if paths & _FREE else paths
        elif own or (not weights and self._meets_frozen(node, data)):
            paths = _BEHIND
        self._pass(data, paths)

    def _varies(self, node: Any) -> bool:
        operand = self._operands[node]
        return operand is None or bool(operand.multiplied)

    def _record(self, matrices: Iterable[int], paths: int) -> None:
        if paths == _FREE:
            self._found.heads.update(matrices)
        elif paths & _BEHIND:
            self._found.inside.update(matrices)

    def _pass(self, inputs: Iterable[Any], paths: int) -> None:
        for node in inputs:
            self._paths[node] = self._paths.get(node, 0) | paths

    def _meets_frozen(self, node: Any, data: Sequence[Any]) -> bool:
        """Whether the other factor of the data has the shape of a frozen weight."""
        if _operation(node) == "recurrent":
            return True
        known = [n for n in data if self._operands[n] is None]
        if len(known) != 1 or not self._index.frozen:
            return False
        number = next(k for n, k in node.next_functions if n is known[0])
        into, out = _shape(known[0], number), _shape(node)
        if min(len(into), len(out)) < 2:
            return False
        axis = 1 if _operation(node) == "convolution" else -1
        if axis == -1 and _inputs(node)[-1] is known[0]:  # the data stand on the right
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


def _operand(node: Any, inputs: Sequence[_Operand | None], index: MatrixIndex) -> _Operand | None:
    """Return the parameters that a node's output is computed from; None if data take part."""
    if _is_leaf(node):
        key = index.key(node)
        if key in index.matrices:
            return _Operand(frozenset([key]))
        return _Operand() if key in index.vectors else None
    nodes, operation = _inputs(node), _operation(node)
    made = [o for n, o in zip(nodes, inputs, strict=True) if n is not None]
    known = [o for o in made if o is not None]
    plain = frozenset().union(*(o.plain for o in known))
    multiplied = frozenset().union(*(o.multiplied for o in known))
    if operation in ("opaque", "compiled"):
        # An unknown function that rounds or masks a weight keeps its shape.
        shapes = {tuple(index.matrices[key].shape) for key in plain}
        kept = len(plain) == 1 and _shape(node) in shapes
        return _Operand(plain) if kept and len(known) == len(made) else None
    if operation in ("lookup", "recurrent") or len(known) < len(made):
        return None
    if operation in _PRODUCTS:
        filled = [o for o in known if o.plain or o.multiplied]
        return _Operand(multiplied=plain | multiplied) if len(filled) > 1 else None
    # Learned positions are added to the data, which need no gradient in a first layer.
    added = None in nodes and operation == "sum"
    return _Operand(frozenset() if added else plain, multiplied)


def _from_leaves(root: Any) -> list[Any]:
    """Return all nodes of a graph, each one after its inputs."""
    order, seen, stack = [], {root}, [(root, iter(_inputs(root)))]
    while stack:
        node, rest = stack[-1]
        following = next((n for n in rest if n is not None and n not in seen), None)
        if following is None:
            order.append(node)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(_inputs(following))))
    return order


def _is_leaf(node: Any) -> bool:
    return not node.next_functions and hasattr(node, "variable")


def _inputs(node: Any) -> list[Any]:
    return [n for n, _ in node.next_functions]


def _shape(node: Any, number: int = 0) -> tuple[int, ...]:
    """Return the shape of an output of a node, or () if it is unknown."""
    told = getattr(node, "_input_metadata", ())
    known = number < len(told) and not getattr(told[number], "is_nested_tensor", False)
    return tuple(told[number].shape) if known else ()


def _operation(node: Any) -> str:
    """Return the operation of a node from the table; ``opaque`` if it is unknown."""
    found, name = _named(node.name())
    custom = isinstance(node, BackwardCFunction) and found != "compiled" and name not in _IDENTITY
    return "opaque" if custom else found


@lru_cache(1024)
def _named(name: str) -> tuple[str, str]:
    stem = re.sub(r"Backward\d*(_\w+)?$", "", name)
    fitting = (k for k, p in _OPERATIONS.items() if re.fullmatch(p, stem, re.I))
    return next(fitting, ""), stem
