"""The open full step: its predicted steps, its measurements, and their undo."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch
from torch import Tensor

from hybrid_predict.groups.group import Group, Learned, OpenUpdate
from hybrid_predict.ledger import GradientInfo, SavingsLedger, StepRecord
from hybrid_predict.model.buffers import BufferCopies
from hybrid_predict.model.gradients import dense_gradients, gradient_norms
from hybrid_predict.model.module_hooks import watch_state_dict
from hybrid_predict.model.parameters import ParameterMapper
from hybrid_predict.optimizers.wrapper import OptimizerWrapper, Options
from hybrid_predict.policy.confidence import Window
from hybrid_predict.policy.policy import Key, Policy
from hybrid_predict.policy.schedule import Phase
from hybrid_predict.policy.verdict import INTERRUPTED, NO_UPDATE, READ, Slopes, Verdict
from hybrid_predict.ranks import processes, shards
from hybrid_predict.tensors import lists
from hybrid_predict.tensors.deltas import Movement, WeightDelta

if TYPE_CHECKING:
    from hybrid_predict.forecast.forecaster import Forecast

_TINY = torch.finfo(torch.float32).tiny


@final
class Part(NamedTuple):
    """Numbers of a full step on the device.

    Args:
        norms: Norms of this rank's shards; their squares add up over the ranks.
        sums: Numbers that add up over the ranks.
        use: Called with both once they are read.
    """

    norms: Tensor
    sums: Tensor
    use: Callable[[list[float], list[float]], None]


def read(parts: Sequence[Part]) -> None:
    """Read numbers with a single all-reduce, and a single wait for the device."""
    if not parts:
        return
    device = parts[0].sums.device
    norms, sums = processes.combine(
        torch.cat([part.norms.to(device) for part in parts]),
        torch.cat([part.sums.to(device) for part in parts]),
    )
    numbers = iter(torch.cat([norms, sums]).tolist())
    firsts = [[next(numbers) for _ in range(len(part.norms))] for part in parts]
    for part, first in zip(parts, firsts, strict=True):
        part.use(first, [next(numbers) for _ in range(len(part.sums))])


@final
class Moved(NamedTuple):
    """The movement of one tensor by predicted steps.

    Args:
        length: Length of the movement.
        drift: How far its drift moves at the same learning rate.
        dot: Inner product of the movement with the verifying step's gradient.
    """

    length: float
    drift: float
    dot: float


@final
@dataclass
class Measurement:
    """What was measured in one full step, as far as it is read.

    Args:
        step: Number of the full step, from 1.
        predicted: Number of predicted steps right before it.
        warmup: Whether it belongs to the warm-up.
        held: Why its predicted steps are undone; empty if they stand.
        loss: Mean loss over the ranks; None if it is unknown.
        norms: Norm of each gradient, by name.
        optimizers: Number of the optimizer of each of these.
        moved: Movement by predicted steps of the tensors that have a gradient, by name.
        windows: What the windows have measured that were closed.
        slopes: Slopes of predicted steps and of the full step; None without predicted steps.
        stop: Whether any rank was asked to stop.
    """

    step: int
    predicted: int = 0
    warmup: bool = False
    held: str = ""
    loss: float | None = None
    norms: dict[str, float] = field(default_factory=dict)
    optimizers: dict[str, int] = field(default_factory=dict)
    moved: dict[str, Moved] = field(default_factory=dict)
    windows: list[tuple[Key, Window]] = field(default_factory=list)
    slopes: Slopes | None = None
    stop: bool = False

    def norm(self, optimizer: int) -> float:
        """Return the norm of an optimizer's gradients; nan if it has none, or one is not finite."""
        return norm_of([n for name, n in self.norms.items() if self.optimizers[name] == optimizer])

    @property
    def info(self) -> GradientInfo | None:
        """Loss and gradients; None if no gradient was measured."""
        if not self.norms:
            return None
        alignments = {
            name: -moved.dot / max(_TINY, self.norms[name] * moved.length)
            for name, moved in self.moved.items()
        }
        loss = math.nan if self.loss is None else self.loss
        return GradientInfo(loss, norm_of(self.norms.values()), self.norms, alignments)

    @property
    def length(self) -> float | None:
        """Length of each predicted step, in lengths of the drift; None if there was none."""
        moved = norm_of([each.length for each in self.moved.values()])
        drift = norm_of([each.drift for each in self.moved.values()])
        known = math.isfinite(moved) and drift > 0.0
        return moved / (drift * self.predicted) if known else None

    @property
    def ends(self) -> Mapping[str, float]:
        """Inner product of each tensor's predicted movement with its gradient after it."""
        return {name: moved.dot for name, moved in self.moved.items()}

    def take_loss(self, total: float, known: float) -> None:
        """Take the sum of the losses of the ranks that know theirs."""
        self.loss = total / known if known else None

    def take_rest(self, closed: Sequence[tuple[Key, int]], numbers: Sequence[float]) -> None:
        """Take slopes, if predicted steps were verified, and windows, in this order.

        Args:
            closed: Kind and optimizer of each window, and its number of steps.
            numbers: Their numbers.
        """
        size = len(Window._fields) - 1
        start = len(numbers) - size * len(closed)
        if start:
            self.slopes = Slopes(*numbers[:start])
        for key, steps in closed:
            self.windows.append((key, Window(steps, *numbers[start : start + size])))
            start += size


def on_host(numbers: Tensor) -> bool:
    """Return whether numbers can be read without waiting for a device."""
    return numbers.device.type == "cpu"


def mean_loss(loss: object) -> Tensor | float | None:
    """Detach a loss: the mean of a tensor, a number, or None."""
    if isinstance(loss, Tensor):
        # Some packages subclass tensors, and the functions of such a class may refuse numbers that
        # are no batch (MetaTensor in MONAI does).
        with torch._C.DisableTorchFunctionSubclass():
            mean: Any = loss.detach().float().mean()
        return mean.full_tensor() if hasattr(mean, "full_tensor") else mean
    return float(loss) if isinstance(loss, (int, float)) else None


def unmeasured(record: StepRecord, loss: object, stop: bool | None) -> StepRecord:
    """Return the record of a plain full step with its loss, unless other ranks have theirs.

    A loss on a device is left unknown, because reading it would wait. If ``stop`` is not None, the
    ranks agree on it here.
    """
    if stop is not None:
        record = replace(record, stop=record.stop or processes.total(bool(stop)) > 0)
    on_device = isinstance(loss, Tensor) and loss.device.type != "cpu"
    if loss is None or on_device or processes.size() > 1 or record.loss is not None:
        return record
    mean = mean_loss(loss)
    return record if mean is None else replace(record, loss=float(mean))


def norm_of(norms: Iterable[float]) -> float:
    """Return the norm of a vector from those of its parts; nan if not finite or without parts."""
    parts = list(norms)
    norm = math.hypot(*parts)
    return norm if parts and math.isfinite(norm) else math.nan


def scaled(
    values: Sequence[Tensor], factors: Sequence[float], device: torch.device | None
) -> Tensor:
    """Multiply 0-dim tensors by numbers, shape (K,), without a copy from the host."""
    if not values:
        return torch.zeros(0, device=device)
    if len({(value.dtype, value.device) for value in values}) == 1:
        stacked = torch.stack(list(values)).to(device, torch.float32)
    else:
        stacked = torch.stack([as_scalar(value, device) for value in values])
    return lists.scaled(stacked, factors)


def as_scalar(value: Tensor | float | bool, device: torch.device | None) -> Tensor:
    """Convert a value to a 0-dim 32-bit tensor on a device; tensors in this form are not copied."""
    if isinstance(value, Tensor):
        value = value.detach() if value.requires_grad else value
        ready = value.dtype == torch.float32 and value.device == device and value.dim() == 0
        return value if ready else value.to(device, torch.float32).reshape(())
    return torch.full((), float(value), dtype=torch.float32, device=device)


UNCOUNTED = "a state was saved between an update and after_step(), so it does not count the update"
"""Event for a saved state that does not go with the weights."""


@final
class _Gradient(NamedTuple):
    """The gradient of one parameter: its norm (of the local shard), and who updates it."""

    norm: Tensor
    optimizer: int
    parameter: Tensor


@final
class Step:
    """One full step and the predicted steps right before it, as one transaction.

    It is opened before the forward pass, judged when the gradients of each optimizer are final, and
    closed after the updates. Until it is closed, :meth:`undo` removes every trace of the predicted
    steps from weights and buffers.

    Args:
        number: Number of the full step, from 1.
        optimizer: The optimizers.

    Attributes:
        measured: What was measured in the step, as far as it is read.
    """

    def __init__(self, number: int, optimizer: OptimizerWrapper) -> None:
        self.number = number
        self.measured = Measurement(number)
        self.phase = Phase.PLAIN
        self.corrected = False
        self.calls: Counter[int] = Counter()
        self.active: int | None = None
        self.hook_seconds = self.predict_seconds = self.opened_at = 0.0
        self._optimizer = optimizer
        self._forecast: Forecast | None = None
        self._movement: Movement | None = None
        self._buffers: BufferCopies | None = None
        self._handles: list[Any] = []
        self._updates: list[tuple[Group, OpenUpdate]] = []
        self._loss: Tensor | float | None = None
        self._has_gradients = False
        self._reached: set[str | None] = set()  # parameters that their optimizer can update
        self._held: set[int] = set()  # optimizers whose next or last update does not happen
        self._gradients: dict[str, _Gradient] = {}
        self._is_back = False  # whether the weights are those before the predicted steps
        # What the numbers of an optimizer say that were read last:
        self._norm = 0.0  # of its gradients
        self._is_finite = True  # the movement of its parameters
        self._lost = ""  # why some rank does not make its update
        self._learned = Learned()

    def predict(
        self,
        mapper: ParameterMapper,
        forecast: Forecast,
        count: int,
        carries: dict[str, Tensor],
    ) -> None:
        """Take ``count`` predicted steps at once."""
        self._buffers = BufferCopies(mapper.model)
        self._forecast = forecast
        self.measured.predicted = count
        delta = forecast.delta.scaled(count) if count > 1 else forecast.delta
        self._movement = mapper.movement(delta, carries)
        self._handles += watch_state_dict(mapper.model, self.withdraw, self._give_way)
        self._movement.apply()

    def observe_loss(self, loss: object) -> None:
        """Store the loss, if it is known before the update."""
        self._loss = self._loss if loss is None else mean_loss(loss)

    @property
    def predicted(self) -> int:
        """Number of predicted steps right before the full step."""
        return self.measured.predicted

    @property
    def with_gradient(self) -> set[int]:
        """Parameters that have had a gradient, by ``id``."""
        return {*map(id, [gradient.parameter for gradient in self._gradients.values()])}

    @property
    def has_updated(self) -> bool:
        """Whether an optimizer has updated."""
        return bool(self.calls)

    @property
    def closes_window(self) -> bool:
        """Whether a window was closed."""
        return bool(self._learned.windows)

    @property
    def verdict(self) -> Verdict | None:
        """The verdict on the predicted steps, as it is now; None if there are none."""
        if not self.predicted:
            return None
        stands = not (self.measured.held or self._unverified())
        return Verdict.STANDS if stands else Verdict.UNDONE

    def reopen(self, index: int) -> None:
        """Discard the measurements and the verdict of an update that has raised."""
        self.active = None
        self._updates.clear()
        if index in self._held:
            self._held.discard(index)
            if not self._held:
                self.measured.held = ""
        if not self.calls[index]:  # else what was measured is of an earlier update, which was made
            for name in [n for n, g in self._gradients.items() if g.optimizer == index]:
                del self._gradients[name]
                self.measured.norms.pop(name, None)
                self.measured.moved.pop(name, None)

    def measure(
        self, index: int, names: dict[int, str], options: dict[int, Options], loss: object
    ) -> Part | None:
        """Measure the gradients of one optimizer, right before it updates.

        Returns:
            The numbers that decide about the predicted steps, for :meth:`judge`; None if there is
            nothing to decide.
        """
        optimizer: Any = self._optimizer.optimizers[index]
        listed = self._optimizer.parameters(index)
        held = shards.having_gradients(listed)
        if self._movement is not None:
            reached = [*held, *[p for p in listed if p.requires_grad]]
            self._reached.update(map(names.get, map(id, reached)))
        self.observe_loss(loss)
        self._has_gradients = bool(held)
        if self._optimizer.skips(index):
            self._held.add(index)
        if self.calls[index]:
            return None
        gradients = dense_gradients(held)
        scale = getattr(optimizer, "grad_scale", None)
        norms = gradient_norms(gradients, scale)
        known = map(names.get, map(id, held))
        own = [name or f"unnamed.{index}.{k}" for k, name in enumerate(known)]
        found = map(_Gradient, norms, [index] * len(held), held)
        # Two optimizers may share a parameter.
        self._gradients = dict(zip(own, found, strict=True)) | self._gradients
        if self._movement is None:
            return None
        signs = [options[id(p)].sign for p in held]
        sided = dict(zip(own, zip(gradients, signs, strict=True), strict=True))
        return self._deciding(index, dict(zip(own, norms, strict=True)), sided, scale)

    def judge(self, index: int, policy: Policy) -> None:
        """Hold back an optimizer's update if it does not verify its predicted steps.

        Args:
            index: Number of the optimizer, whose numbers of :meth:`measure` are read.
            policy: Says why the predicted steps are undone.
        """
        finite = self._is_finite
        held = self._lost or policy.cause(index, self._norm, self.measured.loss, finite=finite)
        if held:
            self.measured.held = held
            self._held.add(index)
            self._optimizer.hold_back(index)

    def updates(self, index: int) -> bool:
        """Return whether an optimizer's next or last update happens."""
        return index not in self._held

    def count_update(self, index: int) -> None:
        """Count an update of one optimizer, if it had gradients."""
        if self._has_gradients:
            self.calls[index] += 1
        self.active = None

    def open_updates(
        self,
        groups: Sequence[Group],
        options: Mapping[int, Options],
        *,
        correct: bool,
    ) -> None:
        """Average the gradients of groups and find their corrected directions, before an update."""
        opened = [(g, g.open(self._optimizer, options, correct=correct)) for g in groups]
        self._updates = [(group, update) for group, update in opened if update is not None]

    def learn(self, index: int, options: Mapping[int, Options]) -> None:
        """Correct the update that one optimizer has made, and learn its displacement."""
        updates = self._updates
        self._updates = []
        movement: WeightDelta | None = None
        if self._movement is not None and self.calls[index] == 1:
            movement = self._movement.delta
        for group, update in updates:
            group.close(update, options, movement, self._learned)
            self.corrected |= update.corrects

    def close_update(self, index: int) -> None:
        """After an update, undo its part of the predicted steps if they do not stand."""
        held = index in self._held
        if self._movement is not None and self._forecast is not None and self.calls[index] == 1:
            names = self._movement.delta.names
            own = [k for k, each in enumerate(self._forecast.optimizers) if each == index]
            if held:
                self._put_back(own)
            elif left := [k for k in own if names[k] not in self._reached]:  # inside the step
                self._movement.undo(left)
        self._held.discard(index)  # only the first update of a full step verifies

    def close(self, loss: Tensor | float | None) -> None:
        """Close the step, and undo predicted movement that no update has verified."""
        self.observe_loss(loss)
        if unseen := self._unverified():
            self.measured.held = self.measured.held or NO_UPDATE
            self._put_back(unseen)
        self._free()

    def withdraw(self, reason: str = READ) -> None:
        """Undo predicted steps that no update has verified, at any point of the step.

        The updates that were to verify them do not happen: their gradients may be those of the
        predicted weights.
        """
        if members := self._unverified():
            self.measured.held = reason
            self._put_back(members)
            self._is_back = True

    def undo(self, reason: str = INTERRUPTED, coming: int | None = None) -> None:
        """End the step, and undo its predicted steps, right before optimizer ``coming`` updates."""
        for index in range(len(self._optimizer.optimizers)):
            self._optimizer.restore_gradients(index)
        for index in [k for k in self._held if self.calls[k]]:
            self.measured.held = reason
            self.close_update(index)
        if coming is not None and self._movement is not None and not self.calls[coming]:
            # Its gradients belong to the predicted weights, which are being undone.
            self._optimizer.hold_back(coming)
        self.withdraw(reason)
        # Last, so that an interrupted undo can be repeated.
        self.active = None
        self._updates.clear()
        self._free()

    def _give_way(self) -> None:
        """Undo them, and keep what is loaded into the model then."""
        self.withdraw()
        self._buffers = None

    def _put_back(self, members: Sequence[int]) -> None:
        """Put weights, by position in the movement, and buffers back as they were before it."""
        if self._movement is not None and not self._is_back:
            self._movement.undo(members)
        if self._buffers is not None:
            self._buffers.restore()

    def _free(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._movement = self._buffers = None

    def rest(self, use: Callable[[Measurement], None], *, stop: bool) -> Part:
        """Return the numbers of the step that are not read yet.

        Args:
            use: Called with the measurement once they are read.
            stop: Whether this rank was asked to stop.
        """
        measured = self.measured
        learned = self._learned
        measured.warmup = self.phase is Phase.WARMUP
        unread = {n: g for n, g in self._gradients.items() if n not in measured.norms}
        counts = self._counts()
        norms = [gradient.norm for gradient in unread.values()]
        flat = scaled(norms, [counts[name] for name in unread], self._device)
        head = self._with_loss([float(stop)])
        closed = [numbers.to(head.device) for *_, numbers in learned.windows]
        if learned.slopes:
            closed.insert(0, torch.stack([each.to(head.device) for each in learned.slopes]).sum(0))
        sums = torch.cat([head, *closed])
        windows = [(key, steps) for key, steps, _ in learned.windows]

        def take(numbers: list[float], sums: list[float]) -> None:
            self._take_norms(unread, numbers)
            loss, known, stops, *others = sums
            measured.take_loss(loss, known)
            measured.stop = stops > 0
            measured.take_rest(windows, others)
            use(measured)

        return Part(flat, sums, take)

    def add_seconds(self, ledger: SavingsLedger, closed_at: float, ended_at: float) -> None:
        """Add the host seconds of user code, corrections, and predictions to the ledger."""
        in_hooks = self.hook_seconds
        around = self.predict_seconds + ended_at - closed_at
        seconds = max(0.0, closed_at - self.opened_at - in_hooks)
        ledger.full_seconds += seconds
        if self.number == 1:
            ledger.startup_seconds = seconds
        ledger.correct_seconds += max(0.0, in_hooks)
        ledger.predict_seconds += max(0.0, around)

    def _unverified(self) -> list[int]:
        """Return the positions in the movement of tensors whose optimizer has not updated."""
        optimizers = () if self._forecast is None else self._forecast.optimizers
        return [k for k, own in enumerate(optimizers) if not self.calls[own]]

    @property
    def _device(self) -> torch.device | None:
        """Device of what is measured; None for that of plain numbers."""
        first = next((gradient.norm for gradient in self._gradients.values()), self._loss)
        return first.device if isinstance(first, Tensor) else None

    def _counts(self) -> dict[str, float]:
        """Return one factor per gradient, with which every entry counts once over the ranks."""
        counts = shards.norm_factors([each.parameter for each in self._gradients.values()])
        return dict(zip(self._gradients, counts or [1.0] * len(self._gradients), strict=True))

    def _with_loss(self, numbers: Sequence[float]) -> Tensor:
        """Return the loss, whether it is known, and more numbers, shape (2 + K,)."""
        known = self._loss is not None
        loss = 0.0 if self._loss is None else self._loss
        plain = [float(known), *numbers]
        device = self._device
        if device is None or device.type == "cpu":
            value = loss if isinstance(loss, float) else float(loss)
            return torch.tensor([value, *plain], dtype=torch.float32)
        return torch.stack([as_scalar(number, device) for number in (loss, *plain)])

    def _take_norms(self, names: Iterable[str], norms: Sequence[float]) -> None:
        for name, norm in zip(names, norms, strict=True):
            self.measured.norms[name] = norm
            self.measured.optimizers[name] = self._gradients[name].optimizer

    def _deciding(
        self,
        index: int,
        norms: dict[str, Tensor],
        gradients: dict[str, tuple[Tensor, float]],
        scale: Tensor | None,
    ) -> Part:
        """Return the numbers that decide whether one optimizer's predicted steps stand.

        Args:
            index: Number of the optimizer.
            norms: Norms of its gradients, by name.
            gradients: The gradients, dense, each with the sign of its update.
            scale: By what a gradient scaler has multiplied them; None for 1.
        """
        assert self._movement is not None and self._forecast is not None
        delta = self._movement.delta
        forecast = self._forecast
        own = [k for k, each in enumerate(forecast.optimizers) if each == index]
        sizes = lists.norms([delta.directions[k] for k in own])
        lengths = lists.scaled(sizes, [lists.size(delta.factors[k]) for k in own])
        met = [k for k in own if delta.names[k] in gradients]
        names = [delta.names[k] for k in met]
        sides = [(*gradients[delta.names[k]], delta.directions[k]) for k in met]
        dots = lists.dots([g.reshape(d.shape) for g, _, d in sides], [d for _, _, d in sides])
        if scale is not None:
            dots = dots / scale.to(dots.device)
        signed = [sign * delta.factors[k] for k, (_, sign, _) in zip(met, sides, strict=True)]
        counts = self._counts()
        device = self._device
        drifts = [forecast.drifts[k] for k in met]
        named = [*norms, *names, *(delta.names[k] for k in own)]
        flat = [*norms.values(), *drifts, *lengths]
        squares = [counts[name] ** 2 for name in names]
        products = scaled(list(lists.scaled(dots, signed)), squares, device)
        head = self._with_loss([float(self._is_back), float(index in self._held)])

        def take(numbers: list[float], sums: list[float]) -> None:
            found = iter(numbers)
            each = [next(found) for _ in norms]
            self._take_norms(norms, each)
            self._norm = norm_of(each) if each else 0.0
            drifts = [next(found) for _ in met]
            lengths = dict(zip(own, found, strict=True))
            self._is_finite = all(map(math.isfinite, lengths.values()))
            loss, known, back, skipped, *dots = sums
            columns = zip(met, names, drifts, dots, strict=True)
            self.measured.moved.update({n: Moved(lengths[k], *rest) for k, n, *rest in columns})
            self.measured.take_loss(loss, known)
            self._lost = READ if back else NO_UPDATE if skipped else ""

        factors = [counts.get(name, 1.0) for name in named]
        return Part(scaled(flat, factors, device), torch.cat([head, products]), take)
