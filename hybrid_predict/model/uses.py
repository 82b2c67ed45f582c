"""Follows the uses of matrices through a full step, to see which of them end the network."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils.weak import WeakTensorKeyDictionary

from hybrid_predict.ranks import shards

_PRODUCT = re.compile(
    r"\w*(mm|mv|matmul|linear|conv(?!ert)\w*|rnn\w*|lstm\w*)(_activation|_dtype|_backward)?"
)
"""Names of operations that multiply their inputs as matrices."""

_RECURRENT = re.compile(r"\w*(rnn|lstm)\w*")
"""Names of products that use several matrices one after the other."""

_SUMS = ("sum", "mean", "prod", "amax", "amin", "logsumexp", "norm", "linalg_vector_norm")
_JOINED = ("cat", "stack")

NONE: frozenset[int] = frozenset()


@final
@dataclass(frozen=True)
class MatrixIndex:
    """The trained matrices of a model by ``id``.

    Args:
        matrices: Trained parameters of two or more dimensions.
        networks: Matrices of each network that an optimizer of its own trains. Those of others do
            not count for it, so that a generator followed by its discriminator has a head.
    """

    matrices: Mapping[int, Tensor]
    networks: Sequence[frozenset[int]]


@final
@dataclass
class Findings:
    """What losses have shown, as sets of the ``id`` of trained matrices.

    Attributes:
        heads: Matrices in a product that no product with another matrix follows.
        inside: Matrices in a product that products with other matrices follow.
        tables: Matrices in which rows are looked up.
        elementwise: Matrices that are combined with data element by element.
        weights: Matrices in a product, or in what may be one.
    """

    heads: set[int] = field(default_factory=set)
    inside: set[int] = field(default_factory=set)
    tables: set[int] = field(default_factory=set)
    elementwise: set[int] = field(default_factory=set)
    weights: set[int] = field(default_factory=set)


@final
class _Flow(NamedTuple):
    """What a tensor is computed from: matrices by ``id``, and uses as the bits of a number.

    Args:
        weight: Whether it is computed from parameters alone.
        plain: Matrices in it, if it is, that were not multiplied with each other.
        multiplied: Matrices in it, if it is, that were, such as the factors of a low-rank weight.
        frozen: Whether a matrix in it is frozen.
        mixed: Matrices that data were combined with, so that a product with it may use them.
        free: Uses that reach it with no other product in between.
        behind: Uses that reach it through another product.
    """

    weight: bool = False
    plain: frozenset[int] = NONE
    multiplied: frozenset[int] = NONE
    frozen: bool = False
    mixed: frozenset[int] = NONE
    free: int = 0
    behind: int = 0

    @property
    def matrices(self) -> frozenset[int]:
        """All matrices in a weight."""
        return self.plain | self.multiplied


_NOTHING = _Flow()


@final
class MatrixUses:
    """Knows for every tensor of a full step which uses of matrices reach it.

    A use is one product of data with a matrix. When a later product takes its result in, it is
    inside the network; a use that reaches the loss without one is that of a head. Tensors are
    referred to weakly.

    Args:
        model: The model.
        index: Its trained matrices.

    Attributes:
        findings: What the losses so far have shown, see :meth:`add`.
    """

    def __init__(self, model: nn.Module, index: MatrixIndex) -> None:
        self.findings = Findings()
        self._model = model
        self._trained = index.matrices
        self._flows: Any = WeakTensorKeyDictionary()
        self._parameters: set[int] = set()
        self._uses: list[frozenset[int]] = []
        self._several = 0  # uses of several matrices at once, of which each may be the last
        union = NONE.union(*index.networks)
        self._others = [union - network for network in index.networks] or [NONE]
        self._of_network = [0] * len(self._others)
        self._stand_ins = shards.stand_ins(model)
        for p in model.parameters():
            self._hold(p, id(p), frozen=not p.requires_grad and shards.form(p).dim() > 1)

    def see(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Follow one operation, as the dispatcher has it, from its inputs to its outputs."""
        derivative = torch._C._current_autograd_node() is not None
        if derivative and not torch.is_grad_enabled():
            return  # a backward pass whose results reach no loss
        called = func.__name__.split(".")[0]
        name = called.rstrip("_")
        if name.endswith("_like") or name.startswith("new_"):
            return  # no value flows
        given = [*_tensors(args), *_tensors(x for k, x in kwargs.items() if k != "out")]
        inputs = [x for x in given if x.is_floating_point() or x.is_complex()]
        if not inputs:
            return
        outputs = list(_tensors([result]))
        if self._stand_ins and name.startswith("split") and self._split(given, outputs):
            return
        flows = [self._flow(x) for x in inputs]
        if name.startswith(("embedding", "_embedding")):
            self.findings.tables |= _joined(flows).matrices
            flow = _NOTHING
        elif _PRODUCT.fullmatch(name) or (_is_foreign(func) and not all(f.weight for f in flows)):
            several = _is_foreign(func) or bool(_RECURRENT.fullmatch(name))
            factors = flows[1:2] if "conv" in name else flows
            flow = self._multiply(flows, factors, derivative, several)
        else:
            flow = self._combine(name, inputs, flows, outputs)
        for x in outputs:
            self._note(x, flow)
            if called.endswith("_") and x._base is not None:  # written through a view
                self._note(x._base, _joined([self._flow(x._base), flow]))

    def add(self, loss: Tensor) -> None:
        """Add the heads that a loss shows, and the matrices inside."""
        flow = self._flow(loss)
        self.findings.heads |= self._matrices(flow.free & ~flow.behind & ~self._several)
        self.findings.inside |= self._matrices(flow.behind)

    def _matrices(self, uses: int) -> frozenset[int]:
        return NONE.union(*(m for k, m in enumerate(self._uses) if uses >> k & 1))

    def _hold(self, p: Tensor, key: int, *, frozen: bool = False) -> None:
        """Note a tensor that is a parameter or stands for one, as long as the model lives."""
        self._flows[_local(p)] = self._weight(key)._replace(frozen=frozen)
        self._parameters.add(id(_local(p)))

    def _weight(self, key: int) -> _Flow:
        return _Flow(True, frozenset([key]) if key in self._trained else NONE)

    def _split(self, given: Sequence[Tensor], outputs: Sequence[Tensor]) -> bool:
        """Take the parts of a flat parameter as the parameters that they stand for."""
        found = False
        for k, x in enumerate(outputs):
            if (key := self._stand_ins.get((id(given[0]), k))) is not None:
                self._flows[x] = self._weight(key)
                found = True
        return found

    def _flow(self, x: Tensor) -> _Flow:
        """Return what a tensor is computed from; nothing if gradients do not go back through it."""
        flow: _Flow | None = self._flows.get(_local(x))
        if flow is None and x._base is not None:  # of another class, which no operation made
            flow = self._flows.get(_local(x._base))
        if flow is None and isinstance(x, nn.Parameter):
            # FSDP2 makes the full parameters in the first forward pass.
            self._stand_ins = shards.stand_ins(self._model)
            if (key := self._stand_ins.get(id(x))) is not None:
                self._hold(x, key)
        flow = flow or self._flows.setdefault(_local(x), _NOTHING)
        # Inside functions of the user's, tensors need no gradient but their outputs do.
        cut = torch.is_grad_enabled() and not x.requires_grad
        return flow._replace(free=0, behind=0, mixed=NONE) if cut else flow

    def _note(self, x: Tensor, flow: _Flow) -> None:
        local = _local(x)
        if id(local) not in self._parameters:  # which an update has written
            self._flows[local] = flow

    def _combine(
        self, name: str, inputs: Sequence[Tensor], flows: Sequence[_Flow], outputs: Sequence[Tensor]
    ) -> _Flow:
        """Return the result of an operation element by element, a sum, or a change of form.

        Attention vectors of graph networks, inducing points of Gaussian processes and learned
        positions are multiplied with data, subtracted or added, so that the result has the data's
        shape. A matrix that keeps its own shape is still a weight, such as one that gets noise.
        """
        joined = _joined(flows)
        sizes = [x.numel() for x, flow in zip(inputs, flows, strict=True) if flow.weight]
        alone = len(sizes) == len(flows) > 0
        if name in ("mul", "div") and sizes and outputs:  # by a mask, or by a constant
            constant = all(flow.weight or flow == _NOTHING for flow in flows)
            alone = alone or (constant and outputs[0].numel() <= max(sizes))
        if alone:
            return joined._replace(weight=True, mixed=NONE)
        met = joined.matrices
        if met and outputs and torch.is_grad_enabled():
            shape = _sizes(outputs[0].shape)
            known = self._trained
            changed = {key for key in met if _sizes(known[key].shape) != shape}
            self.findings.elementwise |= changed
        mixed = NONE if name in _SUMS or name in _JOINED else joined.mixed | met
        return _Flow(mixed=mixed, free=joined.free, behind=joined.behind)

    def _multiply(
        self, flows: Sequence[_Flow], factors: Sequence[_Flow], derivative: bool, several: bool
    ) -> _Flow:
        """Return the result of a product, and count the use of a matrix with data.

        The derivative of a layer multiplies with its matrix in the other direction, so the products
        of a backward pass show no place.
        """
        joined = _joined(flows)
        free = joined.free
        behind = joined.behind
        frozen = joined.frozen
        matrices = joined.plain or joined.multiplied
        self.findings.weights |= matrices or _joined(factors).mixed
        if derivative:
            return _Flow(free=0 if matrices or frozen else free, behind=behind)
        alone = all(flow.weight for flow in flows)
        # In a network on learned inputs, the products of other matrices are data.
        data = [f for f in flows if not f.matrices and (f.frozen or not f.weight)]
        data += [f for f in flows if joined.plain and f.multiplied]
        if matrices and data:
            use, before = self._use(matrices, several)
            kept = joined.matrices if alone and not frozen else NONE
            passed = free & ~before | use
            return _Flow(bool(kept), multiplied=kept, free=passed, behind=behind | free & before)
        if alone:
            both = joined.matrices
            return _Flow(True, multiplied=both, frozen=frozen, free=free, behind=behind)
        # The derivative in forward mode multiplies a layer's inputs with that of its weight, too.
        ends = frozen or forward_ad._current_level >= 0
        return _Flow(free=0 if ends else free, behind=behind | free if ends else behind)

    def _use(self, matrices: frozenset[int], several: bool) -> tuple[int, int]:
        """Add a use, and return its bit with those of all uses that it may follow."""
        use = 1 << len(self._uses)
        before = 0
        self._uses.append(matrices)
        if several and len(matrices) > 1:
            self._several |= use
        for k, others in enumerate(self._others):
            if matrices - others:
                before |= self._of_network[k]
                self._of_network[k] |= use
        return use, before


def _joined(flows: Sequence[_Flow]) -> _Flow:
    """Return what several tensors are computed from together."""
    return _Flow(
        any(flow.weight for flow in flows),
        NONE.union(*(flow.plain for flow in flows)),
        NONE.union(*(flow.multiplied for flow in flows)),
        any(flow.frozen for flow in flows),
        NONE.union(*(flow.mixed for flow in flows)),
        reduce(or_, (flow.free for flow in flows), 0),
        reduce(or_, (flow.behind for flow in flows), 0),
    )


def _is_foreign(func: Any) -> bool:
    """Return whether an operation is none of torch's own, so that it may be any function."""
    return getattr(func, "namespace", "") not in ("aten", "prims")


def _sizes(shape: Sequence[int]) -> list[int]:
    return sorted(size for size in shape if size > 1)


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _local(x: Tensor) -> Tensor:
    """Return what a DTensor holds: functions of torch pass it on without the DTensor."""
    return getattr(x, "_local_tensor", x)
