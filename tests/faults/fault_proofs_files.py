"""Proofs of the faults of files that are damaged, or mean no good."""

import copy
from types import SimpleNamespace

import pytest
import torch
from loops import Bench, make_config, same_bits

from hybrid_predict import CheckpointError, ConfigError
from hybrid_predict.integrations.lightning_start import saved_ledger
from hybrid_predict.objects import objects
from hybrid_predict.torch.random_states import random_states, set_random_states


def damaged_callback(tmp_path, monkeypatch):
    saved = {"engine": Bench(make_config()).engine.state_dict(), "clock": {"steps": 0}}
    saved |= {"random": [random_states()]}
    saved_ledger(saved)
    before = copy.deepcopy(random_states())
    for name in saved:
        with pytest.raises(CheckpointError, match=f"expected {name} to be a"):
            saved_ledger({**saved, name: None})
    torch.manual_seed(3)
    moved = random_states()
    with pytest.raises(CheckpointError, match="expected a complete, unaltered state"):
        set_random_states({**before, "torch": torch.zeros(3)})
    assert same_bits(random_states(), moved)


def cut_off_file(tmp_path, monkeypatch):
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


def foreign_class(tmp_path, monkeypatch):
    place = tmp_path / "called"
    for field in ("updates", "predictors"):
        described = {"class_path": "os.mkdir", "init_args": {"path": str(place)}}
        with pytest.raises(ConfigError, match=f"{field}.hidden.class_path"):
            objects(field, {"hidden": described})
    assert not place.exists()


FILES = {
    "The callback's entries in a Lightning checkpoint are": damaged_callback,
    "`hybrid_predict.pt` in a checkpoint of Hugging Face is cut": cut_off_file,
    "`class_path` under `updates` or `predictors` names": foreign_class,
}
