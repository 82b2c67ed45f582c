"""Random configurations, runs, commands and files: nothing but typed errors, and whole runs."""

import contextlib
import dataclasses

import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hybrid_predict import HybridConfig, HybridEngine
from hybrid_predict.errors import HybridPredictError

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.integers(), st.floats(), st.text(max_size=5),
    st.sampled_from(["hidden", "spectral", "momentum", "auto"]),
)  # fmt: skip
VALUES = st.one_of(
    SCALARS,
    st.lists(SCALARS, max_size=2),
    st.dictionaries(st.text(max_size=3) | st.just("hidden"), SCALARS, max_size=2),
)
FIELDS = [field.name for field in dataclasses.fields(HybridConfig)]
anywhere = settings(
    max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)


@anywhere
@given(changes=st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=3))
@example(changes={"total_steps": 10, "speedup": 1e300})
@example(changes={"total_steps": 2**70})
@example(changes={"predictors": {"hidden": []}})
@example(changes={"kinds": {3: "hidden"}})
def test_configurations_are_good_or_refused_by_name(changes):
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with contextlib.suppress(HybridPredictError):
        config = HybridConfig(**{"total_steps": 10, **changes})
        if (config.total_steps or 0) <= 10**4:
            HybridEngine(model, optimizer, config).detach()
