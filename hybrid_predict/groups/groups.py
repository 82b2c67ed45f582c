"""All tensors that are corrected or predicted, in groups that follow changes of the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, final

from torch import Tensor

from hybrid_predict.config import HybridConfig
from hybrid_predict.errors import CheckpointError
from hybrid_predict.groups.group import Group, Treatment
from hybrid_predict.model.parameters import ParameterMapper
from hybrid_predict.optimizers.wrapper import OptimizerWrapper
from hybrid_predict.policy.budget import shortest_period, turns
from hybrid_predict.policy.policy import Policy
from hybrid_predict.ranks import shards
from hybrid_predict.updates import make_update

if TYPE_CHECKING:
    from hybrid_predict.forecast.predicted import PredictedSteps
    from hybrid_predict.forecast.predictors import Predictor
    from hybrid_predict.policy.predicting import PredictingPolicy

LEFT = "matrices are left to an optimizer"
RELATIVE = f"{LEFT} whose updates grow with the weights"
COMPLEX = "complex parameters are left to the optimizer"
"""Events of the ledger: why tensors are not corrected."""


@final
class Groups:
    """Groups the trained tensors by kind and optimizer, and forecasts their movement.

    The policy, which decides about predicted steps, follows changes of groups and budget.
    """

    def __init__(
        self,
        mapper: ParameterMapper,
        optimizer: OptimizerWrapper,
        config: HybridConfig,
        policy: Policy,
    ) -> None:
        self._mapper = mapper
        self._optimizer = optimizer
        self._policy = policy
        self._config = config
        updates = {kind: make_update(u) for kind, u in config.active_updates.items()}
        self._updates = {kind: update for kind, update in updates.items() if update.share > 0}
        self._predictors = _predictors(config)
        self._groups: list[Group] = []
        self.left_out: set[str] = set()  # why tensors are left to the optimizer, as events
        self._calls: Counter[int] = Counter()  # updates of the last full step by optimizer
        self._resting: list[bool] = []  # which predicted groups were, as the policy knows them
        self._layout: tuple[Any, ...] = ()
        self._budget: float | None = None
        # Full steps from one correction of a tensor to the next; None if none is in the budget.
        self.period: int | None = 1
        self.refresh()

    def __iter__(self) -> Any:
        return iter(self._groups)

    @property
    def idle(self) -> bool:
        """Whether the configuration corrects and predicts nothing."""
        return not self._updates and not self._predictors

    @property
    def dormant(self) -> bool:
        """Whether nothing is corrected, and no predicted step can be made, as things stand."""
        corrected = self.period and any(group.treatment.update for group in self._groups)
        return not (corrected or self._policy.judged or self._config.shadow)

    @property
    def predicted(self) -> list[Group]:
        """The groups that have a predictor."""
        return [group for group in self._groups if group.treatment.predictor is not None]

    @property
    def held_bytes(self) -> int:
        """Memory in bytes that is kept between full steps now."""
        return sum(group.held_bytes for group in self._groups)

    @property
    def carries(self) -> dict[str, Tensor]:
        """Kahan compensation of the half-precision weights, by parameter name."""
        found: dict[str, Tensor] = {}
        for group in self._groups:
            found.update(zip(group.names, group.carries, strict=False))
        return found

    def of(self, index: int) -> list[Group]:
        """Return the groups of one optimizer."""
        return [group for group in self._groups if group.treatment.optimizer == index]

    def count_updates(self, calls: Counter[int], updated: Collection[int]) -> None:
        """Note the updates of a full step by optimizer, and what had a gradient, by ``id``.

        A group without an update is not predicted in the next 64 full steps: predicted steps would
        repeat its old movement, and they might not be verified.
        """
        if not calls:
            return
        self._calls = calls
        for group in self.predicted:
            group.count_full_step(updated)
        if [group.resting for group in self.predicted] != self._resting:
            self._follow()

    def _follow(self) -> None:
        parts = [group.part() for group in self.predicted]
        self._resting = [part.resting for part in parts]
        affordable = self.period is not None
        self._policy.follow(parts, self._mapper.count_trained(), affordable=affordable)

    def refresh(self) -> bool:
        """Regroup if parameters were frozen, unfrozen or added, and return whether any were."""
        if self.idle:
            return False
        layout = self._optimizer.layout()
        if layout == self._layout:
            return False
        self._layout = layout
        self._mapper.follow(self._optimizer.parameters(), self._optimizer.numbers())
        self.regroup()
        return True

    def forget(self) -> None:
        """Forget what is known of all tensors."""
        self._groups = []
        self.regroup()

    def regroup(self) -> None:
        """Group the tensors by their current kinds; what is known about unchanged ones is kept."""
        if self.idle:
            return
        before = self._groups
        self._groups = []
        for treatment, names, parameters in self._partition():
            known = (g for g in before if g.holds(treatment, names, parameters))
            group = next(known, None)
            if group is None:
                group = Group(treatment, names, parameters)
                for old in before:
                    group.inherit(old)
            group.follow(parameters)
            self._groups.append(group)
        places = {name: k for k, name in enumerate(self._mapper.names)}
        self._groups.sort(key=lambda group: places.get(group.names[0], 0))  # as after a resume
        if self._budget is None:
            self._follow()
        else:
            self.apply_budget(self._budget)

    def _partition(self) -> list[tuple[Treatment, list[str], list[Tensor]]]:
        mapper = self._mapper
        owners = self._optimizer.numbers()
        rules = self._optimizer.rules()
        parts: dict[Any, tuple[Treatment, list[str], list[Tensor]]] = {}
        columns = zip(mapper.names, mapper.parameters, mapper.kinds, strict=True)
        for name, p, kind in columns:
            wanted = id(p) in owners and p.requires_grad and shards.form(p).numel()
            update = self._updates.get(kind)
            predictor = self._predictors.get(kind)
            if not wanted or (update is None and predictor is None):
                continue
            if p.is_complex():
                self.left_out.add(COMPLEX)
                continue
            rule = rules[id(p)]
            if update is not None and (rule.relative or rule.unknown):
                self.left_out.add(RELATIVE if rule.relative else f"{LEFT} {rule.unknown}")
                update = None
            update = update if shards.form(p).dim() > 1 else None
            if update is None and predictor is None:
                continue
            index = owners[id(p)]
            momentum = self._optimizer.momentum(index)
            about = self._config.history_dtype, momentum, self._config.paced
            treatment = Treatment(kind, index, update, predictor, *about)
            key = (kind, index, update is None)
            _, names, members = parts.setdefault(key, (treatment, [], []))
            names.append(name)
            members.append(p)
        return list(parts.values())

    def apply_budget(self, budget: float) -> float:
        """Choose the shortest period for a budget of operations per full step on this rank.

        Return how many operations corrections then add on average.
        """
        self._budget = budget
        self.period = shortest_period(self.operations, budget)
        self.set_period(self.period)
        self._follow()
        return self.operations(self.period) if self.period else 0.0

    def set_period(self, period: int | None) -> None:
        """Correct each tensor in one of so many full steps from now on; None for no correction."""
        dealt = iter(turns(self._work(period or 1), period or 1))
        for group in self._groups:
            group.set_period(period, [next(dealt) for _ in group.names])

    def operations(self, period: int) -> float:
        """Return what correcting adds to an average full step of the rank that has most."""
        loads = Counter[int]()
        for rank, operations in self._work(period):
            loads[rank] += operations
        return max(loads.values(), default=0) / period

    def _work(self, period: int) -> list[tuple[int, int]]:
        found = []
        for group in self._groups:
            calls = max(1, self._calls[group.treatment.optimizer])
            found += [(rank, calls * work) for rank, work in group.work(period)]
        return found

    def predict(
        self, count: int, policy: PredictingPolicy, calls: Mapping[int, int]
    ) -> PredictedSteps | None:
        """Return so many predicted steps, before they are taken; None if they would move nothing.

        ``calls`` counts the updates of the open full step by optimizer.
        """
        from hybrid_predict.forecast.predicted import PredictedSteps, joint_forecast

        options = self._optimizer.options()
        members = []
        for group, part in zip(self.predicted, policy.parts, strict=True):
            if not part.resting and group.forecaster is not None:
                members.append((part, group.forecaster, group.rates(options)))
        forecast = joint_forecast(members, policy, self._calls)
        if not forecast.keys:
            return None
        return PredictedSteps(self._mapper, policy, forecast, count, self.carries, calls)

    def free(self) -> None:
        """Free all memory for the rest of the run."""
        self._groups = []
        self._updates = {}
        self._predictors = {}
        self._follow()

    def state_dict(self, *, whole: bool = True) -> dict[str, Any]:
        """Return the state of all groups, and which optimizers updated last."""
        return {
            "groups": [group.state_dict(whole=whole) for group in self._groups],
            "calls": [[k, n] for k, n in self._calls.items()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> list[str]:
        """Load a state into new groups; return kinds that do not fit it and were dropped.

        Raises:
            CheckpointError: If the state is that of another rank.
        """
        saved = state["groups"]
        if None in saved:  # another rank than the first one has no whole arrays
            raise CheckpointError(
                "state: expected the state_dict() of rank 0, got that of another rank. With "
                "sharded parameters, save the state of rank 0 and load it on every rank."
            )
        by_key = {(repr(part["key"]), tuple(part["names"])): part for part in saved}
        dropped = []
        for group in self._groups:
            part = by_key.get((repr(group.treatment.key()), group.names))
            if part is None:
                dropped.append(group.treatment.kind)
            else:
                group.load_state_dict(part)
        self._calls = Counter(dict(state["calls"]))
        self._follow()
        return dropped


def _predictors(config: HybridConfig) -> dict[str, Predictor]:
    if not config.active_predictors:
        return {}
    # Runs without predicted steps import nothing about forecasts.
    from hybrid_predict.forecast.predictors import make_predictor

    return {kind: make_predictor(choice) for kind, choice in config.active_predictors.items()}
