"""The engine in a loop of Hugging Face accelerate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from loops import same_bits
from wrapped_loops import STEPS, batch, config, loss_of, parts, plain_loop

from hybrid_predict import HybridEngine, UnsupportedSetupError

accelerate = pytest.importorskip("accelerate")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Accelerate keeps one state per process, precision included."""
    yield
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.parametrize(
    ("window", "precision"), [(1, "no"), (3, "no"), (1, "bf16")], ids=["plain", "accum", "bf16"]
)
def test_trains_as_the_plain_loop_does(window: int, precision: Any) -> None:
    expected, plain = plain_loop(window, bf16=precision == "bf16")
    accelerator = accelerate.Accelerator(
        cpu=True, gradient_accumulation_steps=window, mixed_precision=precision
    )
    raw = parts()
    model, optimizer, scheduler = accelerator.prepare(*raw)
    engine = HybridEngine(accelerator.unwrap_model(model), optimizer.optimizer, config())
    at = 0
    while not engine.done:
        with accelerator.accumulate(model):
            if not engine.in_step:
                engine.before_step()
            loss = loss_of(model, batch(at))
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            at += 1
            if accelerator.sync_gradients:
                for _ in range(engine.after_step(loss).ticks):
                    scheduler.step()
    assert same_bits(raw[0].state_dict(), expected.state_dict())
    assert scheduler.scheduler.last_epoch == STEPS
    assert engine.ledger.predicted_steps == plain.ledger.predicted_steps > 5
    assert at == window * engine.ledger.full_steps


def test_the_optimizer_that_accelerate_wraps_is_asked_for() -> None:
    model, optimizer = accelerate.Accelerator(cpu=True).prepare(*parts()[:2])
    with pytest.raises(UnsupportedSetupError, match="inner optimizer"):
        HybridEngine(model, optimizer, config())
