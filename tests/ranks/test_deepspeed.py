"""Two ranks train with DeepSpeed at ZeRO stage 0 as with DDP; other set-ups are refused."""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from loops import same_bits
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR

from distributed_loops import SPOILED, STEPS, batch, build, make_config, outcome
from hybrid_predict import HybridEngine, StepRecord, UnsupportedSetupError, Verdict
from launcher import launch, same

pytestmark = [
    pytest.mark.slow,
    pytest.mark.distributed,
    pytest.mark.skipif(not find_spec("deepspeed"), reason="DeepSpeed is not installed"),
]

CLIP = 0.3


def initialized(**settings: Any) -> tuple[Any, Any, Any]:
    """The engine of DeepSpeed, its optimizer, and the one that it was given."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    warnings.simplefilter("ignore")  # of its imports, and of calls of torch in it
    import deepspeed

    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    net = build()
    given = torch.optim.AdamW(net.parameters(), lr=1e-2)
    scheduler = LambdaLR(given, lambda step: 1 - step / 200)
    config = {"train_micro_batch_size_per_gpu": 8, "gradient_clipping": 0.0, **settings}
    parts = {"model": net, "optimizer": given, "lr_scheduler": scheduler}
    model, optimizer, _, _ = deepspeed.initialize(**parts, config=config)
    return model, optimizer, given


class DeepLoop:
    """A loop with the engine of DeepSpeed, which steps the scheduler once in a full step."""

    def __init__(self, window: int = 1, **settings: Any) -> None:
        settings["gradient_accumulation_steps"] = self.window = window
        self.model, optimizer, _ = initialized(**settings)
        self.scheduler, self.taken = self.model.lr_scheduler, 0
        self.engine = HybridEngine(self.model, optimizer, make_config())

    def loss(self) -> Tensor:
        x = batch(self.taken)
        self.taken += 1
        return (self.model(x).float() - x.sum(1, keepdim=True).sin()).square().mean()

    def step(self, factor: float = 1.0) -> StepRecord:
        self.engine.before_step()
        for _ in range(self.window):
            loss = self.loss() * factor
            self.model.backward(loss)
            self.model.step()
        record = self.engine.after_step(loss)
        for _ in range(record.ticks - 1):
            self.scheduler.step()
        return record

    def train(self, steps: int = STEPS) -> list[StepRecord]:
        return [self.step() for _ in range(steps)]

    def weights(self) -> dict[str, Tensor]:
        return {name: p.detach().clone() for name, p in self.engine._model.named_parameters()}


class Twin(DeepLoop):
    """The same loop with DistributedDataParallel."""

    def __init__(self, window: int = 1) -> None:
        self.window, self.taken = window, 0
        self.model = DistributedDataParallel(build())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scheduler = LambdaLR(self.optimizer, lambda step: 1 - step / 200)
        self.engine = HybridEngine(self.model, self.optimizer, make_config())

    def step(self, factor: float = 1.0) -> StepRecord:
        self.engine.before_step()
        for k in range(self.window):
            self.model.require_backward_grad_sync = k + 1 == self.window
            loss = self.loss() * factor
            (loss / self.window).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        record = self.engine.after_step(loss)
        for _ in range(record.ticks):
            self.scheduler.step()
        return record


class Accelerated(DeepLoop):
    """The same loop with accelerate, whose backward pass updates too."""

    def __init__(self) -> None:
        from accelerate import Accelerator, DeepSpeedPlugin

        settings: dict[str, Any] = {"train_micro_batch_size_per_gpu": 8, "gradient_clipping": 0.0}
        settings |= {"gradient_accumulation_steps": 1, "zero_optimization": {"stage": 0}}
        self.accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(settings))
        net, self.taken = build(), 0
        adamw = torch.optim.AdamW(net.parameters(), lr=1e-2)
        self.model, optimizer = self.accelerator.prepare(net, adamw)
        self.scheduler = LambdaLR(optimizer.optimizer, lambda step: 1 - step / 200)
        self.engine = HybridEngine(self.model, optimizer.optimizer, make_config())

    def step(self, factor: float = 1.0) -> StepRecord:
        self.engine.before_step()
        loss = self.loss() * factor
        self.accelerator.backward(loss)
        record = self.engine.after_step(loss)
        for _ in range(record.ticks):
            self.scheduler.step()
        return record


def trained(make: Callable[..., DeepLoop], **options: Any) -> Callable[[Path], dict[str, Any]]:
    def check(folder: Path) -> dict[str, Any]:
        loop = make(**options)
        found = outcome(loop, loop.train())  # type: ignore[arg-type]
        return {"rate": loop.scheduler.get_last_lr(), **found}

    return check


def spoiled(folder: Path) -> dict[str, Any]:
    """A verifying step in which the gradient of the last rank is not finite."""
    loop = DeepLoop()
    loop.train(SPOILED)
    before = loop.weights()
    record = loop.step(float("nan") if torch.distributed.get_rank() else 1.0)
    return {"same": same_bits(before, loop.weights()), "record": record}


def resumed(folder: Path) -> dict[str, Any]:
    """A run that goes on from a checkpoint of DeepSpeed, taken inside a step."""
    first, again = DeepLoop(), DeepLoop()
    first.train(SPOILED)
    before = first.weights()
    first.engine.before_step()
    moved = not same_bits(first.weights(), before)
    first.model.save_checkpoint(folder, client_state={"engine": first.engine.state_dict()})
    _, state = again.model.load_checkpoint(folder)
    again.engine.load_state_dict(state["engine"])
    loaded, again.taken = again.weights(), SPOILED
    found = outcome(again, again.train(STEPS - SPOILED))  # type: ignore[arg-type]
    return {"moved": moved, "verified": same_bits(loaded, before), **found}


HALF = {"bf16": {"enabled": True}}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "0": (HALF, "ZeRO stage 0 with FP16_UnfusedOptimizer.*set torch_autocast"),
    "1": ({}, "ZeRO stage 1 with DeepSpeedZeroOptimizer.*Use DistributedDataParallel"),
    "2": (HALF, "ZeRO stage 2 with DeepSpeedZeroOptimizer.*fully_shard"),
    "3": ({}, "ZeRO stage 3 with DeepSpeedZeroOptimizer_Stage3.*fully_shard"),
}
"""Settings besides the stage, and what is said."""


def refused(folder: Path) -> dict[str, list[str]]:
    """What is said of the engine, its optimizer, and the model inside, by stage."""
    told = {}
    for stage, (settings, _) in REFUSED.items():
        zero = {"stage": int(stage)}
        settings |= {"zero_optimization": zero, "zero_allow_untested_optimizer": True}
        model, optimizer, given = initialized(**settings)
        given_to_us = [(model, optimizer), (model.module, optimizer), (model.module, given)]
        told[stage] = []
        for pair in given_to_us:
            with pytest.raises((UnsupportedSetupError, ValueError)) as caught:
                HybridEngine(*pair, make_config())
            told[stage].append(str(caught.value))
    return told


def documented(folder: Path) -> bool:
    """The example of the documentation runs."""
    page = (Path(__file__).parents[2] / "docs" / "distributed.md").read_text()
    (example,) = re.findall(r"^```python\n(import deepspeed\n.*?)^```", page, re.M | re.S)
    found: dict[str, Any] = {}
    exec(example, found)
    found["main"]()
    return True


AUTOCAST = {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}
AGREEING = {"autocast": AUTOCAST, "clipped": {"gradient_clipping": CLIP}}
SETUPS = {"plain": {}, "accumulation": {"window": 2}}
CHECKS: dict[str, Callable[[Path], Any]] = {
    **{name: trained(DeepLoop, **options) for name, options in SETUPS.items()},
    **{f"{name}, twin": trained(Twin, **options) for name, options in SETUPS.items()},
    **{name: trained(DeepLoop, **settings) for name, settings in AGREEING.items()},
    **({"accelerate": trained(Accelerated)} if find_spec("accelerate") else {}),
    "spoiled": spoiled,
    "resumed": resumed,
    "refused": refused,
    "documented": documented,
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    return launch(["test_deepspeed"], tmp_path_factory.mktemp("deepspeed"))


@pytest.mark.parametrize("name", SETUPS)
def test_stage_0_takes_the_steps_of_ddp(results: dict[str, list[Any]], name: str) -> None:
    for found, twin in zip(results[name], results[f"{name}, twin"], strict=True):
        assert same(found, twin)
        assert found["ledger"]["predicted_steps"] > STEPS / 3


@pytest.mark.skipif(not find_spec("accelerate"), reason="accelerate is not installed")
def test_accelerate_takes_the_same_steps(results: dict[str, list[Any]]) -> None:
    for found, twin in zip(results["accelerate"], results["plain, twin"], strict=True):
        assert same(found, twin)


def test_the_example_of_the_documentation_runs(results: dict[str, list[Any]]) -> None:
    assert results["documented"] == [True, True]


@pytest.mark.parametrize("name", AGREEING)
def test_ranks_end_with_the_same_weights(results: dict[str, list[Any]], name: str) -> None:
    left, right = results[name]
    assert same(left, right, "weights", "ledger", "records")
    assert left["ledger"]["predicted_steps"] > STEPS / 3


def test_gradients_are_read_after_clipping(results: dict[str, list[Any]]) -> None:
    largest = {
        name: max(r.gradients.total_norm for r in results[name][0]["records"] if r.gradients)
        for name in ("plain", "clipped")
    }
    assert largest["clipped"] == pytest.approx(CLIP, rel=1e-3)
    assert largest["plain"] > 2 * CLIP


def test_a_bad_gradient_on_one_rank_undoes_on_all(results: dict[str, list[Any]]) -> None:
    for found in results["spoiled"]:
        assert found["same"]
        assert (found["record"].verdict, found["record"].predicted) == (Verdict.UNDONE, 1)


def test_a_checkpoint_inside_a_step_resumes_bit_for_bit(results: dict[str, list[Any]]) -> None:
    for found, whole in zip(results["resumed"], results["plain"], strict=True):
        assert found["moved"] and found["verified"]
        assert same(found, whole, "weights", "ledger")


@pytest.mark.parametrize("stage", REFUSED)
def test_copies_of_the_weights_are_refused(results: dict[str, list[Any]], stage: str) -> None:
    for engine, optimizer, inside in (found[stage] for found in results["refused"]):
        with pytest.raises(RuntimeError, match=REFUSED[stage][1]):
            raise RuntimeError(engine)
        assert "float32 copies of the weights" in optimizer
        assert ("float32 copies of the weights" in inside) is (stage != "0")
