"""Random configurations, runs, commands and files: nothing but typed errors, and whole runs."""

import contextlib
import copy
import dataclasses

import pytest
import torch
from cases import MODELS, OPTIMIZERS
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from loops import SPOILERS, Bench, hurry, same_bits

from benchmarks.__main__ import main as bench
from faulty import state
from hybrid_predict import HybridConfig, HybridEngine, MomentumPredictor, SpectralUpdate, Verdict
from hybrid_predict.cli import main
from hybrid_predict.config import KINDS
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


UPDATES = st.builds(
    SpectralUpdate,
    share=st.sampled_from([0.0, 0.3, 1.0]),
    bound=st.sampled_from([1.0, 2.0, 1e9]),
    longest=st.sampled_from([0, 3, 8192]),
    newest=st.floats(0, 0.5),
)
PREDICTORS = st.builds(
    MomentumPredictor, decay=st.floats(0, 0.95), coefficient=st.floats(-1, 1), gated=st.booleans()
)
PATTERNS = st.one_of(
    st.builds(lambda f, p: {"full_steps": f, "predict_steps": p}, st.integers(1, 3),
              st.integers(1, 3)),
    st.builds(lambda s: {"speedup": s}, st.sampled_from(["auto", 1, 1.2, 1.5, 2.0, 3.0])),
)  # fmt: skip
RUNS = st.fixed_dictionaries(
    {
        "updates": st.dictionaries(st.sampled_from(KINDS), UPDATES),
        "predictors": st.dictionaries(st.sampled_from(KINDS), PREDICTORS),
        "warmup_steps": st.sampled_from([0, 3, 0.2]),
        "cooldown_steps": st.sampled_from([0, 3, 0.2]),
        "history_dtype": st.sampled_from(["float32", "bfloat16"]),
        "shadow": st.booleans(),
        "pattern": PATTERNS,
    }
)


@pytest.mark.filterwarnings("ignore:.*only .* fit between")
@settings(anywhere, max_examples=12)
@given(
    changes=RUNS,
    model=st.sampled_from(sorted(MODELS)),
    optimizer=st.sampled_from(sorted(OPTIMIZERS)),
    spoiler=st.sampled_from(["nan-loss", "inf-loss", "one-gradient"]),
    bad=st.integers(3, 12),
)
def test_every_configuration_ends_its_run_with_whole_weights(
    changes, model, optimizer, spoiler, bad
):
    pattern = changes.pop("pattern")
    own = HybridConfig(total_steps=16, max_overhead=1e9, **changes, **pattern)
    one, ticks, verdicts, spoiled = Bench(own, model, optimizer), 0, [], False
    if own.paced:
        hurry(one.engine)
    while not one.engine.done:
        before = state(one)
        one.engine.before_step()
        moved = not same_bits(state(one), before)
        loss = one.loss()
        spoils = moved and one.taken >= bad and not spoiled
        (SPOILERS[spoiler](one.model, loss) if spoils else loss).backward()
        one.optimizer.step()
        one.optimizer.zero_grad()
        one.taken += 1
        record = one.engine.after_step(loss)
        ticks += record.ticks
        verdicts.append(record.verdict)
        if spoils:
            assert same_bits(state(one), before)
            spoiled = True
    assert all(torch.isfinite(x).all() for x in state(one)[0].values())
    ledger = one.engine.ledger
    assert ticks == ledger.steps == 16 == ledger.full_steps + ledger.predicted_steps
    assert (ledger.undone_steps > 0) is spoiled
    assert (Verdict.UNDONE in verdicts) is spoiled
    assert not one.engine._state.plain
    again = Bench(own, model, optimizer)
    again.engine.load_state_dict(copy.deepcopy(one.engine.state_dict()))
    assert again.engine.done


WORDS = ["demo", "audit", "run", "table", "--seeds", "--output-dir", "-1", "nan", "x.yaml"]


@anywhere
@given(words=st.lists(st.sampled_from(WORDS) | st.text(max_size=4), max_size=4))
@pytest.mark.parametrize("program", [main, bench], ids=["hybrid-predict", "benchmarks"])
def test_commands_that_make_no_sense_say_so(program, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert program([*words, "--no-such-option"]) in (0, 2)
    assert "Traceback" not in capsys.readouterr().err
