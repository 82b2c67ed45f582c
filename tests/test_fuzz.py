"""Random configurations, commands, checkpoints and results files: nothing but typed errors."""

import contextlib
import dataclasses
import json
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from faulty import replaced
from hybrid_predict import CheckpointError, ConfigError, HybridConfig, HybridEngine, SavingsLedger
from hybrid_predict.auditing.store import RunStore
from hybrid_predict.bench.run import Store
from hybrid_predict.cli import main
from hybrid_predict.errors import HybridPredictError
from loops import Bench, make_config, same_bits

RESULTS = Path(__file__).parents[1] / "docs" / "results"
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["hidden", "spectral", "alignment", "keep"]),
)
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


WORDS = ["demo", "audit", "bench", "run", "table", "--seeds", "--output-dir", "-1", "nan", "x.yaml"]


@anywhere
@given(words=st.lists(st.sampled_from(WORDS) | st.text(max_size=4), max_size=4))
def test_commands_that_make_no_sense_say_so(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*words, "--no-such-option"]) in (0, 2)
    assert "Traceback" not in capsys.readouterr().err


def leaves(value, path=()):
    """The path of every leaf of nested containers."""
    if isinstance(value, (dict, list)):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        return [leaf for key, item in pairs for leaf in leaves(item, (*path, key))]
    return [path]


@anywhere
@given(data=st.data())
def test_checkpoints_load_or_are_refused_and_change_nothing(data):
    bench = Bench(make_config(lag=1))
    bench.train(5)
    kept = bench.engine.state_dict()
    path = data.draw(st.sampled_from(leaves(kept)))
    try:
        bench.engine.load_state_dict(replaced(kept, path, data.draw(VALUES)))
    except CheckpointError:
        assert same_bits(bench.engine.state_dict(), kept)


@anywhere
@given(data=st.data())
def test_ledgers_load_or_are_refused(data):
    ledger = SavingsLedger(full_steps=3, equivalent_steps=4)
    ledger.record(2, "because")
    plain = json.loads(ledger.to_json())
    path = data.draw(st.sampled_from(leaves(plain)))
    text = json.dumps(replaced(plain, path, data.draw(VALUES)))
    cut = data.draw(st.integers(0, len(text)))
    for tried in (text, text[:cut]):
        with contextlib.suppress(ConfigError):
            SavingsLedger.from_json(tried).summary()


@anywhere
@given(text=st.binary(max_size=40) | st.builds(json.dumps, VALUES).map(str.encode))
def test_result_folders_load_or_are_refused(text, tmp_path):
    (tmp_path / "runs").mkdir(exist_ok=True)
    (tmp_path / "runs" / "full-seed0.json").write_bytes(text)
    (tmp_path / "runs.jsonl").write_bytes(text)
    with pytest.raises(ConfigError):
        RunStore(tmp_path, {"a": 1}).load()
    with contextlib.suppress(ConfigError):
        assert Store(tmp_path).done == {}


@pytest.fixture(scope="module")
def small():
    """The committed results of the benchmark, cut down to what a table takes little time for."""
    whole = json.loads((RESULTS / "bench-core.json").read_text())
    return {**whole, "runs": whole["runs"][:3]}


@settings(anywhere, max_examples=8)
@given(data=st.data())
def test_results_files_make_a_table_or_are_refused(data, small, tmp_path, capsys):
    path = tmp_path / "results.json"
    if data.draw(st.booleans()):
        text = json.dumps(small)
        path.write_text(text[: data.draw(st.integers(0, len(text) - 1))])
    else:
        name = data.draw(st.sampled_from(sorted(small)))
        path.write_text(json.dumps({**small, name: data.draw(VALUES)}))
    assert main(["bench", "table", str(path)]) in (0, 2)
    assert "Traceback" not in capsys.readouterr().err
