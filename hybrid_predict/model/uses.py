"""Follows the uses of matrices through a full step, to see which of them end the network."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from hybrid_predict.ranks import shards

_PRODUCT = re.compile(
    r"\w*(mm|mv|matmul|linear|conv(?!ert)\w*|rnn\w*|lstm\w*)(_activation|_dtype|_backward)?"
)
"""Names of operations that multiply their inputs as matrices."""

_RECURRENT = re.compile(r"\w*(rnn|lstm)\w*")
"""Names of products that use several matrices one after the other."""

_GATHERING = re.compile(r"sum|mean|prod|amax|amin|logsumexp|norm|linalg_vector_norm|cat|stack")
"""Names of operations after which a matrix that data were combined with is no weight any more."""

NONE: frozenset[int] = frozenset()


@final
@dataclass
class Findings:
    """What losses have shown, as sets of the ``id`` of matrices."""

    heads: set[int] = field(default_factory=set)  # in a product that none with a matrix follows
    inside: set[int] = field(default_factory=set)  # in a product that others follow
    tables: set[int] = field(default_factory=set)  # in which rows are looked up
    elementwise: set[int] = field(default_factory=set)  # combined with data entry by entry
    weights: set[int] = field(default_factory=set)  # in a product, or in what may be one


@final
class _Flow(NamedTuple):
    """What a tensor is computed from: matrices by ``id``, and uses as the bits of a number."""

    weight: bool = False  # whether it is computed from parameters alone
    matrices: frozenset[int] = NONE  # in it; in data, those combined with it entry by entry
    free: int = 0  # uses that reach it with no other product in between
    behind: int = 0  # uses that reach it through another product


_NOTHING = _Flow()


@final
class MatrixUses:
    """Knows for every tensor of a full step which uses of matrices reach it.

    A use is one product of data with a matrix. When a later product takes its result in, it is
    inside the network; a use that reaches the loss without one is that of a head. Products of
    parameters alone are weights, so a network on learned inputs shows no head. Tensors are referred
    to weakly. ``findings`` is what the losses so far have shown, see :meth:`add`.
    """

    def __init__(self, model: nn.Module) -> None:
        self.findings = Findings()
        self._flows: Any = WeakTensorKeyDictionary()
        self._held: Any = WeakTensorKeyDictionary()  # of parameters, also while updates write them
        self._uses: list[frozenset[int]] = []
        self._sharded = bool(shards.keepers(model))
        self._places = [
            (module, name, frozenset([id(p)]) if shards.form(p).dim() > 1 else NONE)
            for module in model.modules()
            for name, p in module._parameters.items()
            if p is not None
        ]
        self._hold()

    def _hold(self) -> None:
        """Note what is in the places of parameters; FSDP puts whole ones there in a forward."""
        for module, name, matrices in self._places:
            self._held[_local(getattr(module, name))] = _Flow(True, matrices)

    def see(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Follow one operation, as the dispatcher has it, from its inputs to its outputs."""
        derivative = torch._C._current_autograd_node() is not None
        if derivative and not torch.is_grad_enabled():
            return  # a backward pass whose results reach no loss
        called = func.__name__.split(".")[0]
        name = called.rstrip("_")
        if name.endswith("_like") or name.startswith("new_"):
            return  # no value flows
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        inputs = [x for x in given if x.is_floating_point() or x.is_complex()]
        if not inputs:
            return
        outputs = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
        flows = [self._flow(x) for x in inputs]
        matrices = NONE.union(*(flow.matrices for flow in flows if flow.weight))
        foreign = getattr(func, "namespace", "") not in ("aten", "prims")
        if name.startswith(("embedding", "_embedding")):
            self.findings.tables |= matrices
            flow = _NOTHING
        elif matrices and foreign and not all(flow.weight for flow in flows):
            self.findings.weights |= matrices
            flow = _NOTHING  # it may be any function
        elif _PRODUCT.fullmatch(name):
            self.findings.weights |= matrices or _joined(flows[1:2] or flows).matrices
            flow = self._multiply(flows, matrices, derivative, bool(_RECURRENT.fullmatch(name)))
        else:
            flow = self._combine(name, inputs, flows, outputs)
        for x in outputs:
            self._flows[_local(x)] = flow
            if called.endswith("_") and x._base is not None:  # written through a view
                self._flows[_local(x._base)] = _joined([self._flow(x._base), flow])

    def add(self, loss: Tensor) -> None:
        """Add the heads that a loss shows, and the matrices inside."""
        flow = self._flow(loss)
        self.findings.heads |= self._matrices(flow.free & ~flow.behind)
        self.findings.inside |= self._matrices(flow.behind)

    def _matrices(self, uses: int) -> frozenset[int]:
        return NONE.union(*(m for k, m in enumerate(self._uses) if uses >> k & 1))

    def _known(self, x: Tensor) -> _Flow | None:
        found: _Flow | None = self._held.get(_local(x)) or self._flows.get(_local(x))
        return found

    def _flow(self, x: Tensor) -> _Flow:
        """Return what a tensor is computed from; nothing if gradients do not go back through it."""
        flow = self._known(x)
        if flow is None and x._base is not None:  # of another class, which no operation made
            flow = self._known(x._base)
        if self._sharded and x.requires_grad and flow in (None, _NOTHING):
            self._hold()
            flow = self._known(x)
        flow = flow or _NOTHING
        # Inside functions of the user's, tensors need no gradient but their outputs do.
        if not torch.is_grad_enabled() or x.requires_grad:
            return flow
        return _Flow(True, flow.matrices) if flow.weight else _NOTHING

    def _combine(
        self, name: str, inputs: Sequence[Tensor], flows: Sequence[_Flow], outputs: Sequence[Tensor]
    ) -> _Flow:
        """Return the result of an operation element by element, a sum, or a change of form.

        Attention vectors of graph networks, inducing points of Gaussian processes and learned
        positions are multiplied with data, subtracted or added. A weight that a constant changes,
        such as a mask or noise, is still a weight.
        """
        joined = _joined(flows)
        if all(flow.weight for flow in flows):
            return joined._replace(weight=True)
        sizes = [x.numel() for x, flow in zip(inputs, flows, strict=True) if flow.weight]
        constant = all(flow.weight or flow == _NOTHING for flow in flows)
        if sizes and constant and all(x.numel() <= max(sizes) for x in outputs):
            return joined._replace(weight=True)
        if torch.is_grad_enabled():
            self.findings.elementwise |= joined.matrices
        return joined._replace(
            weight=False, matrices=NONE if _GATHERING.fullmatch(name) else joined.matrices
        )

    def _multiply(
        self, flows: Sequence[_Flow], matrices: frozenset[int], derivative: bool, recurrent: bool
    ) -> _Flow:
        """Return the result of a product, and count the use of a matrix with data.

        The derivative of a layer multiplies with its matrix in the other direction, so the products
        of a backward pass show no place. Matrices of recurrent layers are always inside.
        """
        joined = _joined(flows)
        if all(flow.weight for flow in flows):
            return joined._replace(weight=True)
        if not matrices and forward_ad._current_level >= 0:
            # The derivative in forward mode multiplies a layer's inputs with that of its weight.
            return _Flow(behind=joined.behind | joined.free)
        if derivative or not matrices:
            return _Flow(free=0 if matrices else joined.free, behind=joined.behind)
        use = 1 << len(self._uses)
        self._uses.append(matrices)
        behind = joined.behind | joined.free
        return _Flow(behind=behind | use) if recurrent else _Flow(free=use, behind=behind)


def _joined(flows: Sequence[_Flow]) -> _Flow:
    return _Flow(
        any(flow.weight for flow in flows),
        NONE.union(*(flow.matrices for flow in flows)),
        reduce(or_, (flow.free for flow in flows), 0),
        reduce(or_, (flow.behind for flow in flows), 0),
    )


def _local(x: Tensor) -> Tensor:
    """Return what a DTensor holds: functions of torch pass it on without the DTensor."""
    return getattr(x, "_local_tensor", x)
