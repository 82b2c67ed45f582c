"""The entries of the table of faults about files that are damaged, or mean no good."""

import copy
from types import SimpleNamespace

import pytest
import torch
from loops import Bench, make_config, same_bits

from fault_table import Fault
from hybrid_predict import CheckpointError, ConfigError
from hybrid_predict.integrations.lightning_start import check_saved, saved_history
from hybrid_predict.report.history import RunHistory
from hybrid_predict.report.stop_request import STOP, is_asked
from hybrid_predict.runs.objects import made
from hybrid_predict.torch.random_states import random_states, set_random_states


def damaged_callback(tmp_path, monkeypatch):
    saved = {"engine": Bench(make_config()).engine.state_dict(), "clock": {"steps": 0}}
    saved |= {"history": RunHistory().state_dict(), "random": [random_states()]}
    check_saved(saved)
    assert saved_history(saved) == RunHistory()
    before = copy.deepcopy(random_states())
    for name in saved:
        with pytest.raises(CheckpointError, match=f"expected {name} to be a"):
            check_saved({**saved, name: None})
    with pytest.raises(CheckpointError, match="stride"):
        saved_history({**saved, "history": {**saved["history"], "stride": 0}})
    torch.manual_seed(3)
    moved = random_states()
    with pytest.raises(CheckpointError, match="expected a complete, unaltered state"):
        set_random_states({**before, "torch": torch.zeros(3)})
    assert same_bits(random_states(), moved)


def torn_file(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    from hybrid_predict.integrations.huggingface import FILE, _load

    folder = tmp_path / "checkpoint-1"
    folder.mkdir()
    torch.save({"run": "x"}, folder / FILE)
    whole = (folder / FILE).read_bytes()
    args = SimpleNamespace(resume_from_checkpoint=None, output_dir=tmp_path)
    for content in (whole, whole[:100], b""):
        (folder / FILE).write_bytes(content)
        with pytest.raises(CheckpointError, match="expected"):
            _load(args, SimpleNamespace(global_step=1))


def damaged_request(tmp_path, monkeypatch):
    log = tmp_path / "run.jsonl"
    for text in ("[" * 100_000, '{"started": 1.0' + " " * 2**21 + "}", "\xff", "[1.0]"):
        log.with_name(STOP).write_text(text)
        assert not is_asked(log, 1.0)


def foreign_class(tmp_path, monkeypatch):
    place = tmp_path / "called"
    for field in ("updates", "predictors"):
        described = {"class_path": "os.mkdir", "init_args": {"path": str(place)}}
        with pytest.raises(ConfigError, match=f"{field}.hidden.class_path"):
            made(field, {"hidden": described})
    assert not place.exists()


FILES = [
    Fault("Files", "the callback's entries in a Lightning checkpoint are damaged: clock, history, "
          "random states", "`CheckpointError` at the start of training, with weights and optimizer "
          "as Lightning has loaded them, and random states as they were.", damaged_callback),
    Fault("Files", "`hybrid_predict.pt` in a checkpoint of Hugging Face is torn or foreign",
          "`CheckpointError` before training begins.", torn_file),
    Fault("Files", "a request to stop is damaged or long", "Nothing: the run goes on.",
          damaged_request),
    Fault("Files", "`class_path` under `updates` or `predictors` names something else",
          "`ConfigError`; nothing is called. The module that it names is imported.", foreign_class),
]  # fmt: skip
