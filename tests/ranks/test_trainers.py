"""Two ranks in a Lightning Trainer: alike, undone together, and resumed bit for bit."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning_models import Recorded, fit
from loops import same_bits
from torch import distributed as dist

from distributed_lightning import PREDICTING, RankLoader
from hybrid_predict import Verdict
from launcher import launch

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="no gloo"),
]

Results = dict[str, list[Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trainers")


@pytest.fixture(scope="module")
def results(folder: Path) -> Results:
    return launch(["distributed_lightning"], folder)


def same(left: dict[str, Any], right: dict[str, Any], *parts: str) -> bool:
    """Whether these parts of two outcomes are, tensors bit for bit."""
    bits = [p for p in parts if p in ("weights", "random")]
    others = [p for p in parts if p not in bits]
    return all(same_bits(left[p], right[p]) for p in bits) and all(
        repr(left[p]) == repr(right[p]) for p in others
    )


@pytest.mark.parametrize(
    "name",
    ["ddp", "ddp, static graph", "ddp, unused parameters", "ddp, spoiled", "fsdp2, spoiled"],
)
def test_ranks_end_with_the_same_weights_decisions_and_ledger(results: Results, name: str) -> None:
    left, right = results[name]
    assert same(left, right, "weights", "ledger", "records", "step")
    assert left["step"] == 36
    assert left["ledger"]["predicted_steps"] > 5


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_a_batch_that_is_spoiled_on_one_rank_is_undone_on_both(results: Results, kind: str) -> None:
    for found in results[f"{kind}, spoiled"]:
        undone = [r.step for r in found["records"] if r.verdict is Verdict.UNDONE]
        assert undone == [4]
        assert found["ledger"]["undone_steps"] == 1
        assert all(torch.isfinite(v).all() for v in found["weights"].values())


@pytest.mark.parametrize("name", ["ddp", "fsdp2, sharded", "fsdp2, full"])
def test_a_resumed_run_is_the_uninterrupted_one_on_every_rank(results: Results, name: str) -> None:
    for found in results[f"{name}, resumed"]:
        assert same(found["left"], found["right"], "weights", "ledger", "step", "random")
        assert found["left"]["ledger"]["predicted_steps"] > 10
        assert found["folder"] is name.endswith("sharded")


def test_only_the_first_rank_logs(results: Results) -> None:
    first, second = results["ddp"]
    assert (first["rows"], first["summaries"]) == (first["ledger"]["full_steps"], 1)
    assert (second["rows"], second["summaries"]) == (0, 0)


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
@pytest.mark.parametrize("name", ["ddp", "full"])
def test_a_single_process_continues_a_checkpoint_of_two_ranks(
    results: Results,
    folder: Path,
    name: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    callback, path = Recorded(config=PREDICTING), folder / f"{name}-left" / "step=18.ckpt"
    save = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=6, save_top_k=-1)
    with caplog.at_level(logging.WARNING, "hybrid_predict"):
        trainer, _ = fit([callback, save], train=RankLoader(10), max_steps=36, ckpt_path=str(path))
    assert trainer.global_step == 36
    assert [e["reason"] for e in callback.ledger.events] == [
        "the number of ranks changed from 2 to 1"
    ]
    assert len(caplog.messages) == 1
