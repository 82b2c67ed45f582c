"""Warnings about runs that take longer than plain training."""

import pytest
import torch

from hybrid_predict import HybridConfig, HybridEngine
from hybrid_predict.ledger import duration
from hybrid_predict.runs.slow_run import FIRST, LAST, SlowRun

pytestmark = pytest.mark.filterwarnings("ignore:.*too few")


def engine_of(**options):
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(net.parameters())
    return HybridEngine(net, optimizer, HybridConfig(total_steps=300, **options))


def warned(engine, added, plain=1.0):
    """Return the warnings of a run whose first full steps take much longer than all others."""
    slow, ledger = SlowRun(engine), engine.ledger
    ledger.full_seconds = ledger.correct_seconds = 1e3
    texts = {}
    for step in range(FIRST, LAST + 10):
        texts[step] = slow.warning(step)
        ledger.full_seconds += plain
        ledger.correct_seconds += added / 2
        ledger.predict_seconds += added / 2
    return {step: text for step, text in texts.items() if text}


@pytest.mark.parametrize(
    ("options", "added", "words"),
    [
        ({}, 0.4, ""),
        ({}, 0.6, "takes 1.07 (if all planned predicted steps are made) to 1.60 times (if none "
         "is) as long as plain training of 300 steps; faster are larger batches, or a "
         "speedup with fewer than 187 full steps, if an audit finds no loss of quality"),
        ({}, 9.0, "; faster are larger batches$"),  # no speedup has 30 full steps
        ({"updates": {}}, 9.0, "plain training of 300 steps$"),
        ({"speedup": 1}, 0.07, "takes 1.07 times as long"),
        ({"speedup": 3}, 1.5, ""),
        ({"updates": {}}, 0.6, "; faster are a speedup with fewer than 187 full steps"),
        ({"shadow": True}, 9.0, ""),
    ],
)  # fmt: skip
def test_a_run_that_loses_seconds_is_told_once_with_what_to_type(options, added, words):
    with engine_of(**options) as engine:
        found = warned(engine, added)
    assert set(found) == ({LAST} if words else set())
    text = found.get(LAST, "")
    assert words.removesuffix("$") in text
    assert not words.endswith("$") or text.endswith(words[:-1])
    times = f"a full step takes {duration(1 + added)} in place of 1 s, so the run takes "
    assert not text or text.startswith(times)


def test_a_run_that_is_resumed_after_the_first_steps_is_not_judged():
    with engine_of() as engine:
        engine.ledger.full_seconds, engine.ledger.correct_seconds = 1.0, 9.0
        assert not SlowRun(engine).warning(LAST)
