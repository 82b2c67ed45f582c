"""All tensors that are corrected or predicted, in groups that follow changes of the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, final

from torch import Tensor

from hybrid_predict.config import HybridConfig
from hybrid_predict.errors import CheckpointError
from hybrid_predict.forecast.forecast import Forecast
from hybrid_predict.forecast.gate import Gate, make_gate
from hybrid_predict.forecast.group import TensorGroup
from hybrid_predict.forecast.plan import Plan
from hybrid_predict.forecast.predictors import AbstractPredictor, make_predictor
from hybrid_predict.forecast.projection import PROJECTED
from hybrid_predict.forecast.skill import Skill
from hybrid_predict.forecast.window import Reading, reading
from hybrid_predict.tensors import shards
from hybrid_predict.torch.deltas import WeightDelta
from hybrid_predict.torch.optimizer import OptimizerWrapper, Options
from hybrid_predict.torch.parameters import ParameterMapper, overlapping
from hybrid_predict.updates import AbstractUpdate, make_update
from hybrid_predict.updates.budget import largest_block

LEFT = "matrices are left to an optimizer"
RELATIVE = f"{LEFT} whose updates grow with the weights"
SHARED = "parameters that share memory with others are left to the optimizer"
"""Events of the ledger: why tensors are not corrected."""

ABSENT_STEPS = 64
"""Number of full steps for which an optimizer that did not update is not predicted."""


@final
class Forecaster:
    """Groups the trained tensors by kind and optimizer, and forecasts their movement.

    Args:
        mapper: The model's parameters.
        optimizer: The optimizers that update them.
        config: The configuration; it names updates and predictors by kind.

    Attributes:
        left_out: Reasons for leaving tensors to the optimizer, as events for the ledger.
        skills: Skill of the forecasts by kind.
        skill: Skill over all kinds.
        block: Largest number of matrix rows that a corrected update treats together, or None for
            all.
        gate: Which groups may be predicted; it follows changes of groups, budget and skill.
    """

    def __init__(
        self, mapper: ParameterMapper, optimizer: OptimizerWrapper, config: HybridConfig
    ) -> None:
        self._mapper, self._optimizer = mapper, optimizer
        self._history = config.history_dtype
        self._updates: dict[str, AbstractUpdate] = {}
        self._predictors: dict[str, AbstractPredictor] = {}
        if config.enabled and not config.shadow:
            made = {kind: make_update(u) for kind, u in config.updates.items()}
            self._updates = {kind: u for kind, u in made.items() if u.share > 0}
        if config.enabled and (config.shadow or config.compression > 1):
            self._predictors = {k: make_predictor(p) for k, p in config.predictors.items()}
        self.groups: list[TensorGroup] = []
        self.left_out: set[str] = set()
        self.skills: dict[str, Skill] = {}
        self.skill = Skill()
        self._latest: dict[tuple[str, ...], Reading] = {}
        self._calls: Counter[int] = Counter()
        self._absent: dict[int, int] = {}
        self._layout: tuple[Any, Any] = (), ()
        self._shared: set[int] = set()
        self._budget: float | None = None
        self.block: int | None = None
        self.gate = Gate()
        self.refresh()

    @property
    def idle(self) -> bool:
        """Whether the configuration corrects and predicts nothing."""
        return not self._updates and not self._predictors

    @property
    def predicts(self) -> bool:
        """Whether at least one tensor has a predictor."""
        return bool(self._predicted)

    @property
    def _predicted(self) -> list[TensorGroup]:
        return [group for group in self.groups if group.plan.predictor is not None]

    def count_updates(self, step: int, calls: Counter[int]) -> None:
        """Note how often each optimizer updated in a full step.

        An optimizer that did not update, while others did, is not predicted for the next 64 full
        steps, because its predicted steps might not be verified.

        Args:
            step: Number of the full step.
            calls: Number of updates by number of the optimizer.
        """
        if not calls:
            return
        for index in range(len(self._optimizer.optimizers)):
            if not calls[index]:
                self._absent[index] = step
            elif step - self._absent.get(index, -ABSENT_STEPS) >= ABSENT_STEPS:
                self._absent.pop(index, None)
        self._calls = calls

    def replace_optimizer(self, optimizer: OptimizerWrapper) -> None:
        """Group the tensors of other optimizers from now on."""
        self._optimizer, self._layout = optimizer, ((), ())
        self._calls.clear()
        self._absent.clear()
        self.refresh()

    def refresh(self) -> bool:
        """Regroup if parameters were frozen, unfrozen or added, or share other memory than before.

        Returns:
            Whether anything has changed. What is known about unchanged tensors is kept.
        """
        if self.idle:
            return False
        noted = PROJECTED in self.left_out or not any(group.projected for group in self.groups)
        self.left_out |= set() if noted else {PROJECTED}
        now = self._optimizer.layout(), self._optimizer.places()
        before, self._layout = self._layout, now
        if now == before or (now[0] == before[0] and self._overlapping() == self._shared):
            return not noted
        self._mapper.follow(self._optimizer.parameters(), self._optimizer.owners())
        self.regroup()
        return True

    def regroup(self, index: int | None = None) -> None:
        """Group the tensors of one optimizer, or of all, by their current kinds.

        What is known about tensors whose kind is unchanged is kept.

        Args:
            index: Number of the optimizer, or None for all.
        """
        if self.idle:
            return
        owners = self._optimizer.owners()
        before = {(g.plan.kind, g.plan.owner, g.names): g for g in self.groups}
        self.groups = [g for g in self.groups if index not in (None, g.plan.owner)]
        for plan, names, parameters in self._partition(owners):
            if index not in (None, plan.owner):
                continue
            known = before.get((plan.kind, plan.owner, tuple(names)))
            if known is not None and known.plan == plan:
                known.parameters = parameters
                self.groups.append(known)
                continue
            momentum = self._optimizer.momentum(plan.owner)
            group = TensorGroup(plan, names, parameters, self._history, momentum)
            for old in before.values():
                group.inherit(old)
            self.groups.append(group)
        places = {name: k for k, name in enumerate(self._mapper.names)}
        self.groups.sort(key=lambda group: places.get(group.names[0], 0))  # as after a resume
        if self._budget is not None:
            self.apply_budget(self._budget)
        self._update_gate()

    def apply_budget(self, budget: float) -> int:
        """Choose the largest block of rows with which corrections stay within a budget.

        Args:
            budget: Number of operations that correcting may add to a full step on this rank.

        Returns:
            The number of operations that correcting adds.
        """
        self._budget = budget
        self.block, operations = largest_block(self.operations, budget)
        for group in self.groups:
            group.set_block(self.block)
        self._update_gate()
        return operations

    def operations(self, block: int | None) -> int:
        """Return what correcting adds to a full step on this rank, by the block of rows."""
        each = [(group.operations(block), group.plan.owner) for group in self.groups]
        return sum(count * max(1, self._calls[owner]) for count, owner in each)

    @property
    def corrected_shapes(self) -> list[Sequence[int]]:
        """Shapes of the tensors whose updates are corrected."""
        return [p.shape for group in self.groups if group.plan.update for p in group.parameters]

    def _update_gate(self) -> None:
        self.gate = make_gate(self.groups, self.skills, self.block, self._mapper.count_trained())

    def _partition(self, owners: Mapping[int, int]) -> list[tuple[Plan, list[str], list[Tensor]]]:
        columns = list(zip(self._mapper.names, self._mapper.parameters, self._mapper.kinds,
                           strict=True))  # fmt: skip
        shared = self._shared = self._overlapping()
        rules = self._optimizer.rules()
        parts: dict[Any, tuple[Plan, list[str], list[Tensor]]] = {}
        for position, (name, p, kind) in enumerate(columns):
            wanted = p.requires_grad and p.numel() and p.is_floating_point()
            update, predictor = self._updates.get(kind), self._predictors.get(kind)
            if not wanted or (update is None and predictor is None):
                continue
            if position in shared:
                self.left_out.add(SHARED)
                continue
            rule = rules[id(p)]
            if update is not None and (rule.relative or not rule.known):
                self.left_out.add(RELATIVE if rule.relative else f"{LEFT} {rule.unknown}")
                update = None
            update = update if p.dim() > 1 else None
            if update is None and predictor is None:
                continue
            plan = Plan(kind, owners[id(p)], update, predictor)
            key = (plan.kind, plan.owner, update is None)
            _, names, members = parts.setdefault(key, (plan, [], []))
            names.append(name)
            members.append(p)
        return list(parts.values())

    def _overlapping(self) -> set[int]:
        return overlapping([shards.local(p) for p in self._mapper.parameters])

    def groups_of(self, index: int) -> list[TensorGroup]:
        """Return the groups of one optimizer."""
        return [group for group in self.groups if group.plan.owner == index]

    def length_bound(self, options: Mapping[int, Options]) -> float | None:
        """Return 1.0 if corrected matrices have different learning rates, else None."""
        rates = {
            options[id(p)].rate
            for group in self.groups
            if group.plan.update is not None
            for p in group.parameters
            if not isinstance(options[id(p)].rate, Tensor)
        }
        return 1.0 if len(rates) > 1 else None

    def forecast(self, options: Mapping[int, Options]) -> Forecast:
        """Forecast the movement of one predicted step, for all groups together.

        Args:
            options: How each parameter is updated, by ``id``.

        Raises:
            PredictorError: If a predictor returns a forecast of the wrong form.
        """
        parts: list[WeightDelta] = []
        owners: list[int] = []
        drifts: list[Tensor] = []
        for group in self.groups:
            absent = group.plan.owner in self._absent
            times = 0 if absent else self._calls[group.plan.owner]
            may = group.names not in self.gate.blocked
            delta = group.forecast(options) if times and may else None
            if delta is not None:
                parts.append(delta if times == 1 else delta.scaled(times))
                owners += [group.plan.owner] * len(delta.names)
                drifts += [times * length for length in group.drift_lengths(options)]
        delta = WeightDelta(
            tuple(n for d in parts for n in d.names),
            tuple(x for d in parts for x in d.directions),
            tuple(f for d in parts for f in d.factors),
        )
        return Forecast(delta, owners, drifts)

    @property
    def gated(self) -> bool:
        """Whether there are forecasts, and all of them need skill."""
        predictors = [group.plan.predictor for group in self._predicted]
        return bool(predictors) and all(p is not None and p.gated for p in predictors)

    @property
    def awaits_skill(self) -> bool:
        """Whether predicted steps need skill, and no skill is known yet."""
        return self.gated and not any(skill.known for skill in self.skills.values())

    @property
    def longest_window(self) -> int:
        """Number of displacements in the longest window."""
        return max((group.window_length for group in self.groups), default=0)

    @property
    def held_bytes(self) -> int:
        """Memory in bytes that is kept between full steps."""
        return sum(group.held_bytes for group in self.groups)

    def score(self, readings: Sequence[Reading]) -> None:
        """Update skill and predictors from windows that were closed together."""
        groups = {group.names: group for group in self.groups}
        squares = {
            found.names: groups[found.names].fit(found) for found in readings
            if found.names in groups
        }  # fmt: skip
        for kind in dict.fromkeys(found.kind for found in readings):  # alike on every rank
            together = [found for found in readings if found.kind == kind]
            made = [squares.get(found.names, found.square) for found in together]
            self.skills.setdefault(kind, Skill()).add(together, made)
        kept = {names: found for names, found in self._latest.items() if names in groups}
        self._latest = {**kept, **{found.names: found for found in readings}}
        latest = list(self._latest.values())
        self.skill.add(latest, [found.square for found in latest])
        self._update_gate()

    def check(self, index: int, options: Mapping[int, Options]) -> None:
        """Check the form of one optimizer's forecasts before the first predicted step.

        Raises:
            PredictorError: If a predictor returns a forecast of the wrong form.
        """
        for group in self.groups_of(index):
            group.forecast(options)

    @property
    def carries(self) -> dict[str, Tensor]:
        """Kahan compensation of the half-precision weights, by parameter name."""
        return {n: c for g in self.groups for n, c in zip(g.names, g.memory.carry, strict=False)}

    def discard_updates(self) -> None:
        """Discard updates that were not finished."""
        for group in self.groups:
            group.discard_update()

    def free(self) -> None:
        """Free all memory for the rest of the run."""
        self.groups, self._updates, self._predictors = [], {}, {}
        self._update_gate()

    def state_dict(self, *, whole: bool = True) -> dict[str, Any]:
        """Return the state of all groups, and which optimizers updated last.

        Args:
            whole: Whether sharded tensors are gathered, see :meth:`TensorGroup.state_dict`.
        """
        return {
            "groups": [group.state_dict(whole=whole) for group in self.groups],
            "calls": [[k, n] for k, n in self._calls.items()],
            "absent": [[k, n] for k, n in self._absent.items()],
            "skill": self.skill.state_dict(),
            "skills": {kind: skill.state_dict() for kind, skill in self.skills.items()},
            "latest": [found.packed() for found in self._latest.values()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> list[str]:
        """Load a state of :meth:`state_dict`.

        Returns:
            Kinds whose saved state does not fit and was dropped.

        Raises:
            CheckpointError: If the arrays of a group are damaged, or belong to another rank.
        """
        saved = state["groups"]
        if any(part is None for part in saved):
            raise CheckpointError(
                "state: expected the state_dict() of rank 0, got that of another rank. With "
                "sharded parameters, save the state of rank 0 and load it on every rank."
            )
        by_key = {(repr(part["key"]), tuple(part["names"])): part for part in saved}
        dropped = []
        for group in self.groups:
            part = by_key.get((repr(group.plan.key()), group.names))
            if part is None:
                dropped.append(group.plan.kind)
            else:
                group.load_state_dict(part)
        self._calls = Counter({int(k): int(n) for k, n in state["calls"]})
        self._absent = {int(k): int(n) for k, n in state["absent"]}
        self.skill = Skill.from_state(state["skill"])
        self.skills = {kind: Skill.from_state(s) for kind, s in state["skills"].items()}
        latest = [reading(tag, values) for tag, values in state["latest"]]
        self._latest = {found.names: found for found in latest}
        self._update_gate()
        return dropped
