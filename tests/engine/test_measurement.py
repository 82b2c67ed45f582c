"""Measurements are packed on the device, unpacked on the host and judged."""

import dataclasses
import math

import pytest
import torch

from hybrid_predict import CheckpointError, GradientInfo, Verdict
from hybrid_predict.measurement import Measurement, Moved, judge, mean_loss, pack, unpack

NAN, INF = math.nan, math.inf

ABOUT = {"step": 7, "predicted": 2, "warmup": False, "limits": [3.0, 10.0, INF], "held": ""}

NUMBERS = {
    "good": [torch.tensor(True)],
    "loss": torch.tensor(1.5),
    "norms": {"a": torch.tensor(3.0), "b": torch.tensor(4.0), "c": torch.tensor(12.0)},
    "owners": [0, 0, 1],
    "moved": {"a": Moved(torch.tensor(2.0), torch.tensor(5.0), torch.tensor(-3.0))},
    "counts": None,
}


def packed(**changes):
    return pack(ABOUT, **{**NUMBERS, **changes})


def test_what_is_packed_on_the_device_is_unpacked_on_the_host():
    tag, values = packed()
    assert values.shape == (3 + 3 + 3,)
    read = unpack(tag, values.tolist())
    assert (read.step, read.predicted, read.warmup, read.held) == (7, 2, False, "")
    assert read.limits == (3.0, 10.0, INF)
    assert read.good
    assert read.loss == 1.5
    assert read.norms == (5.0, 12.0)
    assert read.length == pytest.approx(2.0 / 5.0 / 2)  # of each of two predicted steps
    assert read.info == GradientInfo(
        1.5, 13.0, {"a": 3.0, "b": 4.0, "c": 12.0}, {"a": pytest.approx(0.5)}
    )


@pytest.mark.parametrize("loss", [2.5, torch.tensor(2.5, dtype=torch.float64), None, NAN])
def test_a_loss_may_be_a_number_a_tensor_unknown_or_not_finite(loss):
    tag, values = packed(loss=loss)
    read = unpack(tag, values.tolist())
    assert (read.loss is None) is (loss is None)
    assert read.info.loss == 2.5 or math.isnan(read.info.loss)


def test_nothing_measured_is_unpacked_as_nothing():
    tag, values = packed(norms={}, owners=[], moved={}, good=[], loss=None)
    read = unpack(tag, values.tolist())
    assert read.good
    assert read.info.norms == read.info.alignments == {}
    assert all(math.isnan(x) for x in (*read.norms, read.info.total_norm, read.info.loss))


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
    read = mean_loss(loss)
    assert (read is None and wanted is None) or float(read) == wanted
    assert not getattr(read, "requires_grad", False)


def measured(predicted=1, held="", good=True, loss=1.0, norm=5.0):
    info = GradientInfo(NAN, norm, {"a": norm}, {})
    return Measurement(9, predicted, False, (3.0, 10.0), held, good, loss, info, (norm,))


@pytest.mark.parametrize("loss", [1.0, 99.0, NAN])
def test_a_full_step_without_predicted_steps_has_no_verdict(loss):
    read = judge(measured(predicted=0, loss=loss, good=False))
    assert (read.verdict, read.alarm) == (None, "")


@pytest.mark.parametrize(
    ("changes", "verdict", "words"),
    [
        ({}, Verdict.STANDS, ""),
        ({"loss": None}, Verdict.STANDS, ""),
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
    read = judge(numbers)
    assert read.verdict is verdict
    assert words in read.alarm
    assert bool(words) == bool(read.alarm)
    assert judge(kept) == read
