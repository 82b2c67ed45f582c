"""Nodes of an autograd graph: their order, operations and shapes."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

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

PRODUCTS = ("product", "convolution", "recurrent")
_IDENTITY = ("_DDPSink", "RegisterPostBackwardFunction", "_ToTorchTensor", "_FromTorchTensor")
"""Python functions that return their input unchanged."""


def from_leaves(root: Any) -> list[Any]:
    """Return all nodes of a graph, each one after its inputs."""
    order, seen, stack = [], {root}, [(root, iter(inputs_of(root)))]
    while stack:
        node, rest = stack[-1]
        following = next((n for n in rest if n is not None and n not in seen), None)
        if following is None:
            order.append(node)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(inputs_of(following))))
    return order


def is_leaf(node: Any) -> bool:
    """Whether a node stands for a tensor that no operation has made."""
    return not node.next_functions and hasattr(node, "variable")


def inputs_of(node: Any) -> list[Any]:
    """Return the nodes of a node's inputs; None for a constant."""
    return [n for n, _ in node.next_functions]


def shape_of(node: Any, number: int = 0) -> tuple[int, ...]:
    """Return the shape of an output of a node, or () if it is unknown."""
    told = getattr(node, "_input_metadata", ())
    known = number < len(told) and not getattr(told[number], "is_nested_tensor", False)
    return tuple(told[number].shape) if known else ()


def operation_of(node: Any) -> str:
    """Return the operation of a node from the table; ``opaque`` if it is unknown."""
    found, name = _named(node.name())
    custom = isinstance(node, BackwardCFunction) and found != "compiled" and name not in _IDENTITY
    return "opaque" if custom else found


@lru_cache(1024)
def _named(name: str) -> tuple[str, str]:
    stem = re.sub(r"Backward\d*(_\w+)?$", "", name)
    fitting = (k for k, p in _OPERATIONS.items() if re.fullmatch(p, stem, re.I))
    return next(fitting, ""), stem
