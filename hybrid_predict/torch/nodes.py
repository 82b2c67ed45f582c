"""The nodes of an autograd graph, what each is computed from, and the weights of its products."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
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
    "sum": r"add|sub|where|cdist|euclideandist",
    "joint": r"cat|stack",
    "scale": r"mul|div",
    "reduction": r"sum|mean|prod|amax|amin|logsumexp|norm|linalgvectornorm",
    "compiled": r"compiledfunction",
    "opaque": r".*(cppnode|differentiablegraph).*",
}
"""Operations by the node's name without ``Backward0``; all others work element by element."""

UNKNOWN = ("opaque", "compiled")
MULTIPLYING = ("product", "convolution", "recurrent", *UNKNOWN)
_IDENTITY = ("_DDPSink", "RegisterPostBackwardFunction", "_ToTorchTensor", "_FromTorchTensor")
"""Python functions that return their input unchanged."""

NONE: frozenset[int] = frozenset()


@final
@dataclass(frozen=True)
class MatrixIndex:
    """The parameters of a model by ``id``, as needed to find its matrices in a graph.

    Args:
        matrices: Trained parameters of two or more dimensions.
        vectors: All other trained parameters.
        networks: Matrices of each network that an optimizer of its own trains. Those of others do
            not count for it, so that a generator followed by its discriminator has a head.
        frozen: Shapes of frozen weights; a constant of such a shape counts as a matrix.
        linear: Weights of linear layers.
        stand_ins: Parameter that a tensor in the graph stands for, by its ``id``; or that an output
            of its split does, by that and the number of the output.
    """

    matrices: Mapping[int, Tensor]
    vectors: frozenset[int]
    networks: Sequence[frozenset[int]]
    frozen: frozenset[tuple[int, ...]]
    linear: frozenset[int] = frozenset()
    stand_ins: Mapping[Hashable, int] = field(default_factory=dict)


@final
class Node:
    """A node of a graph.

    Attributes:
        raw: The node of autograd.
        inputs: Its inputs; None for a constant.
        key: ``id`` of the tensor, if no operation has made it.
        operation: The operation from the table; ``opaque`` if it is unknown.
        alone: Whether it is computed from parameters alone.
        plain: Matrices in it, if it is, that were not multiplied with each other.
        multiplied: Matrices in it, if it is, that were, such as the factors of a low-rank weight.
        weights: The matrices that are weights of its product, by the input that holds them.
        turned: "first" or "inner" if a backward pass has made its product: that of the network's
            last layer or another one; "unsure" if it may be such a first one, or a layer of
            constants.
    """

    def __init__(self, raw: Any, inputs: Sequence[Node | None], index: MatrixIndex) -> None:
        self.raw, self.inputs = raw, inputs
        self.operation = _operation(raw)
        self.alone, self.plain, self.multiplied = False, NONE, NONE
        self.weights: dict[Node, frozenset[int]] = {}
        self.turned = ""
        key = self.key = _parameter(raw, index)
        if key is not None:
            self.alone = key in index.matrices or key in index.vectors
            self.plain = frozenset([key]) & index.matrices.keys()
            return
        given = [n for n in inputs if n is not None]
        self._combine(given, index)
        if self.operation in MULTIPLYING:
            plain = {n: n.plain for n in given if n.plain}
            self.weights = plain or {n: n.multiplied for n in given if n.multiplied}

    @property
    def data(self) -> list[Node]:
        """Its inputs that are no weights."""
        return [n for n in self.inputs if n is not None and n not in self.weights]

    def shape(self, number: int = 0) -> tuple[int, ...]:
        """Return the shape of an output, or () if it is unknown."""
        outputs = getattr(self.raw, "_input_metadata", ())
        known = number < len(outputs) and not getattr(outputs[number], "is_nested_tensor", False)
        return tuple(outputs[number].shape) if known else ()

    def _combine(self, given: Sequence[Node], index: MatrixIndex) -> None:
        """Find out whether it is computed from parameters alone, and from which matrices."""
        operation = self.operation
        plain, multiplied = union(n.plain for n in given), union(n.multiplied for n in given)
        if operation in ("lookup", "recurrent") or not all(n.alone for n in given):
            return
        if operation in UNKNOWN:
            # An unknown function that rounds or masks a weight keeps its shape.
            shapes = {tuple(index.matrices[key].shape) for key in plain}
            self.alone = len(plain) == 1 and self.shape() in shapes
            self.plain = plain if self.alone else NONE
        elif operation in MULTIPLYING:
            self.alone = sum(bool(n.plain or n.multiplied) for n in given) > 1
            self.multiplied = plain | multiplied if self.alone else NONE
        else:
            # Data need no gradient in a first layer, where a scale or learned positions meet them.
            meets = len(given) < len(self.inputs) and operation in ("sum", "joint", "scale")
            if meets and math.prod(self.shape()) > max(math.prod(n.shape()) for n in given):
                return
            self.alone, self.multiplied = True, multiplied
            self.plain = NONE if meets and operation != "scale" else plain


def read(loss: Tensor, index: MatrixIndex) -> list[Node]:
    """Return all nodes of the graph of a loss, each one after its inputs.

    Tensors that the graph has saved are not read, because checkpointed parts would be recomputed.
    """
    nodes: dict[Any, Node | None] = {None: None}
    seen, stack = {None, loss.grad_fn}, [(loss.grad_fn, iter(_inputs(loss.grad_fn, index)))]
    while stack:
        raw, rest = stack[-1]
        following = next((n for n in rest if n not in seen), None)
        if following is None:
            nodes[raw] = Node(raw, [nodes[n] for n in _inputs(raw, index)], index)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(_inputs(following, index))))
    return [node for node in nodes.values() if node is not None]


def union(sets: Iterable[frozenset[int]]) -> frozenset[int]:
    """Return the union of sets."""
    return NONE.union(*sets)


def _inputs(raw: Any, index: MatrixIndex) -> list[Any]:
    return [] if _parameter(raw, index) is not None else [n for n, _ in raw.next_functions]


def _parameter(raw: Any, index: MatrixIndex) -> int | None:
    """Return the ``id`` of a leaf, or of the parameter that it or its part stands for."""
    if _is_leaf(raw):
        return index.stand_ins.get(id(raw.variable), id(raw.variable))
    if len(raw.next_functions) != 1 or not index.stand_ins:
        return None
    split, number = raw.next_functions[0]
    wholes = [n for n, _ in split.next_functions] if split is not None else []
    if len(wholes) != 1 or not _is_leaf(wholes[0]):
        return None
    return index.stand_ins.get((id(wholes[0].variable), number))


def _is_leaf(raw: Any) -> bool:
    # A function of the user's may have an attribute of this name as well.
    return not raw.next_functions and hasattr(raw, "variable")


def _operation(raw: Any) -> str:
    operation, name = _named(raw.name())
    custom = isinstance(raw, BackwardCFunction) and operation != "compiled"
    return "opaque" if custom and name not in _IDENTITY else operation


@lru_cache(1024)
def _named(name: str) -> tuple[str, str]:
    stem = re.sub(r"Backward\d*(_\w+)?$", "", name)
    fitting = (k for k, p in _OPERATIONS.items() if re.fullmatch(p, stem, re.I))
    return next(fitting, ""), stem
