"""The PPO of stable-baselines3 with the plug-in, unchanged: a callback wraps its rollout buffer.

Run with: pip install stable-baselines3 && python examples/stable_baselines.py [--plain]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy

from hybrid_predict import HybridConfig, HybridEngine


class HybridPPO(BaseCallback):
    """Makes every minibatch of the rollout buffer a full step.

    Each rollout has as many steps as without the callback; predicted steps replace its last
    minibatches. Environment, rollouts and schedules of PPO do not change. Losses of different
    rollouts cannot be compared, so no verdict uses them.

    Args:
        **fields: Fields of :class:`HybridConfig`; ``total_steps`` is set from PPO's arguments.
    """

    def __init__(self, **fields: Any) -> None:
        super().__init__()
        # The names of an actor-critic policy: both of its networks end in a head.
        heads = {"action_net.*": "head", "value_net.*": "head"}
        self.fields = {"kinds": heads, **fields}
        self.engine: HybridEngine | None = None

    def _on_training_start(self) -> None:
        model: Any = self.model
        samples = model.n_steps * model.n_envs
        self.per_rollout = model.n_epochs * -(-samples // model.batch_size)
        rollouts = -(-model._total_timesteps // samples)
        config = HybridConfig(total_steps=rollouts * self.per_rollout, **self.fields)
        self.engine = HybridEngine(model.policy, model.policy.optimizer, config)
        self._buffer, self._get = model.rollout_buffer, model.rollout_buffer.get
        self._buffer.get = self._full_steps

    def _on_rollout_end(self) -> None:
        assert self.engine is not None
        self.end = self.engine.ledger.steps + self.per_rollout

    def _full_steps(self, batch_size: int | None = None) -> Iterator[Any]:
        """Yield the buffer's minibatches, with the two calls of the engine around each."""
        engine = self.engine
        assert engine is not None
        try:
            for samples in self._get(batch_size):
                if engine.done or engine.ledger.steps >= self.end:
                    return
                engine.before_step()
                yield samples
                engine.after_step()
        finally:
            engine.abandon()  # PPO ends a pass early if the policy moved by more than target_kl

    def _on_training_end(self) -> None:
        if self.engine is not None:
            self.engine.detach()
            self._buffer.get = self._get

    def _on_step(self) -> bool:
        return True


def main(total: int = 40_000, seed: int = 0, *, enabled: bool = True) -> HybridPPO:
    callback = HybridPPO(enabled=enabled)
    model = PPO("MlpPolicy", "CartPole-v1", seed=seed, device="cpu")
    model.learn(total, callback=callback)
    score, _ = evaluate_policy(model, model.get_env(), n_eval_episodes=20)
    assert callback.engine is not None
    print(f"{callback.engine.ledger}; mean score of 20 games: {np.mean(score):.0f}")
    return callback


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--plain", action="store_true", help="train without the plug-in")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    main(seed=asked.seed, enabled=not asked.plain)
