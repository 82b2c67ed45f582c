"""Where the engine must not change training, it changes no bit of it."""

import pytest
import torch
from cases import MODELS, OPTIMIZERS
from loops import Bench, make_config, same_bits

from hybrid_predict import SpectralUpdate

PASSIVE = {
    "disabled": {"enabled": False},
    "shadow": {"shadow": True},
    "shadow at its own pace": {"shadow": True, "speedup": "auto"},
    "nothing to do": {"updates": {}, "speedup": 1},
    "no share": {"updates": {"hidden": SpectralUpdate(share=0.0)}, "speedup": 1},
}


def trace_of(config, model="mlp", optimizer="adamw", steps=12):
    bench = Bench(config, model, optimizer)
    return bench, bench.train(steps)


@pytest.mark.parametrize(
    ("mode", "model", "optimizer"),
    [
        *((mode, "mlp", "adamw") for mode in PASSIVE),
        *(("shadow", "mlp", name) for name in OPTIMIZERS if name != "adamw"),
        *(("shadow", name, "adamw") for name in MODELS if name != "mlp"),
    ],
)
def test_weights_state_and_randomness_are_those_of_the_plain_loop(mode, model, optimizer):
    plain, _ = trace_of(None, model, optimizer)
    watched, records = trace_of(make_config(**PASSIVE[mode]), model, optimizer)
    assert same_bits(watched.trace(), plain.trace())
    assert {record.ticks for record in records} == {1}
    assert {record.predicted for record in records} == {0}
    assert watched.engine.ledger.corrected_steps == 0


def test_a_speedup_of_one_corrects_hidden_matrices_and_nothing_else():
    plain, _ = trace_of(None, steps=1)
    corrected, _ = trace_of(make_config(speedup=1), steps=1)
    pairs = zip(plain.model.named_parameters(), corrected.model.parameters(), strict=True)
    moved = {name for (name, p), q in pairs if not torch.equal(p, q)}
    assert moved == {"0.weight", "3.weight"}
    assert same_bits(plain.trace()["optimizer"], corrected.trace()["optimizer"])
    assert same_bits(plain.trace()["torch"], corrected.trace()["torch"])
    assert corrected.engine.ledger.corrected_steps == 1


def test_random_numbers_are_never_drawn():
    plain, _ = trace_of(None)
    active, records = trace_of(make_config())
    for generator in ("torch", "numpy", "python"):
        assert same_bits(active.trace()[generator], plain.trace()[generator])
    assert any(record.predicted for record in records)
