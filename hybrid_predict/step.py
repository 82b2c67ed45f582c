"""The open full step: its predicted steps, what it measures, and the undo."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch
from torch import Tensor

from hybrid_predict.groups.group import Group, OpenUpdate
from hybrid_predict.ledger import GradientInfo, SavingsLedger
from hybrid_predict.model.parameters import ParameterMapper
from hybrid_predict.model.traces import BufferCopies, watch_state_dict
from hybrid_predict.optimizers.wrapper import OptimizerWrapper, Options
from hybrid_predict.policy.confidence import Window
from hybrid_predict.policy.policy import Key
from hybrid_predict.policy.predicting import PredictingPolicy
from hybrid_predict.policy.schedule import Phase
from hybrid_predict.policy.verdict import INTERRUPTED, NO_UPDATE, READ, Slopes, Verdict
from hybrid_predict.ranks import processes, shards
from hybrid_predict.tensors import lists
from hybrid_predict.tensors.deltas import Movement, WeightDelta

if TYPE_CHECKING:
    from hybrid_predict.forecast.forecaster import Forecast

_TINY = torch.finfo(torch.float32).tiny

UNCOUNTED = "a state was saved between an update and after_step(), so it does not count the update"
"""Event for a saved state that does not go with the weights."""


@final
class Part(NamedTuple):
    """Numbers of a full step on the device."""

    norms: Tensor  # of this rank's shards; their squares add up over the ranks
    sums: Tensor  # what adds up over the ranks


Numbers = tuple[list[float], list[float]]
"""Those of a `Part`, of all ranks together."""


def read(parts: Sequence[Part]) -> list[Numbers]:
    """Read numbers with a single all-reduce, and a single wait for the device."""
    device = parts[0].sums.device
    norms, sums = processes.combine(
        torch.cat([part.norms.to(device) for part in parts]),
        torch.cat([part.sums.to(device) for part in parts]),
    )
    numbers = iter(torch.cat([norms, sums]).tolist())
    firsts = [list(islice(numbers, part.norms.numel())) for part in parts]
    pairs = zip(firsts, parts, strict=True)
    return [(first, list(islice(numbers, part.sums.numel()))) for first, part in pairs]


@final
class Moved(NamedTuple):
    """The movement of one tensor by predicted steps."""

    length: float  # of the movement
    drift: float  # how far its drift moves at the same learning rate
    dot: float  # inner product of the movement with the verifying step's gradient


@final
class Step:
    """One full step and the predicted steps right before it, as one transaction.

    It is opened before the forward pass, judged when the gradients of each optimizer are final, and
    closed after the updates. Until it is closed, :meth:`undo` removes every trace of the predicted
    steps from weights and buffers.
    """

    def __init__(self, number: int, optimizer: OptimizerWrapper) -> None:
        self.number = number  # from 1
        self.phase = Phase.PLAIN
        self.watched = False  # whether the plug-in does anything in it
        self.predicted = 0  # number of predicted steps right before the full step
        self.corrected = False
        self.calls: Counter[int] = Counter()  # updates so far, by number of the optimizer
        self.active: int | None = None  # the optimizer that is updating
        self.hook_seconds = self.predict_seconds = self.opened_at = 0.0
        # What was measured, as far as it is read:
        self._earlier = ""  # ``held`` before the last verdict
        self.held = ""  # why the predicted steps are undone; empty if they stand
        self.loss: float | None = None  # mean over the ranks
        self.norms: dict[str, float] = {}  # of the gradients
        self.moved: dict[str, Moved] = {}  # of the tensors that have a gradient
        self.windows: list[tuple[Key, Window]] = []  # that were closed
        self.slopes: Slopes | None = None  # None without predicted steps
        self.stop = False  # whether any rank was asked to stop
        self._optimizer = optimizer
        self._forecast: Forecast | None = None
        self._movement: Movement | None = None
        self._buffers: BufferCopies | None = None
        self._handles: list[Any] = []
        self._updates: list[tuple[Group, OpenUpdate]] = []
        self._loss: Tensor | float | None = None  # of this rank
        self._has_gradients = False
        self._reached: set[str | None] = set()  # parameters that their optimizer can update
        self.skipped: set[int] = set()  # optimizers whose next or last update does not happen
        self._names: dict[int, list[str]] = {}  # what has a gradient, by number of the optimizer
        self._parameters: dict[str, Tensor] = {}  # of these names
        self._norms: dict[str, Tensor] = {}  # of the local shards of their gradients
        self._device: torch.device | None = None  # of the first of these
        self._deciding: tuple[list[int], list[int]] = [], []
        self._is_back = False  # whether the weights are those before the predicted steps
        self._slopes: list[Tensor] = []
        self.closed: list[tuple[Key, int, Tensor]] = []  # windows: steps and numbers

    def predict(
        self, mapper: ParameterMapper, forecast: Forecast, count: int, carries: dict[str, Tensor]
    ) -> None:
        """Take ``count`` predicted steps at once."""
        self._buffers = BufferCopies(mapper.buffered)
        delta = forecast.delta.scaled(count) if count > 1 else forecast.delta
        self._movement = mapper.movement(delta, carries)
        self._handles += watch_state_dict(mapper.model, self.withdraw, self._give_way)
        self._forecast = forecast
        self.predicted = count
        self._movement.apply()

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

    @property
    def verdict(self) -> Verdict | None:
        """The verdict on the predicted steps, as it is now; None if there are none."""
        if not self.predicted:
            return None
        return Verdict.UNDONE if self.held or self._unverified() else Verdict.STANDS

    def norm(self, optimizer: int) -> float:
        """Return the norm of an optimizer's gradients; nan if it has none, or one is not finite."""
        names = self._names.get(optimizer, ())
        return norm_of([self.norms[name] for name in names if name in self.norms])

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

    def reopen(self, index: int) -> None:
        """Discard the verdict of an update that has raised; what it measured is replaced."""
        self._updates.clear()
        self.skipped.discard(index)
        if not self.calls[index]:
            self.held = self._earlier  # what other optimizers have decided stays

    def measure(
        self, index: int, names: dict[int, str], options: Mapping[int, Options], loss: object
    ) -> Part | None:
        """Measure an optimizer's gradients before its update; return what :meth:`judge` reads."""
        optimizer: Any = self._optimizer.optimizers[index]
        listed = self._optimizer.parameters(index)
        held = shards.having_gradients(listed)
        if self._movement is not None:
            reached = [*held, *[p for p in listed if p.requires_grad]]
            self._reached.update(map(names.get, map(id, reached)))
        self.observe_loss(loss)
        self._has_gradients = bool(held)
        if self._optimizer.skips(index):
            self.skipped.add(index)
        if self.calls[index]:
            return None
        gradients = shards.dense_gradients(held)
        scale = getattr(optimizer, "grad_scale", None)
        norms = gradient_norms(gradients, scale)
        known = map(names.get, map(id, held))
        own = [name or f"unnamed.{index}.{k}" for k, name in enumerate(known)]
        self._names[index] = own
        self._parameters.update(zip(own, held, strict=True))
        self._norms.update(zip(own, norms, strict=True))
        if norms and self._device is None:
            self._device = norms[0].device
        if self._movement is None:
            return None
        return self._decisive(index, dict(zip(own, gradients, strict=True)), options, scale)

    def _decisive(
        self,
        index: int,
        gradients: Mapping[str, Tensor],
        options: Mapping[int, Options],
        scale: Tensor | None,
    ) -> Part:
        # Gradients are dense, and multiplied by ``scale``.
        assert self._movement is not None and self._forecast is not None
        delta = self._movement.delta
        own = [k for k, each in enumerate(self._forecast.optimizers) if each == index]
        met = [k for k in own if delta.names[k] in gradients]
        self._deciding = met, own
        # Of the tensors that have a gradient:
        moved = [self._movement.parameters[k] for k in met]
        directions = [delta.directions[k] for k in met]
        pairs = zip([gradients[delta.names[k]] for k in met], directions, strict=True)
        dots = lists.dots([g.reshape(direction.shape) for g, direction in pairs], directions)
        if scale is not None:
            dots = dots / scale.to(dots.device)
        signs = [options[key].sign for key in map(id, moved)]
        factors = [sign * delta.factors[k] for sign, k in zip(signs, met, strict=True)]
        products = lists.scaled(dots, factors).to(self._device, torch.float32)
        if counts := shards.norm_factors(moved):
            products = lists.scaled(products, [count**2 for count in counts])
        drifts = [self._forecast.drifts[k] for k in met]
        # Of all tensors that were moved:
        sizes = lists.norms([delta.directions[k] for k in own])
        lengths = lists.scaled(sizes, [*map(abs, [delta.factors[k] for k in own])]).unbind()
        names = self._names[index]
        parameters = [self._parameters[name] for name in names]
        parameters += [*moved, *[self._movement.parameters[k] for k in own]]
        norms = [self._norms[name] for name in names]
        flat = self._counted([*norms, *drifts, *lengths], parameters)
        head = self._with_loss([float(self._is_back), float(index in self.skipped)])
        return Part(flat, torch.cat([head, products]))

    def judge(self, index: int, numbers: Numbers, policy: PredictingPolicy) -> None:
        """Hold back an optimizer's update if it does not verify its predicted steps."""
        assert self._movement is not None
        met, own = self._deciding
        names = self._names[index]
        flat, (loss, known, back, skipped, *dots) = numbers
        norms = flat[: len(names)]
        drifts = flat[len(names) : len(names) + len(met)]
        lengths = dict(zip(own, flat[len(names) + len(met) :], strict=True))
        self.norms.update(zip(names, norms, strict=True))
        self.loss = loss / known if known else None  # of the ranks that know theirs
        for k, drift, dot in zip(met, drifts, dots, strict=True):
            self.moved[self._movement.delta.names[k]] = Moved(lengths[k], drift, dot)
        finite = all(map(math.isfinite, lengths.values()))
        norm = norm_of(norms) if norms else 0.0
        lost = READ if back else NO_UPDATE if skipped else ""
        held = lost or policy.cause(index, norm, self.loss, finite=finite)
        self._earlier = self.held
        if held:
            self.held = held
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
        movement: WeightDelta | None = None
        if self._movement is not None and self.calls[index] == 1:
            movement = self._movement.delta
        with torch.no_grad():
            for group, update in updates:
                slopes, closed = group.close(update, options, movement)
                self._slopes += slopes
                self.closed += closed
                self.corrected |= update.corrects

    def close_update(self, index: int) -> None:
        """After an update, undo its part of the predicted steps if they do not stand."""
        if self._movement is not None and self._forecast is not None and self.calls[index] == 1:
            names = self._movement.delta.names
            own = [k for k, each in enumerate(self._forecast.optimizers) if each == index]
            if index in self.skipped:
                self._put_back(own)
            elif left := [k for k in own if names[k] not in self._reached]:  # inside the step
                self._movement.undo(left)
        self.skipped.discard(index)  # only the first update of a full step verifies

    def close(self, loss: Tensor | float | None) -> None:
        """Close the step, and undo predicted movement that no update has verified."""
        self.observe_loss(loss)
        if unseen := self._unverified():
            self.held = self.held or NO_UPDATE
            self._put_back(unseen)
        self._free()

    def withdraw(self, reason: str = READ) -> None:
        """Undo predicted steps that no update has verified, at any point of the step.

        The updates that were to verify them do not happen: their gradients may be those of the
        predicted weights.
        """
        if members := self._unverified():
            self.held = reason
            self._put_back(members)
            self._is_back = True

    def undo(self, reason: str = INTERRUPTED, coming: int | None = None) -> None:
        """End the step, and undo its predicted steps, right before optimizer ``coming`` updates."""
        for index in range(len(self._optimizer.optimizers)):
            self._optimizer.restore_gradients(index)
        for index in [k for k in self.skipped if self.calls[k]]:
            self.held = reason
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
        if self._movement is not None and not self._is_back:
            self._movement.undo(members)
        if self._buffers is not None:
            self._buffers.restore()

    def _free(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._movement = self._buffers = None

    def _unverified(self) -> list[int]:
        """Return the positions in the movement of tensors whose optimizer has not updated."""
        optimizers = () if self._forecast is None else self._forecast.optimizers
        return [k for k, own in enumerate(optimizers) if not self.calls[own]]

    def rest(self, *, stop: bool) -> Part:
        """Return the numbers of the closed step that are not read yet, for :meth:`take`."""
        unread = self._unread()
        head = self._with_loss([float(stop)])
        closed = [numbers.to(head.device) for *_, numbers in self.closed]
        if self._slopes:
            closed.insert(0, torch.stack([each.to(head.device) for each in self._slopes]).sum(0))
        norms = [self._norms[name] for name in unread]
        flat = self._counted(norms, [self._parameters[name] for name in unread])
        return Part(flat, torch.cat([head, *closed]))

    def take(self, numbers: Numbers) -> None:
        """Take the numbers that :meth:`rest` has asked for."""
        norms, (loss, known, stops, *others) = numbers
        self.norms.update(zip(self._unread(), norms, strict=True))
        self.loss = loss / known if known else None  # of the ranks that know theirs
        self.stop = stops > 0
        if self._slopes:
            self.slopes = Slopes(*others[: len(Slopes._fields)])
            others = others[len(Slopes._fields) :]
        size = len(Window._fields) - 1
        for key, steps, _ in self.closed:
            self.windows.append((key, Window(steps, *others[:size])))
            others = others[size:]

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
