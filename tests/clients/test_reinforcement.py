"""Policies that learn from their own rollouts: PPO in a plain loop, and of stable-baselines3."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("gymnasium")

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_plain_loop_learns_with_every_rollout_played_and_the_schedule_complete() -> None:
    ppo = example("ppo")
    run = ppo.main(25)
    ledger = run.engine.ledger
    assert ledger.steps == 25 * ppo.PER_ROLLOUT and run.engine.done
    assert ledger.predicted_steps > 100 and not run.engine._state.plain
    assert run.optimizer.param_groups[0]["lr"] == pytest.approx(0.0)
    heads = dict(zip(run.engine.mapper.names, run.engine.mapper.kinds, strict=True))
    assert heads["policy.4.weight"] == heads["value.4.weight"] == "head"
    assert np.mean(run.scores[-20:]) > 3 * np.mean(run.scores[:20])


@pytest.fixture
def baselines() -> Any:
    return pytest.importorskip("stable_baselines3")


def trained(baselines: Any, callback: Any, **options: Any) -> Any:
    model = baselines.PPO(
        "MlpPolicy", "CartPole-v1", seed=0, device="cpu", n_steps=256, **options
    )  # fmt: skip
    model.learn(12 * 256, callback=callback)
    return model


def test_the_policy_of_stable_baselines_takes_as_many_steps_in_every_rollout(
    baselines: Any,
) -> None:
    callback = example("stable_baselines").HybridPPO()
    model = trained(baselines, callback)
    ledger = callback.engine.ledger
    assert ledger.steps == 12 * 10 * 4 and ledger.predicted_steps > 50
    assert model.num_timesteps == 12 * 256
    assert model.rollout_buffer.get == callback._get
    assert not model.policy.optimizer._optimizer_step_pre_hooks, "the engine has let go"


def test_without_the_plug_in_the_policy_is_that_of_stable_baselines_bit_for_bit(
    baselines: Any,
) -> None:
    callback = example("stable_baselines").HybridPPO(enabled=False)
    policies = [trained(baselines, given).policy for given in (None, callback)]
    pairs = zip(*(policy.parameters() for policy in policies), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_a_pass_that_ends_at_the_target_of_kl_leaves_no_full_step_open(baselines: Any) -> None:
    callback = example("stable_baselines").HybridPPO()
    model = trained(baselines, callback, target_kl=1e-4)
    engine = callback.engine
    assert not engine.in_step and engine.ledger.steps < 12 * 10 * 4
    assert all(torch.isfinite(p).all() for p in model.policy.parameters())
