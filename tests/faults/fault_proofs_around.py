"""Proofs of the faults around a run: ranks, data, servers, folders, checkpoints."""

import copy
import errno
import io
import json
import math
import os
import pickle
import signal
import threading
import warnings
from pathlib import Path

import pytest
import torch
from damage import REMOVED, changed, entries
from loops import Bench, make_config, same_bits, weights
from run_logs import ROWS, written

from benchmarks.plan import Cell
from benchmarks.run import stored
from faulty import Log, check_consistent, check_goes_on, state
from hybrid_predict import CheckpointError, ConfigError, HybridTrainer, OptimizerWrapper, TorchModel
from hybrid_predict.integrations import loggers
from hybrid_predict.integrations.loggers import MLflowAdapter
from hybrid_predict.report.run_log import find_log, read_log
from hybrid_predict.runs.runtime import writable_folder, write_json


class Workshop:
    """A trainer over batches by number."""

    def __init__(self):
        self.bench = Bench(None)
        self.trainer = HybridTrainer(
            TorchModel(self.bench.model, lambda m, k: self.bench.case.loss(m, self.batch(k))),
            OptimizerWrapper(self.bench.optimizer),
            make_config(),
        )
        self.bench.engine = self.trainer.engine

    def batch(self, k):
        return self.bench.case.batch(k)


def loader_raises(tmp_path, monkeypatch):
    shop, kept = Workshop(), {}

    def batches():
        yield from range(8)
        kept.update(weights(shop.bench.model))
        raise OSError("the share is gone")

    with pytest.raises(OSError, match="share"):
        shop.trainer.fit(batches())
    assert same_bits(weights(shop.bench.model), kept)
    check_goes_on(shop.bench)


def loader_ends(tmp_path, monkeypatch):
    shop = Workshop()
    assert shop.trainer.fit(range(8)).full_steps == 8
    assert not shop.trainer.done
    check_consistent(shop.bench)
    assert shop.trainer.fit(range(8, 100)).steps == 30


def loader_repeats(tmp_path, monkeypatch):
    shop = Workshop()
    ledger = shop.trainer.fit(0 for _ in range(100))
    assert (ledger.full_steps, ledger.steps, ledger.undone_steps) == (17, 30, 0)
    check_consistent(shop.bench)


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


class Server:
    """Keeps what it is sent, but is down for a number of calls, and may be slow."""

    def __init__(self, down=0):
        self.down, self.tried, self.kept = down, 0, []
        self.gate = threading.Event()

    def take(self, row):
        self.tried += 1
        if self.tried <= self.down:
            raise ConnectionError("no route to host")
        self.kept.append(row)


def server_down(tmp_path, monkeypatch):
    server, adapter = Server(down=3), MLflowAdapter(None)
    with Log() as log:
        for row in range(50):
            adapter.attempt(lambda row=row: server.take(row))
        adapter.close(60.0)
    assert server.kept == list(range(3, 50)) and adapter.failures == 3
    assert len(log.lines) == 1 and "could not record the run" in log.lines[0]


def server_slow(tmp_path, monkeypatch):
    server, adapter = Server(), MLflowAdapter(None)
    adapter.attempt(server.gate.wait)
    for row in range(50):
        adapter.attempt(lambda row=row: server.take(row))
    assert server.kept == []  # nothing has waited for the server
    server.gate.set()
    adapter.close(60.0)
    assert server.kept == list(range(50)) and adapter.failures == 0


def server_hangs(tmp_path, monkeypatch):
    monkeypatch.setattr(loggers, "MOST_WAITING", 20)
    server, adapter = Server(), MLflowAdapter(None)
    busy = threading.Event()
    adapter.attempt(lambda: busy.set() or server.gate.wait())
    busy.wait()
    with Log() as log:
        for row in range(50):
            adapter.attempt(lambda row=row: server.take(row))
        adapter.close(0.01)
    assert adapter.failures == 50 + 1  # all that waited, and the call that hangs
    assert len(log.lines) == 1 and "Full" in log.lines[0]
    server.gate.set()


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
    cells = [Cell("mlp", "tuned", "hybrid", k, 0.1, 1.0, True, 12, "x") for k in range(2)]
    store = stored(tmp_path)
    store.add({**vars(cells[0]), "loss": 1.0})

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        patch.setattr(os, "fsync", full)
        with pytest.raises(ConfigError, match=r"results\.json.*No space left on device"):
            write_json({"runs": 2}, path)
        with pytest.raises(ConfigError, match="No space left on device"):
            store.add({**vars(cells[1]), "loss": 1.0})
    assert path.read_text() == '{\n  "runs": 1\n}\n'
    with (tmp_path / "runs.jsonl").open("a") as file:
        file.write('{"task": "ml')  # what a full disk leaves of a line
    assert cells[0] in stored(tmp_path).done


def damaged_log(tmp_path, monkeypatch):
    path = tmp_path / "hybrid_predict.jsonl"
    lines = [json.dumps(line).encode() for line in written(ROWS)]
    path.write_bytes(b"\n".join([*lines[:2], "é".encode()[:1], b"[" * 100_000, *lines[2:]]))
    log = read_log(path)
    assert (len(log.rows), log.unread, log.status) == (len(ROWS), 2, "finished")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="expected a folder with a"):
        find_log(tmp_path)


def refused(change, words="^state: "):
    def prove(tmp_path, monkeypatch):
        bench = Bench(make_config(lag=1))
        bench.train(8)
        kept, engine = state(bench), bench.engine.state_dict()
        for spoiled in change(copy.deepcopy(engine)):
            with pytest.raises(CheckpointError, match=words):
                bench.engine.load_state_dict(spoiled)
            assert same_bits(bench.engine.state_dict(), engine)
        assert same_bits(kept, state(bench))
        check_goes_on(bench)

    return prove


def another_model(saved):
    yield Bench(make_config(), "tied").engine.state_dict()
    yield {**saved, "names": ["decoder.weight"]}


def another_version(saved):
    yield {**saved, "version": 1}
    yield {**saved, "version": 99}


def truncated(saved):
    for path in entries(saved):  # the others are in test_damaged_states
        if len(path) == 1 or (path[:3] == ("tensors", "groups", 0) and len(path) == 4):
            yield changed(saved, path, REMOVED)


def tampered(saved):
    first = ("tensors", "groups", 0)
    for count in (-5, 2, 2.5):
        yield changed(saved, ("ledger", "full_steps"), count)
    yield changed(saved, ("ledger", "undone_steps"), 0.5)
    yield changed(saved, (*first, "average"), [torch.zeros(1)])
    yield changed(saved, (*first, "count"), "many")
    yield changed(saved, ("limits", 0), [math.nan, 1.0, 3])
    yield changed(saved, ("queue", 0, 1), [0.0])
    yield changed(saved, ("queue", 0, 0, "predicted"), -1)


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


def killed(tmp_path, monkeypatch):
    from lightning_killed import check_ended_anywhere

    warnings.filterwarnings("ignore", "Checkpoint directory .* exists and is not empty")
    check_ended_anywhere(tmp_path, signal.SIGKILL, seed=3)


def asked_to_end(act):
    def prove(tmp_path, monkeypatch):
        from lightning.pytorch.callbacks import Callback
        from lightning_killed import check_goes_on
        from lightning_worker import train

        class Stop(Callback):
            def on_before_zero_grad(self, trainer, *args):
                if trainer.global_step >= 50:
                    act()

        warnings.filterwarnings("ignore", "Checkpoint directory .* exists and is not empty")
        kept = signal.getsignal(signal.SIGINT)
        with pytest.raises(SystemExit):
            train(tmp_path / "run", Stop())
        signal.signal(signal.SIGINT, kept)  # Lightning ignores it once it has met one
        check_goes_on(tmp_path / "run", inside=act is ctrl_c)

    return prove


def ctrl_c():
    raise KeyboardInterrupt


def sigterm():
    os.kill(os.getpid(), signal.SIGTERM)


def one_rank_fails(tmp_path, monkeypatch):
    from launcher import launch

    first, second = launch(["distributed_failures:predictor"], tmp_path)["predictor"]
    assert (first["type"], second["type"]) == ("RankError", "ZeroDivisionError")
    assert "rank 1 failed with ZeroDivisionError: no more" in first["text"]
    assert first["whole"] and second["whole"]


AROUND = {
    "`kill -9` at any moment": killed,
    "SIGTERM in a Trainer, in any hook": asked_to_end(sigterm),
    "Ctrl-C in a Trainer, in any hook of the module and of any": asked_to_end(ctrl_c),
    "One of several ranks fails": one_rank_fails,
    "A data loader raises": loader_raises,
    "A data loader ends early": loader_ends,
    "A data loader repeats one batch forever": loader_repeats,
    "A scheduler's `total_steps` are nearly used up": scheduler_used_up,
    "The server is down": server_down,
    "The server is slow": server_slow,
    "The server hangs": server_hangs,
    "The output folder is read-only": no_folder,
    "The output folder is full": full_folder,
    "The run log is damaged, or a pipe stands in its place": damaged_log,
    "Of another model": refused(another_model, "another model"),
    "Of another version": refused(another_version, "version"),
    "Truncated: any entry missing": refused(truncated),
    "Tampered with: counts, averages, measurements": refused(tampered),
    "With code inside": code_in_a_checkpoint,
}
