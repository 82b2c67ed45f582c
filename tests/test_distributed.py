"""Two ranks train one model, take the same decisions, and do what one rank would do."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import distributed as dist

from distributed_lightning import FAR
from distributed_lightning import RankLoader as Loader
from distributed_loops import LONG, STEPS, Loop, make_config, measured, outcome
from hybrid_predict import HybridPredict, Phase, Verdict
from lightning_models import fit
from loops import same_bits
from ranks import launch

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="no gloo"),
]

Results = dict[str, list[Any]]

SINGLE: dict[str, dict[str, Any]] = {
    "ddp": {},
    "ddp, static graph": {},
    "ddp, unused parameters": {"skips": lambda step: step % 3 == 2},
    "ddp, accumulation": {"window": 2},
    "ddp, shadow": {"config": make_config(shadow=True)},
    "ddp, late": {"config": make_config(lag=3)},
    "fsdp2": {},
    "fsdp2, bfloat16": {"config": make_config(history_dtype="bfloat16")},
    "fsdp2, long": {"config": make_config(**LONG)},
    "fsdp2, shadow": {"config": make_config(shadow=True)},
    "tensor parallelism": {},
}
"""Which loop of a single process does the same."""

ALIKE = (
    *SINGLE,
    "ddp, spoiled loss",
    "fsdp2, spoiled loss",
    "logged",
    "trainer, ddp",
    "trainer, ddp, static graph",
    "trainer, ddp, unused parameters",
    "trainer, ddp, loss check",
    "trainer, ddp, spoiled",
    "trainer, fsdp2, loss check",
    "trainer, fsdp2, spoiled",
)

RESUMED = (
    "fsdp2",
    "fsdp2, bfloat16",
    "fsdp2, auto",
    "fsdp2, half",
    "trainer, ddp",
    "trainer, fsdp2, sharded",
    "trainer, fsdp2, full",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def results(folder: Path) -> Results:
    # What takes the group apart comes last.
    return launch(["distributed_lightning", "distributed_loops", "distributed_resume"], folder)


def same(left: dict[str, Any], right: dict[str, Any]) -> bool:
    """Whether two outcomes are, weights bit for bit; what is unknown equals itself."""
    plain = [{k: repr(v) for k, v in o.items() if k != "weights"} for o in (left, right)]
    return same_bits(left["weights"], right["weights"]) and plain[0] == plain[1]


@pytest.mark.parametrize("name", ALIKE)
def test_ranks_end_with_the_same_weights_decisions_and_ledger(results: Results, name: str) -> None:
    own = ("weights", "ledger", "records", "horizons", "step")
    left, right = ({k: v for k, v in r.items() if k in own} for r in results[name])
    assert same(left, right)
    assert left["ledger"]["forecasts"] > 10


@pytest.mark.parametrize("name", SINGLE)
def test_two_ranks_do_what_one_does_on_both_their_batches(results: Results, name: str) -> None:
    loop = Loop(**SINGLE[name])
    single, found = outcome(loop, loop.train()), results[name][0]
    counted = "flops_per_forecast"
    unknown = [counted, "estimated_flops_saved"]
    if "tensor" in name:
        unknown += ["flops_per_step"]
        dear = "forecasts take more operations than they save"  # known where they are counted
        single["ledger"]["events"] = [e for e in single["ledger"]["events"] if e["reason"] != dear]
    else:  # both ranks flatten whole matrices
        assert found["ledger"][counted] == 2 * single["ledger"][counted]
        assert (single["ledger"][counted] > 0) == ("long" not in name)
    assert {k: v for k, v in found["ledger"].items() if k not in unknown} == {
        k: v for k, v in single["ledger"].items() if k not in unknown
    }
    assert found["ledger"]["forecasts"] > STEPS / 3
    # A history may be rounded to the next number in half precision.
    close = {"atol": 1e-2, "rtol": 0.0} if "bfloat16" in name else {"atol": 1e-4, "rtol": 1e-4}
    for key, weight in single["weights"].items():
        torch.testing.assert_close(found["weights"][key], weight, **close)
    for ours, theirs in zip(found["records"], single["records"], strict=True):
        assert (ours.verdict, ours.ticks) == (theirs.verdict, theirs.ticks)
        for statistic in ("loss", "alignment", "residual"):
            expected = getattr(theirs, statistic)
            assert getattr(ours, statistic) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("kind", ["ddp", "fsdp2", "tensor parallelism"])
def test_norms_products_and_spectra_are_those_of_whole_tensors(results: Results, kind: str) -> None:
    single = measured(lambda net: net)(Path())
    for found in results[f"{kind}, measured"]:
        for name, expected in single.items():
            torch.testing.assert_close(found[name], expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_reductions_per_full_step(results: Results, kind: str) -> None:
    # The first full step also adds up the operations that the ranks have counted. A spectral
    # forecast of sharded matrices needs the norms of whole updates from the second step on, and
    # angles to whole averages, or norms of whole directions where those are not computed anew.
    later = 3 if kind == "fsdp2" else 1
    assert results[f"{kind}, reductions"] == [[2] + [later] * 9] * 2


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_a_loss_that_is_not_finite_on_one_rank_is_undone_on_all(
    results: Results, kind: str
) -> None:
    for found in results[f"{kind}, spoiled loss"]:
        first, *others = found["records"]
        assert found["same"]
        assert first.verdict is Verdict.REJECTED
        assert not first.finite
        assert all(record.finite for record in others)


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_a_spike_on_one_rank_is_undone_on_all_and_pauses_forecasts(
    results: Results, kind: str
) -> None:
    for found in results[f"{kind}, spiked loss"]:
        first, *others = found["records"]
        assert found["same"]
        assert first.horizon > 0
        assert first.verdict is Verdict.REJECTED
        assert {record.horizon for record in others} == {0.0}
        before, after = found["averages"]
        assert 0.0 < after < 2.0 * before
        (event,) = [e for e in found["ledger"]["events"] if "put back" in e["reason"]]
        assert event["step"] == first.step


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_trainer_skips_batches_that_are_spoiled_on_one_rank(results: Results, kind: str) -> None:
    for found in results[f"trainer, {kind}, spoiled"]:
        assert found["ledger"]["rejected"] == 3
        assert all(torch.isfinite(v).all() for v in found["weights"].values())


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_a_save_sees_base_weights_and_the_forward_pass_the_forecast(
    results: Results, kind: str
) -> None:
    for found in results[f"{kind}, saved inside"]:
        assert found == dict.fromkeys(found, True)


@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_run_is_the_uninterrupted_one_on_every_rank(results: Results, name: str) -> None:
    for found in results[f"{name}, resumed"]:
        sides = found["left"], found["right"]
        # The resumed run has logged only what it did itself.
        left, right = ({k: v for k, v in side.items() if k != "rows"} for side in sides)
        assert same(left, right)
        assert left["ledger"]["forecasts"] > 10
        assert found.get("folder", False) == name.endswith("sharded")


def test_every_rank_continues_its_own_part_of_the_carry_of_rounding(results: Results) -> None:
    carries = [found["carries"] for found in results["fsdp2, half, resumed"]]
    for left, right in carries:
        assert same_bits(left, right)
        assert any(bool(carry.any()) for carry in left.values())
    assert not same_bits(carries[0][0], carries[1][0])


def test_histories_are_saved_by_rank_zero_alone(results: Results) -> None:
    assert all("save that of rank 0" in found["refusal"] for found in results["fsdp2, resumed"])


def test_a_sharded_run_goes_on_with_another_number_of_ranks(results: Results) -> None:
    for found in results["alone"]:
        assert same_bits(*found["history"])
        assert found["ledger"]["events"] == [
            {"step": 12, "reason": "the number of ranks changed from 2 to 1", "count": 1}
        ]
        assert [line for line in found["heard"] if "1 ranks instead of 2" in line] == found["heard"]
        assert len(found["heard"]) == 1
        assert found["records"][-1].phase is Phase.PREDICT


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
@pytest.mark.parametrize("name", ["ddp", "full"])
def test_a_single_process_continues_a_checkpoint_of_two_ranks(
    results: Results,
    folder: Path,
    name: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    callback, path = HybridPredict(config=FAR), folder / f"{name}-left" / "step=18.ckpt"
    save = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=6, save_top_k=-1)
    with caplog.at_level(logging.WARNING, "hybrid_predict"):
        trainer, _ = fit([callback, save], train=Loader(10), max_steps=36, ckpt_path=str(path))
    assert trainer.global_step == 36
    assert [e["reason"] for e in callback.ledger.events] == [
        "the number of ranks changed from 2 to 1"
    ]
    assert len(caplog.messages) == 1


@pytest.mark.parametrize(
    ("setup", "words"),
    [
        ("fsdp1", r"FullyShardedDataParallel.*fully_shard \(FSDP2\)"),
        ("deepspeed", "DeepSpeedEngine.*Use DistributedDataParallel"),
        ("fully_shard over tensor parallelism", "first.weight.*not both"),
        ("another configuration", "ranks that differ.*data parallelism"),
    ],
)
def test_what_cannot_work_is_refused_on_every_rank(
    results: Results, setup: str, words: str
) -> None:
    for told in results["refused"]:
        with pytest.raises(RuntimeError, match=words):
            raise RuntimeError(told[setup])


def test_only_the_first_rank_logs(results: Results) -> None:
    first, second = results["logged"]
    assert "12 forecasts in a row were rejected" in first["heard"][-1]
    assert second["heard"] == []
    first, second = results["trainer, ddp"]
    assert (first["rows"], first["summaries"]) == (24, 1)
    assert (second["rows"], second["summaries"]) == (0, 0)
