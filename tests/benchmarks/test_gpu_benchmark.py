"""What is measured on a GPU, at toy size on any machine: shards, the record's model, commands."""

import json

import numpy as np
import pytest
import torch

from benchmarks.gpu import __main__ as program
from benchmarks.gpu import record, shards, table
from benchmarks.gpu.gpt2 import GPT2, Size
from benchmarks.gpu.shards import Shards
from benchmarks.plan import to_row
from hybrid_predict.errors import ConfigError

ON_CPU = pytest.mark.skipif(torch.cuda.is_available(), reason="has a CUDA device")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:.*predicted steps only:UserWarning"),
]


def write(path, tokens, **header):
    """Write a shard, whose header may lie."""
    first = {"magic": shards.MAGIC, "version": shards.VERSION, "count": len(tokens), **header}
    numbers = np.zeros(shards.HEADER, "<i4")
    numbers[:3] = list(first.values())
    path.write_bytes(numbers.tobytes() + np.asarray(tokens, "<u2").tobytes())


@pytest.fixture
def folder(tmp_path):
    """Two shards of training tokens and one of validation tokens, which count up to 16."""
    for name, count in (("train_0", 900), ("train_1", 2000), ("val_0", 300)):
        write(tmp_path / f"{name}.bin", np.arange(count) % 16)
    return tmp_path


def test_batches_follow_one_another_within_each_shard(folder):
    found = Shards.find(str(folder / "train_*.bin"), "--train")
    assert found.counts == (900, 2000)
    read = list(found.read(400, 100))
    assert len(read) == found.batches(400) == 2 + 4
    for k, (inputs, targets) in enumerate(read):
        start = 400 * (k if k < 2 else k - 2)
        expected = (torch.arange(start, start + 401) % 16).view(-1)
        assert torch.equal(inputs.flatten(), expected[:-1])
        assert torch.equal(targets.flatten(), expected[1:])
        assert inputs.shape == (4, 100)
        assert inputs.dtype == torch.int64


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"magic": 20240521}, "begin with 20240520 and 1"),
        ({"version": 2}, "begin with 20240520 and 1"),
        ({"count": 7}, "a whole shard"),
        ({"count": 9}, "a whole shard"),
    ],
)
def test_a_file_that_is_no_whole_shard_is_refused(fields, complaint, tmp_path):
    write(tmp_path / "a.bin", np.zeros(8), **fields)
    with pytest.raises(ConfigError, match=complaint) as caught:
        Shards.find(str(tmp_path / "*.bin"), "--val")
    assert caught.value.argument == "--val"


def test_too_few_tokens_are_told_before_training(folder):
    found = Shards.find(str(folder / "train_*.bin"), "--train")
    found.need(6, 400)
    with pytest.raises(ConfigError, match=r"at least 7 batches of 400 tokens, got 6"):
        found.need(7, 400)


def test_the_model_has_124_million_parameters_beside_its_head():
    with torch.device("meta"):
        model = GPT2(Size())
    head = sum(p.numel() for p in model.head.parameters())
    assert sum(p.numel() for p in model.parameters()) - head == 123_671_040


def test_the_model_sees_no_later_token_and_bounds_its_logits():
    torch.manual_seed(0)
    model = GPT2(record.TOY.size)
    for p in model.parameters():  # some start at zero, and would hide everything
        torch.nn.init.normal_(p, std=0.5)
    tokens = torch.randint(128, (2, 16))
    changed = tokens.clone()
    changed[:, 9:] = (changed[:, 9:] + 1) % 128
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.equal(before[:, 9:], after[:, 9:])
    assert before.dtype == torch.float32
    assert before.abs().max() <= 15


@pytest.mark.parametrize("hidden", ["adamw", "muon"])
def test_every_parameter_has_one_optimizer(hidden):
    model = GPT2(record.TOY.size)
    found = [
        p
        for optimizer in record.optimizers(model, hidden)
        for group in optimizer.param_groups
        for p in group["params"]
    ]
    assert len(found) == len({id(p) for p in found}) == len(list(model.parameters()))


def arguments(folder, *more):
    patterns = ["--train", str(folder / "train_*.bin"), "--val", str(folder / "val_*.bin")]
    return ["record", "--toy", *patterns, *more]


@pytest.mark.parametrize(
    "arm", [pytest.param(x, marks=() if x == "hybrid" else pytest.mark.slow) for x in record.ARMS]
)
def test_every_arm_of_the_record_learns(arm, folder, monkeypatch):
    monkeypatch.setattr(record, "TARGET", 2.0)
    found = {name: Shards.find(str(folder / f"{name}_*.bin"), name) for name in ("train", "val")}
    row = record.train(
        arm, 40, 0, (found["train"], found["val"]), record.TOY, torch.device("cpu")
    )  # fmt: skip
    assert row["full_steps"] + row["predicted_steps"] == 40
    assert row["curve"][0][0] == record.TOY.every
    assert row["curve"][-1] == (row["full_steps"], row["loss"])
    assert row["reached"]
    assert row["curve"][0][1] > row["loss"]


@ON_CPU
def test_a_run_that_diverges_ends_early_and_is_kept(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(record, "evaluate", lambda *_: float("nan"))
    file = tmp_path / "record.json"
    more = ("--arm", "adamw", "--steps", "12", "--output", str(file))
    assert program.main(arguments(folder, *more)) == 0
    (row,) = json.loads(file.read_text())["rows"]
    assert (row["full_steps"], row["loss"], row["reached"]) == (5, None, False)
    assert "diverged" in capsys.readouterr().out


def kept(*, toy=True, gpu="A"):
    """What a row of results, or the results of a command, say of where they come from."""
    return {"toy": toy, "environment": {"gpu": gpu, "cpu": "C", "torch": "2"}}


@ON_CPU
def test_runs_of_other_options_and_machines_do_not_replace_one_another(
    folder, tmp_path, monkeypatch
):
    file = tmp_path / "record.json"

    def train(arm, steps, seed, shards, setup, device, *, compiled, say):
        return {"arm": arm, "steps": steps, "seed": seed, "rows": setup.rows, "compiled": compiled,
                "full_steps": 6, "predicted_steps": 0, "seconds": 1.0, "loss": 4.0,
                "reached": False}  # fmt: skip

    monkeypatch.setattr(program.record, "train", train)
    for gpu in ("A", "B"):
        monkeypatch.setattr(program, "environment", lambda gpu=gpu: kept(gpu=gpu)["environment"])
        for more in ((), ("--rows", "1"), ("--compile",), ()):
            assert program.main(arguments(folder, *more, "--output", str(file))) == 0
    found = json.loads(file.read_text())["rows"]
    told = [(row["rows"], row["compiled"], row["environment"]["gpu"]) for row in found]
    assert len(told) == 6
    assert set(told) == {
        (r, c, gpu) for r, c in ((2, False), (1, False), (2, True)) for gpu in "AB"
    }
    shown = table.record({"rows": found}).splitlines()
    assert len(set(shown[2:])) == 6


@pytest.mark.parametrize("name", table.TABLES)
def test_toys_do_not_come_into_the_pages(name, tmp_path):
    found = {"rows": [kept(toy=False), kept()]} if name in ("quality", "record") else kept()
    table.path(name, tmp_path).write_text(json.dumps(found))
    with pytest.raises(ConfigError, match="at full size, got 'results of --toy'"):
        table.blocks(tmp_path)[f"gpu {name}"]()


@ON_CPU
@pytest.mark.parametrize(
    "name", ["step-time", "memory", "quality", pytest.param("ranks", marks=pytest.mark.slow)]
)
def test_toys_print_a_table_and_write_what_is_asked_for(name, tmp_path, capsys):
    file = table.path(name, tmp_path)
    assert program.main([name, "--toy", "--output", str(file)]) == 0
    told = capsys.readouterr().out
    file.write_text(file.read_text().replace('"toy": true', '"toy": false'))
    shown = table.blocks(tmp_path)[f"gpu {name}"]()
    assert shown.splitlines()[0] in told
    assert "torch" in shown.splitlines()[-1]


@ON_CPU
def test_quality_goes_on_where_it_was(tmp_path, monkeypatch):
    file = table.path("quality", tmp_path)
    made = []

    def trained(cell, task):
        made.append(cell.arm)
        return to_row(
            cell, {"loss": 5.0, "full_steps": 8, "predicted_steps": 0, "seconds": 1.0}
        )  # fmt: skip

    monkeypatch.setattr(program, "trained", trained)
    for gpu in ("A", "A", "B"):
        monkeypatch.setattr(program, "environment", lambda gpu=gpu: kept(gpu=gpu)["environment"])
        assert program.main(["quality", "--toy", "--output", str(file)]) == 0
    assert made == 2 * list(program.QUALITY)
    found = json.loads(file.read_text())["rows"]
    assert [row["environment"]["gpu"] for row in found] == ["B"] * len(program.QUALITY)


@ON_CPU
def test_a_toy_leaves_the_committed_results_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(program, "path", lambda name: tmp_path / name)
    assert program.main(["memory", "--toy"]) == 0
    assert not list(tmp_path.iterdir())


@ON_CPU
@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (["step-time"], "CUDA"),
        (["ranks"], "at least two CUDA devices"),
        (["sync", "--toy"], "CUDA"),
        (["record", "--train", "a", "--val", "b"], "CUDA"),
        (["record", "--toy", "--train", "none*.bin", "--val", "b"], "token shards"),
        (["record", "--toy", "--train", "a", "--val", "b", "--arm", "sgd"], "--arm"),
        (["record", "--toy", "--train", "a", "--val", "b", "--steps", "0"], "--steps"),
        (["step"], "Did you mean step-time?"),
    ],
)
def test_bad_usage_is_one_line(given, complaint, capsys):
    assert program.main(given) == 2
    message = capsys.readouterr().err
    assert complaint in message
    assert message.count("\n") == 1
