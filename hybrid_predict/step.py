"""The open full step: what it measures, its updates, and the end of its predicted steps."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch
from torch import Tensor

from hybrid_predict.groups.group import Group, OpenUpdate
from hybrid_predict.ledger import GradientInfo, SavingsLedger
from hybrid_predict.optimizers.wrapper import OptimizerWrapper, Options
from hybrid_predict.policy.schedule import Phase
from hybrid_predict.ranks import processes, shards
from hybrid_predict.tensors import lists

if TYPE_CHECKING:
    from hybrid_predict.forecast.predicted import PredictedSteps
    from hybrid_predict.policy.confidence import Window
    from hybrid_predict.policy.policy import Key

UNCOUNTED = "a state was saved between an update and after_step(), so it does not count the update"
"""Event for a saved state that does not go with the weights."""

Numbers = dict[str, list[float]]
"""The numbers of a `Measurement` of all ranks together, by name."""


@final
class Measurement(NamedTuple):
    """Numbers of a full step on the device, by name: tensors of shape (K,)."""

    norms: dict[str, Tensor]  # of this rank's shards; their squares add up over the ranks
    sums: dict[str, Tensor]  # what adds up over the ranks


def read(measured: Sequence[Measurement]) -> list[Numbers]:
    """Read numbers with a single all-reduce, and a single wait for the device."""
    columns = [each.norms for each in measured], [each.sums for each in measured]
    device = measured[0].sums["head"].device
    packed = [torch.cat([x.to(device) for part in c for x in part.values()]) for c in columns]
    numbers = iter(torch.cat(processes.combine(*packed)).tolist())
    found: list[Numbers] = [{} for _ in measured]
    for column in columns:
        for part, by_name in zip(column, found, strict=True):
            by_name |= {name: list(islice(numbers, x.numel())) for name, x in part.items()}
    return found


@final
class Step:
    """One full step with the predicted steps right before it, if any, as one transaction.

    It is opened before the forward pass, judged when the gradients of each optimizer are final, and
    closed after the updates.
    """

    def __init__(self, number: int, optimizer: OptimizerWrapper) -> None:
        self.number = number  # from 1
        self.phase = Phase.PLAIN
        self.watched = False  # whether the plug-in does anything in it
        self.prediction: PredictedSteps | None = None  # right before it
        self.corrected = False
        self.calls: Counter[int] = Counter()  # updates so far, by number of the optimizer
        self.active: int | None = None  # the optimizer that is updating
        self.skipped: set[int] = set()  # optimizers whose next or last update does not happen
        self.hook_seconds = self.predict_seconds = self.opened_at = 0.0
        # What was measured, as far as it is read:
        self.loss: float | None = None  # mean over the ranks
        self.norms: dict[str, float] = {}  # of the gradients
        self.slopes: list[float] = []  # `policy.verdict.Slopes`, empty without predicted steps
        self.windows: list[tuple[Key, Window]] = []  # that were closed
        self.stop = False  # whether any rank was asked to stop
        self._optimizer = optimizer
        self._updates: list[tuple[Group, OpenUpdate]] = []
        self._loss: Tensor | float | None = None  # of this rank
        self._has_gradients = False
        self._names: dict[int, list[str]] = {}  # what has a gradient, by number of the optimizer
        self._parameters: dict[str, Tensor] = {}  # of these names
        self._norms: dict[str, Tensor] = {}  # of the local shards of their gradients
        self._device: torch.device | None = None  # of the first of these
        self._slopes: list[Tensor] = []
        self.closed: list[tuple[Key, Callable[..., Window], Tensor]] = []  # windows and numbers

    @property
    def predicted(self) -> int:
        """Number of predicted steps right before it."""
        return 0 if self.prediction is None else self.prediction.count

    def observe_loss(self, loss: object) -> None:
        """Store the loss, if it is known before the update."""
        self._loss = self._loss if loss is None else mean_loss(loss)

    def observe_plain(self, loss: object, stop: bool | None) -> None:
        """Note the loss of plain training, unless reading it would wait, and agree on ``stop``."""
        if stop is not None:
            self.stop = processes.total(bool(stop)) > 0
        on_device = isinstance(loss, Tensor) and loss.device.type != "cpu"
        if self.loss is None and not on_device and processes.size() == 1:
            mean = mean_loss(loss)
            self.loss = None if mean is None else float(mean)

    @property
    def with_gradient(self) -> set[int]:
        """Parameters that have had a gradient, by ``id``."""
        return {*map(id, self._parameters.values())}

    def norm(self, optimizer: int) -> float:
        """Return the norm of an optimizer's gradients; nan if it has none, or one is not finite."""
        names = self._names.get(optimizer, ())
        return norm_of([self.norms[name] for name in names if name in self.norms])

    @property
    def info(self) -> GradientInfo | None:
        """Loss and gradients; None if no gradient was measured."""
        if not self.norms:
            return None
        alignments = {} if self.prediction is None else self.prediction.alignments(self.norms)
        loss = math.nan if self.loss is None else self.loss
        return GradientInfo(loss, norm_of(self.norms.values()), self.norms, alignments)

    def reopen(self, index: int) -> None:
        """Discard the verdict of an update that has raised; what it measured is replaced."""
        self._updates.clear()
        self.skipped.discard(index)
        if self.prediction is not None and not self.calls[index]:
            self.prediction.reopen()

    def measure(
        self, index: int, by_id: dict[int, str], options: Mapping[int, Options], loss: object
    ) -> Measurement | None:
        """Measure an optimizer's gradients before its update; return what :meth:`judge` reads."""
        optimizer: Any = self._optimizer.optimizers[index]
        listed = self._optimizer.parameters(index)
        held = shards.having_gradients(listed)
        if self.prediction is not None:
            reached = [*held, *[p for p in listed if p.requires_grad]]
            self.prediction.reached.update(map(id, reached))
        self.observe_loss(loss)
        self._has_gradients = bool(held)
        if self._optimizer.skips(index):
            self.skipped.add(index)
        if self.calls[index]:
            return None
        gradients = shards.dense_gradients(held)
        scale = getattr(optimizer, "grad_scale", None)
        norms = gradient_norms(gradients, scale)
        known = map(by_id.get, map(id, held))
        names = [name or f"unnamed.{index}.{k}" for k, name in enumerate(known)]
        self._names[index] = names
        self._parameters.update(zip(names, held, strict=True))
        self._norms.update(zip(names, norms, strict=True))
        if norms and self._device is None:
            self._device = norms[0].device
        if self.prediction is None or self.prediction.delta is None:
            return None
        by_name = dict(zip(names, gradients, strict=True))
        measured, dots = self.prediction.measure(index, by_name, options, scale)
        every = {"gradients": (norms, held), **measured}
        head = self._with_loss([float(self.prediction.is_back), float(index in self.skipped)])
        counted = {name: self._counted(*each) for name, each in every.items()}
        return Measurement(counted, {"head": head, "dots": dots})

    def judge(self, index: int, numbers: Numbers) -> None:
        """Hold back an optimizer's update if it does not verify the predicted steps."""
        assert self.prediction is not None
        names = self._names[index]
        self._take(names, numbers)
        norms = dict(zip(names, numbers["gradients"], strict=True))
        if self.prediction.judge(index, norms, self.loss, numbers):
            self.skipped.add(index)
            self._optimizer.hold_back(index)

    def open_updates(
        self, groups: Sequence[Group], options: Mapping[int, Options], *, correct: bool
    ) -> None:
        """Average the gradients of groups and find their corrected directions, before an update."""
        opened = [(g, g.open(self._optimizer, options, correct=correct)) for g in groups]
        self._updates = [(group, update) for group, update in opened if update is not None]

    def count_update(self, index: int) -> None:
        """Count an update of one optimizer, if it had gradients."""
        if self._has_gradients:
            self.calls[index] += 1
        self.active = None

    def learn(self, index: int, options: Mapping[int, Options]) -> None:
        """Correct the update that one optimizer has made, and learn its displacement."""
        updates = self._updates
        self._updates = []
        movement = None
        if self.prediction is not None and self.calls[index] == 1:
            movement = self.prediction.delta
        with torch.no_grad():
            for group, update in updates:
                slopes, closed = group.close(update, options, movement)
                self._slopes += slopes
                self.closed += closed
                self.corrected |= update.corrects

    def close_update(self, index: int) -> None:
        """After an update, undo its part of the predicted steps if they do not stand."""
        if self.prediction is not None and self.calls[index] == 1:
            self.prediction.settle(index, updated=index not in self.skipped)
        self.skipped.discard(index)  # only the first update of a full step verifies

    def close(self, loss: Tensor | float | None) -> None:
        """Close the step, and undo predicted movement that no update has verified."""
        self.observe_loss(loss)
        if self.prediction is not None:
            self.prediction.end()

    def undo(self, reason: str, coming: int | None = None) -> None:
        """Break the step off, and undo its predicted steps; optimizer ``coming`` updates next."""
        for index in range(len(self._optimizer.optimizers)):
            self._optimizer.restore_gradients(index)
        for index in [k for k in self.skipped if self.calls[k] and k != self.active]:
            self.close_update(index)
        if self.prediction is not None:
            if coming is not None and self.prediction.delta is not None and not self.calls[coming]:
                # Its gradients belong to the predicted weights, which are being undone.
                self._optimizer.hold_back(coming)
            self.prediction.end(reason)
        # Last, so that an interrupted undo can be repeated.
        self.active = None
        self._updates.clear()

    def rest(self, *, stop: bool) -> Measurement:
        """Return the numbers of the closed step that are not read yet, for :meth:`take`."""
        names = self._unread()
        norms = [self._norms[name] for name in names]
        counted = self._counted(norms, [self._parameters[name] for name in names])
        sums = {"head": self._with_loss([float(stop)])}
        if self._slopes:
            slopes = [each.to(self._device) for each in self._slopes]
            sums["slopes"] = torch.stack(slopes).sum(0)
        sums.update((f"window {k}", numbers) for k, (*_, numbers) in enumerate(self.closed))
        return Measurement({"gradients": counted}, sums)

    def take(self, numbers: Numbers) -> None:
        """Take the numbers that :meth:`rest` has asked for."""
        self.stop = any(self._take(self._unread(), numbers))
        self.slopes = numbers.get("slopes", [])
        for k, (key, window, _) in enumerate(self.closed):
            self.windows.append((key, window(*numbers[f"window {k}"])))

    def _take(self, names: Sequence[str], numbers: Numbers) -> list[float]:
        """Take norms and the loss; return the other numbers beside the loss."""
        self.norms.update(zip(names, numbers["gradients"], strict=True))
        loss, known, *others = numbers["head"]
        self.loss = loss / known if known else None  # of the ranks that know theirs
        return others

    def add_seconds(self, ledger: SavingsLedger, closed_at: float, ended_at: float) -> None:
        """Add the host seconds of user code, corrections, and predictions to the ledger."""
        seconds = max(0.0, closed_at - self.opened_at - self.hook_seconds)
        ledger.full_seconds += seconds
        if self.number == 1:
            ledger.startup_seconds = seconds
        ledger.correct_seconds += max(0.0, self.hook_seconds)
        ledger.predict_seconds += max(0.0, self.predict_seconds + ended_at - closed_at)

    def _unread(self) -> list[str]:
        return [name for name in self._norms if name not in self.norms]

    def _counted(self, norms: Sequence[Tensor], parameters: Sequence[Tensor]) -> Tensor:
        """Return 0-dim norms of local shards, shape (K,), whose squares add up over the ranks."""
        if not norms:
            return torch.zeros(0, device=self._device)
        if len({(norm.dtype, norm.device) for norm in norms}) > 1:
            norms = [norm.to(self._device, torch.float32) for norm in norms]
        stacked = torch.stack(list(norms)).to(self._device, torch.float32)
        counts = shards.norm_factors(parameters)
        return stacked if counts is None else lists.scaled(stacked, counts)

    def _with_loss(self, numbers: Sequence[float]) -> Tensor:
        """Return the loss, whether it is known, and more numbers, shape (2 + K,)."""
        loss = 0.0 if self._loss is None else self._loss
        plain = [float(self._loss is not None), *numbers]
        device = self._device
        if device is None and isinstance(loss, Tensor):
            device = loss.device
        if device is None or device.type == "cpu":
            return torch.tensor([float(loss), *plain], dtype=torch.float32)
        # Each is filled on the device, as a copy from the host would wait.
        filled = [torch.full((), x, dtype=torch.float32, device=device) for x in plain]
        if not isinstance(loss, Tensor):
            loss = torch.full((), loss, device=device)
        return torch.stack([loss.to(device, torch.float32), *filled])


def gradient_norms(gradients: Sequence[Tensor], scale: Tensor | None) -> list[Tensor]:
    """Return the Euclidean norm of every gradient's local shard, 0-dim."""
    if not gradients:
        return []
    flat = [torch.view_as_real(g) if g.dtype.is_complex else g for g in gradients]
    # The norm may exceed the range of 16-bit floats, which ends at 65504.
    kinds = {g.dtype for g in flat}
    half = bool(kinds & lists.HALF) and torch.float64 not in kinds
    norms = list(torch._foreach_norm(flat, 2, torch.float32 if half else None))
    return norms if scale is None else [n / scale.to(n.device) for n in norms]


def mean_loss(loss: object) -> Tensor | float | None:
    """Detach a loss: the mean of a tensor, a number, or None."""
    if isinstance(loss, Tensor):
        # Some packages subclass tensors, and the functions of such a class may refuse numbers that
        # are no batch (MetaTensor in MONAI does).
        with torch._C.DisableTorchFunctionSubclass():
            mean: Any = loss.detach().float().mean()
        return mean.full_tensor() if hasattr(mean, "full_tensor") else mean
    return float(loss) if isinstance(loss, (int, float)) else None


def norm_of(norms: Iterable[float]) -> float:
    """Return the norm of a vector from those of its parts; nan if not finite or without parts."""
    parts = list(norms)
    norm = math.hypot(*parts)
    return norm if parts and math.isfinite(norm) else math.nan
