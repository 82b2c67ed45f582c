"""Measurements are packed, read late and judged; the judge changes nothing."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hybrid_predict import CheckpointError, GradientInfo, Verdict
from hybrid_predict.verify.delayed_queue import DelayedQueue
from hybrid_predict.verify.judge import judge
from hybrid_predict.verify.measurement import Measurement, Moved, as_scalar, pack, unpack

NAN, INF = math.nan, math.inf

ABOUT = {"step": 7, "predicted": 2, "warmup": False, "limits": [3.0, 10.0, INF], "held": ""}

NUMBERS = {
    "good": [torch.tensor(True)],
    "loss": torch.tensor(1.5),
    "norms": {"a": torch.tensor(3.0), "b": torch.tensor(4.0), "c": torch.tensor(12.0)},
    "owners": [0, 0, 1],
    "moved": {"a": Moved(torch.tensor(2.0), torch.tensor(5.0), torch.tensor(-3.0))},
    "roots": None,
}


def packed(**changes):
    return pack(ABOUT, **{**NUMBERS, **changes})


def test_what_is_packed_on_the_device_is_unpacked_on_the_host():
    tag, values = packed()
    assert values.shape == (3 + 3 + 3,)
    found = unpack(tag, values.tolist())
    assert (found.step, found.predicted, found.warmup, found.held) == (7, 2, False, "")
    assert found.limits == (3.0, 10.0, INF)
    assert found.good
    assert found.loss_known
    assert found.norms == (5.0, 12.0)
    assert found.length == pytest.approx(2.0 / 5.0 / 2)  # of each of two predicted steps
    assert found.info == GradientInfo(
        1.5, 13.0, {"a": 3.0, "b": 4.0, "c": 12.0}, {"a": pytest.approx(0.5)}
    )


@pytest.mark.parametrize("loss", [2.5, torch.tensor(2.5, dtype=torch.float64), None, NAN])
def test_a_loss_may_be_a_number_a_tensor_unknown_or_not_finite(loss):
    tag, values = packed(loss=loss)
    found = unpack(tag, values.tolist())
    assert found.loss_known is (loss is not None)
    assert found.info.loss == 2.5 or math.isnan(found.info.loss)


def test_nothing_measured_is_unpacked_as_nothing():
    tag, values = packed(norms={}, owners=[], moved={}, good=[], loss=None)
    found = unpack(tag, values.tolist())
    assert found.good
    assert found.info.norms == found.info.alignments == {}
    assert all(math.isnan(x) for x in (*found.norms, found.info.total_norm, found.info.loss))


@pytest.mark.parametrize("flags", [[True, False], [False], [False, False]])
def test_one_bad_optimizer_is_enough(flags):
    tag, values = packed(good=[torch.tensor(flag) for flag in flags])
    assert not unpack(tag, values.tolist()).good


@pytest.mark.parametrize("count", [0, 7, 10])
def test_numbers_that_do_not_go_with_their_tag_are_refused(count):
    tag, values = packed()
    with pytest.raises(CheckpointError, match="state: expected 9 measured numbers, got"):
        unpack(tag, (values.tolist() * 2)[:count])


@pytest.mark.parametrize(
    ("loss", "wanted"),
    [
        (torch.tensor([1.0, 3.0], requires_grad=True), 2.0),
        (torch.tensor(3, dtype=torch.int64), 3.0),
        (2, 2.0),
        (None, None),
        ({"loss": 1.0}, None),
    ],
)
def test_a_scalar_loss_has_no_history(loss, wanted):
    found = as_scalar(loss)
    assert (found is None and wanted is None) or float(found) == wanted
    assert not getattr(found, "requires_grad", False)


def measured(predicted=1, held="", good=True, loss=1.0, norm=5.0, known=True):
    info = GradientInfo(loss, norm, {"a": norm}, {})
    return Measurement(9, predicted, False, (3.0, 10.0), held, good, known, info, (norm,))


@pytest.mark.parametrize("loss", [1.0, 99.0, NAN])
def test_a_full_step_without_predicted_steps_has_no_verdict(loss):
    found = judge(measured(predicted=0, loss=loss, good=False))
    assert (found.verdict, found.alarm) == (None, "")


@pytest.mark.parametrize(
    ("changes", "verdict", "words"),
    [
        ({}, Verdict.STANDS, ""),
        ({"known": False, "loss": NAN}, Verdict.STANDS, ""),
        ({"loss": 3.1}, Verdict.STANDS, "far above its mean"),
        ({"loss": INF}, Verdict.STANDS, "loss of a verifying step was not finite"),
        ({"loss": NAN}, Verdict.STANDS, "loss of a verifying step was not finite"),
        ({"held": "because"}, Verdict.UNDONE, "because"),
        ({"good": False, "norm": NAN}, Verdict.UNDONE, "gradient of a verifying step was not"),
        ({"good": False, "norm": 11.0}, Verdict.UNDONE, "many times its usual length"),
        ({"good": False, "loss": 4.0}, Verdict.UNDONE, "far above its mean"),
        ({"good": False, "loss": NAN}, Verdict.UNDONE, "loss of a verifying step was not finite"),
    ],
)
def test_the_verdict_follows_from_the_numbers(changes, verdict, words):
    numbers = measured(**changes)
    kept = dataclasses.replace(numbers)
    found = judge(numbers)
    assert found.verdict is verdict
    assert words in found.alarm
    assert bool(words) == bool(found.alarm)
    assert judge(kept) == found


@given(lag=st.integers(0, 6), count=st.integers(0, 20))
def test_measurements_are_read_a_fixed_number_of_steps_later(lag, count):
    reader, read = DelayedQueue(lag), []
    for k in range(count):
        reader.push(k, torch.tensor([float(k)]))
        read.append(reader.pop())
    assert read == [None if k < lag else (k - lag, [float(k - lag)]) for k in range(count)]
    fresh = DelayedQueue(lag)
    fresh.load_state_dict(reader.state_dict())
    assert fresh.tags == list(range(max(0, count - lag), count))
    drained = [fresh.pop(drain=True) for _ in range(lag + 1)]
    rest = [(k, [float(k)]) for k in range(max(0, count - lag), count)]
    assert drained == rest + [None] * (lag + 1 - len(rest))
