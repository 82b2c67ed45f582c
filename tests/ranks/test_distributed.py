"""Two ranks train one model, take the same decisions, and do what one rank would do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from loops import same_bits
from torch import distributed as dist

import distributed_fsdp1
from distributed_loops import GRADIENTS, LOSSES, SETUPS, STEPS, Loop, outcome
from distributed_resume import save_single
from hybrid_predict import Verdict
from hybrid_predict.ledger import Phase
from launcher import SECONDS, launch, same

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="no gloo"),
]

Results = dict[str, list[Any]]

CAUSES = {
    "ddp, spoiled loss": "the loss of a verifying step was not finite",
    "fsdp2, spiked loss": "the loss of a verifying step stood far above its mean",
}
MEASURED = ("skill", "predicted_length", "mean_length")
TRAINED = {**SETUPS, **distributed_fsdp1.SETUPS}
SPOILED = [*GRADIENTS, "fsdp1, spoiled shard"]
RESUMED = ("fsdp2", "fsdp2, half", "fsdp2, bfloat16, in turns", "fsdp1")
PLAIN = ("more", "fsdp1, more")
ALIKE = [*TRAINED, *SPOILED, *LOSSES, *PLAIN]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("ranks")
    save_single(folder)
    # What takes the group apart comes last.
    modules = ["kinds", "loops", "fsdp1", "resume"]
    return launch([f"distributed_{name}" for name in modules], folder, seconds=2 * SECONDS)


@pytest.mark.parametrize("name", ALIKE)
def test_ranks_end_with_the_same_weights_decisions_and_ledger(results: Results, name: str) -> None:
    left, right = results[name]
    assert same(left, right, *left.keys() & {"weights", "ledger", "records", "same"})
    assert left["ledger"]["predicted_steps"] > 5


@pytest.mark.parametrize("name", ["ddp, kinds of the first rank", "fsdp2, kinds", "fsdp1, kinds"])
def test_every_rank_has_the_kinds_of_the_first_one_s_graph(results: Results, name: str) -> None:
    assert results[name] == [(["px_r", "px_scale_decoder.0.weight"], [])] * 2


def measured(ledger: dict[str, Any]) -> dict[str, Any]:
    """What is computed from sums whose order differs; -1 if it is unknown."""
    numbers = {f"{kind} {name}": x for kind, s in ledger["skills"].items() for name, x in s.items()}
    assert numbers
    numbers |= {name: ledger[name] for name in MEASURED}
    return {name: -1.0 if x is None else x for name, x in numbers.items()}


@pytest.mark.parametrize("name", TRAINED)
def test_two_ranks_do_what_one_does_on_both_their_batches(results: Results, name: str) -> None:
    loop = Loop(**TRAINED[name][1])
    single, found = outcome(loop, loop.train()), results[name][0]
    ours, theirs = found["ledger"], single["ledger"]
    counted = [ledger["flops_per_correction"] for ledger in (ours, theirs)]
    unknown = {"flops_per_correction", "estimated_flops_saved", "skills", *MEASURED}
    if "tensor" in name:
        unknown.add("flops_per_step")
    else:  # each matrix is flattened on one rank, and the other waits
        assert counted[1] <= counted[0] <= 1.2 * counted[1]
        assert (counted[1] > 0) is ("own" not in name)
    # Averages and roots in half precision, and forecasts of them, are rounded more often.
    rough = {"rel": 5e-2 if "bfloat16" in name else 1e-3}
    assert measured(ours) == pytest.approx(measured(theirs), **rough)
    about = [{k: v for k, v in ledger.items() if k not in unknown} for ledger in (ours, theirs)]
    assert about[0] == about[1]
    assert found["ledger"]["predicted_steps"] > STEPS / 2
    # An average may be rounded to the next number in half precision.
    close = {"atol": 5e-2, "rtol": 0.0} if "bfloat16" in name else {"atol": 1e-4, "rtol": 1e-4}
    for key, weight in single["weights"].items():
        torch.testing.assert_close(found["weights"][key], weight, **close)
    for ours, theirs in zip(found["records"], single["records"], strict=True):
        parts = ("phase", "ticks", "predicted", "verdict")
        assert [getattr(ours, p) for p in parts] == [getattr(theirs, p) for p in parts]
        if theirs.gradients is None:
            continue
        # After many steps with averages in half precision, gradients have drifted apart.
        near = {"abs": 1e-3, "rel": 0.1 if "bfloat16" in name else 1e-3}
        assert ours.loss == pytest.approx(theirs.loss, **near)
        assert ours.gradients.total_norm == pytest.approx(theirs.gradients.total_norm, **near)
        assert ours.gradients.norms == pytest.approx(theirs.gradients.norms, **near)
        if "bfloat16" not in name:
            angles = theirs.gradients.alignments
            assert ours.gradients.alignments == pytest.approx(angles, abs=0.02)


@pytest.mark.parametrize("name", SPOILED)
def test_a_gradient_that_is_not_finite_on_one_rank_undoes_on_all(
    results: Results, name: str
) -> None:
    for found in results[name]:
        first, *others = found["records"]
        assert found["same"]
        assert (first.verdict, first.predicted, first.ticks) == (Verdict.UNDONE, 1, 1)
        assert {record.predicted for record in others} == {0}
        (event,) = found["ledger"]["events"]
        assert event["reason"].endswith("the gradient of a verifying step was not finite")


@pytest.mark.parametrize("name", LOSSES)
def test_a_bad_loss_on_one_rank_pauses_predicted_steps_on_all(results: Results, name: str) -> None:
    for found in results[name]:
        first, *others = found["records"]
        assert not found["same"]
        assert (first.verdict, first.predicted, first.ticks) == (Verdict.STANDS, 1, 2)
        assert {record.predicted for record in others} == {0}
        (event,) = found["ledger"]["events"]
        assert event["reason"] == f"predicted steps pause: {CAUSES[name]}"


@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_run_is_the_uninterrupted_one_on_every_rank(results: Results, name: str) -> None:
    for found in results[f"{name}, resumed"]:
        assert same(found["left"], found["right"])
        assert found["left"]["ledger"]["predicted_steps"] > 10


@pytest.mark.parametrize("name", ["ddp", "fsdp2, half", "tensor parallelism"])
def test_state_dicts_inside_a_step_hold_verified_weights(results: Results, name: str) -> None:
    for found in results[f"{name}, read inside a step"]:
        assert not same_bits(found["moved"], found["before"])
        for name in ("read", "gathered", "left"):
            assert same_bits(found[name], found["before"])


def test_predicted_steps_that_one_rank_has_undone_are_undone_on_all(results: Results) -> None:
    first, second = results["ddp, read on one rank"]
    assert first["same"] and second["same"]
    assert first["ledger"]["undone_steps"] == 1
    assert same(first, second)


@pytest.mark.parametrize(("which", "words"), [(0, "save the state of rank 0"), (1, "unaltered")])
def test_a_state_that_is_refused_changes_nothing_on_any_rank(
    results: Results, which: int, words: str
) -> None:
    for name in RESUMED:
        for found in results[f"{name}, resumed"]:
            assert words in found["refused"][which]["text"]
            assert found["refused"][which]["same"]


def test_no_rank_waits_for_one_that_fails_to_load_its_state(results: Results) -> None:
    assert results["fsdp2, damaged on one rank"] == [True, False]


@pytest.mark.parametrize(
    ("name", "change"),
    [("more", "from 1 to 2"), ("fsdp1, more", "from 1 to 2"), ("alone", "from 2 to 1")],
)
def test_a_run_goes_on_with_another_number_of_ranks(
    results: Results, name: str, change: str
) -> None:
    told = f"the number of ranks changed {change}"
    for rank, found in enumerate(results[name]):
        saved, again = (
            [g and {**g, "windows": [], "layouts": []} for g in each] for each in found["groups"]
        )
        elsewhere = rank == 1 and "more" in name
        assert same_bits(saved, again) or (elsewhere and again == [None, None])
        assert found["ledger"]["events"] == [{"step": 13, "last": 13, "reason": told, "count": 1}]
        # Alone, each is the first rank.
        heard = rank == 0 or name == "alone"
        assert found["heard"] == [f"HybridPredict, full step 13: {told}."] * heard
        assert found["records"][-1].phase is Phase.PREDICT
        assert found["ledger"]["undone_steps"] == 0


def test_what_cannot_work_is_refused_on_every_rank(results: Results) -> None:
    for told in results["refused"]:
        assert "not both" in told["fully_shard over tensor parallelism"]
        assert "ranks that differ" in told["another configuration"]


def test_fsdp1_is_refused_where_parameters_do_not_stay(results: Results) -> None:
    for told in results["fsdp1, refused"]:
        assert "Set use_orig_params=True" in told


def test_fsdp1_saves_verified_weights_inside_a_step_and_loads_others(results: Results) -> None:
    for found in results["fsdp1, saved inside a step"]:
        assert found == dict.fromkeys(found, True)


@pytest.mark.parametrize(("name", "late"), [("ddp", 0), ("fsdp2, late", 1)])
def test_all_ranks_learn_in_the_same_full_step_that_one_was_asked_to_stop(
    results: Results, name: str, late: int
) -> None:
    for found in results[f"{name}, asked"]:
        assert found["stops"] == [k == late for k in range(5)]
        assert found["plain"] == [False, True]


def test_a_failure_on_one_rank_ends_every_rank_as_it_was(tmp_path: Path) -> None:
    other, failed = launch(["distributed_failures:sharded"], tmp_path)["sharded"]
    assert (failed["type"], failed["text"]) == ("ZeroDivisionError", "no more")
    assert other["type"] == "RuntimeError"  # of the collective
    assert failed["whole"] and other["whole"]
    assert all(4 < result["steps"] < 20 for result in (other, failed))
