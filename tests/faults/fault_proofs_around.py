"""Proofs of the faults around a run: ranks, data, servers, folders, checkpoints."""

import copy
import errno
import io
import json
import os
import pickle
import warnings
from functools import partial
from operator import itemgetter
from pathlib import Path

import pytest
import torch
from loops import Bench, make_config, same_bits
from run_logs import ROWS, written

from faulty import check_consistent, check_goes_on
from hybrid_predict.audit.file import read_audit
from hybrid_predict.errors import CheckpointError, ConfigError
from hybrid_predict.runs.log import find_logs, read_log
from hybrid_predict.runs.runtime import Rows, writable_folder, write_json


def scheduler_used_up(tmp_path, monkeypatch):
    for total, short in ((30, False), (21, True)):
        bench = Bench(make_config())
        scheduler = torch.optim.lr_scheduler.OneCycleLR(bench.optimizer, 0.01, total_steps=total)
        steps = 0
        try:
            while not bench.engine.done:
                for _ in range(bench.step().ticks):
                    scheduler.step()
                    steps += 1
        except ValueError:
            assert short
        assert steps == total
        assert bench.engine.done is not short
        check_consistent(bench)
        if not short:  # a loop by epochs goes on until its epoch ends
            assert [bench.step().ticks for _ in range(3)] == [0] * 3


def no_folder(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ConfigError, match="can be written to"):
        writable_folder(tmp_path / "file" / "out")

    def read_only(*args, **kwargs):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("tempfile.TemporaryFile", read_only)
    with pytest.raises(ConfigError, match="Read-only file system"):
        writable_folder(tmp_path / "out")


def full_folder(tmp_path, monkeypatch):
    path = write_json({"runs": 1}, tmp_path / "results.json")
    runs = partial(Rows, tmp_path / "runs.jsonl", itemgetter("seed"))
    store = runs()
    store.add({"seed": 0, "loss": 1.0})

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        patch.setattr(Path, "open", full)
        with pytest.raises(ConfigError, match=r"results\.json.*No space left on device"):
            write_json({"runs": 2}, path)
        with pytest.raises(ConfigError, match="No space left on device"):
            store.add({"seed": 1, "loss": 1.0})
    assert path.read_text() == '{\n  "runs": 1\n}\n'
    with (tmp_path / "runs.jsonl").open("a") as file:
        file.write('{"task": "ml')  # what a full disk leaves of a line
    assert 0 in runs().done


def damaged_log(tmp_path, monkeypatch):
    path = tmp_path / "hybrid_predict.jsonl"
    lines = [json.dumps(line).encode() for line in written(ROWS)]
    path.write_bytes(b"\n".join([*lines[:2], "é".encode()[:1], *lines[2:]]))
    log = read_log(path)
    assert (len(log.rows), log.status) == (len(ROWS), "finished")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="expected a folder with a"):
        find_logs(tmp_path)[0]


def refused(change, words):
    def prove(tmp_path, monkeypatch):
        bench = Bench(make_config())
        bench.train(8)
        kept, engine = bench.kept(), bench.engine.state_dict()
        for spoiled in change(copy.deepcopy(engine)):
            with pytest.raises(CheckpointError, match=f"^state: .*{words}"):
                bench.engine.load_state_dict(spoiled)
            assert same_bits(bench.engine.state_dict(), engine)
        assert same_bits(kept, bench.kept())
        check_goes_on(bench)

    return prove


def another_model(saved):
    yield Bench(make_config(), "tied").engine.state_dict()
    yield {**saved, "names": ["decoder.weight"]}


def another_version(saved):
    yield {**saved, "version": 1}
    yield {**saved, "version": 99}


class Malicious:
    """Runs code when it is unpickled without care."""

    def __reduce__(self):
        return os.putenv, ("HYBRID_PREDICT_FAULT", "1")


def code_in_a_checkpoint(tmp_path, monkeypatch):
    bench = Bench(make_config())
    bench.train(8)
    buffer = io.BytesIO()
    torch.save({**bench.engine.state_dict(), "names": Malicious()}, buffer)
    with pytest.raises(pickle.UnpicklingError, match=r"(?i)weights.only"):
        torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
    check_goes_on(bench)


def foreign_class(tmp_path, monkeypatch):
    place = tmp_path / "called"
    file = tmp_path / "file.yaml"
    for field in ("updates", "predictors"):
        described = {"class_path": "os.mkdir", "init_args": {"path": str(place)}}
        audit = {"hybrid": {field: {"hidden": described}}}
        file.write_text(json.dumps({"model": {}, "trainer": {}, "audit": audit}))
        with pytest.raises(ConfigError, match=f"hybrid.{field}"):
            read_audit(file)
    assert not place.exists()


def killed(tmp_path, monkeypatch):
    from lightning_killed import check_goes_on, kill_at_a_random_moment

    warnings.filterwarnings("ignore", "Checkpoint directory .* exists and is not empty")
    kill_at_a_random_moment(tmp_path / "run", seed=3)
    check_goes_on(tmp_path / "run")


AROUND = {
    "`kill -9` at any moment": killed,
    "A scheduler's `total_steps` are nearly used up": scheduler_used_up,
    "The output folder is read-only": no_folder,
    "The output folder is full": full_folder,
    "The run log is damaged, or a pipe stands in its place": damaged_log,
    "Of another model": refused(another_model, "another model"),
    "Of another version": refused(another_version, "version"),
    "With code inside": code_in_a_checkpoint,
    "`class_path` under `updates` or `predictors` names": foreign_class,
}
