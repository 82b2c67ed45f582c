"""Decides the kinds of parameters in the first full step, from what its losses show."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, final

from torch import Tensor

from hybrid_predict.config import KINDS
from hybrid_predict.errors import raise_interrupt
from hybrid_predict.model.cost import Follow
from hybrid_predict.model.kinds import matrix_index
from hybrid_predict.model.parameters import ParameterMapper
from hybrid_predict.model.uses import Findings, MatrixUses
from hybrid_predict.optimizers.wrapper import OptimizerWrapper
from hybrid_predict.ranks import processes

_NAMED = 3
"""Number of parameters that a message names; it counts the others."""


@final
class KindDecision:
    """Collects what the losses of a full step show, and decides the kinds of its parameters.

    While it is ``pending``, kinds are from names and shapes, as far as no loss has shown them.
    """

    def __init__(self, mapper: ParameterMapper) -> None:
        self._mapper = mapper
        self._index: dict[int, Tensor] = {}
        self._uses: MatrixUses | None = None
        self._seen: Findings | None = None
        self.pending = True

    def open(self, optimizer: OptimizerWrapper) -> None:
        """Start a full step: note what is trained, since the loop may freeze parameters in it."""
        self._uses = self._seen = None
        if self.pending:
            self._index = matrix_index(self._mapper.model, optimizer.numbers())
            self._uses = MatrixUses(self._mapper.model)

    @property
    def follower(self) -> Follow | None:
        """Follows the operations of the full step; None if nothing is left to decide."""
        return None if self._uses is None else self._see

    def _see(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        try:
            if self._uses is not None:
                self._uses.see(func, args, kwargs, result)
        except Exception as error:  # it must not end the user's forward pass
            self._uses = None
            raise_interrupt(error)

    def observe(self, loss: object) -> None:
        """Look at what reaches a loss, before or after its backward pass; the loss is not kept."""
        if not self.pending or not isinstance(loss, Tensor) or loss.grad_fn is None:
            return
        self._seen = self._seen or Findings()
        if self._uses is not None and not _has_compiled(loss):
            self._uses.add(loss)
            self._seen = self._uses.findings

    def decide(self, with_gradient: Collection[int], *, last: bool, late: bool) -> tuple[bool, str]:
        """Decide the kinds from the losses so far.

        Every rank has to call it; the result of rank 0 counts. Return whether a kind has changed,
        and an event for the ledger, if there is one. ``with_gradient`` has parameters by ``id``;
        all optimizers have decided with it if it is ``last`` and a loss was observed, or ``late``.
        """
        if processes.size() == 1 and self._seen is None and not late:
            return False, ""
        before = self._mapper.kinds
        answer = self._mapper.resolve(self._seen or Findings(), self._index, with_gradient)
        known, (kinds, unseen) = processes.gather((self._seen is not None, answer))[0]
        if known:
            self._mapper.assign(kinds)
        event = ""
        if late or (last and known):
            self.pending = False
            self._index = {}
            self._uses = self._seen = None
            if unseen:
                told = "the loss does not tell" if known else "no loss was passed to tell"
                reason = f"{told} heads from hidden matrices in {_listed(unseen)}"
                event = f"{reason}: decided by names and shapes"
        return self._mapper.kinds != before, event

    def describe(self) -> str:
        """Return how many trained parameters of each kind there are, and the names of some."""
        mapper = self._mapper
        rows = list(zip(mapper.names, mapper.parameters, mapper.kinds, strict=True))
        parts = []
        for kind in KINDS:
            if names := [name for name, p, own in rows if own == kind and p.requires_grad]:
                parts.append(f"{kind}: {_listed(names)}")
        return "; ".join(parts)

    def load(self, kinds: dict[str, str], *, pending: bool) -> None:
        """Load kinds by name; parameters that a state does not have keep theirs."""
        self._mapper.assign(kinds)
        self.pending = pending


def _listed(names: Sequence[str]) -> str:
    """Join the first few names, and count the others."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _has_compiled(loss: Tensor) -> bool:
    """Whether a part of a loss was compiled, whose operations are not all seen."""
    found = set()
    queue = [loss.grad_fn]
    for node in queue:
        if node is not None and node not in found:
            found.add(node)
            queue += [following for following, _ in node.next_functions]
    return any(node.name().startswith("CompiledFunction") for node in found)
