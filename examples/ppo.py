"""Proximal policy optimization (Schulman et al., 2017) on CartPole in a plain loop.

An update on one minibatch is one full step. Each rollout gets as many steps as without the plug-in,
some of them predicted. The number of rollouts does not change.

Run with: pip install gymnasium && python examples/ppo.py [--plain]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

from hybrid_predict import HybridConfig, HybridEngine

GAMES, ROLLOUT, PASSES, BATCH = 8, 128, 10, 256
DISCOUNT, TRACE, CLIP = 0.98, 0.9, 0.2
PER_ROLLOUT = PASSES * GAMES * ROLLOUT // BATCH


def layers(outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)
    )


class Agent(nn.Module):
    """A policy over the two pushes, and the value of a state."""

    def __init__(self) -> None:
        super().__init__()
        self.policy, self.value = layers(2), layers(1)

    def choices(self, states: Tensor) -> Categorical:
        return Categorical(logits=self.policy(states))


def loss_of(agent: Agent, batch: list[Tensor]) -> Tensor:
    states, pushes, before, advantages, returns = batch
    choices = agent.choices(states)
    ratio = (choices.log_prob(pushes) - before).exp()
    clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
    gain = torch.minimum(ratio * advantages, clipped * advantages).mean()
    value = (agent.value(states).squeeze(-1) - returns).square().mean()
    return 0.5 * value - gain - 0.01 * choices.entropy().mean()


class Run:
    """Games, agent, optimizer and engine."""

    def __init__(self, rollouts: int, seed: int, enabled: bool = True) -> None:
        torch.manual_seed(seed)
        self.games = gym.make_vec("CartPole-v1", num_envs=GAMES)
        self.states, _ = self.games.reset(seed=seed)
        self.agent = Agent()
        self.optimizer = torch.optim.Adam(self.agent.parameters(), lr=1e-3, eps=1e-5)
        total = rollouts * PER_ROLLOUT
        self.scheduler = torch.optim.lr_scheduler.LinearLR(self.optimizer, 1.0, 0.0, total)
        config = HybridConfig(total_steps=total, enabled=enabled)
        self.engine = HybridEngine(self.agent, self.optimizer, config)
        self.score, self.scores = np.zeros(GAMES), list[float]()

    @torch.no_grad()
    def play(self) -> list[Tensor]:
        """One rollout: states, pushes, their log-probabilities, advantages and returns."""
        seen = []
        for _ in range(ROLLOUT):
            states = torch.as_tensor(self.states, dtype=torch.float32)
            choices = self.agent.choices(states)
            pushes = choices.sample()
            self.states, rewards, ended, cut, _ = self.games.step(pushes.numpy())
            over = ended | cut
            self.score += rewards
            self.scores += self.score[over].tolist()
            self.score[over] = 0
            value = self.agent.value(states).squeeze(-1)
            seen.append((states, pushes, choices.log_prob(pushes), value,
                         torch.as_tensor(rewards, dtype=torch.float32),
                         torch.as_tensor(over, dtype=torch.float32)))  # fmt: skip
        states, pushes, before, values, rewards, over = map(torch.stack, zip(*seen, strict=True))
        last = self.agent.value(torch.as_tensor(self.states, dtype=torch.float32)).squeeze(-1)
        advantages, later = torch.zeros_like(values), torch.zeros(GAMES)
        for t in reversed(range(ROLLOUT)):
            following = last if t == ROLLOUT - 1 else values[t + 1]
            error = rewards[t] + DISCOUNT * (1 - over[t]) * following - values[t]
            later = advantages[t] = error + DISCOUNT * TRACE * (1 - over[t]) * later
        scaled = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        found = (states, pushes, before, scaled, advantages + values)
        return [part.flatten(0, 1) for part in found]

    def batches(self, rollout: list[Tensor]) -> Iterator[list[Tensor]]:
        for _ in range(PASSES):
            for chosen in torch.randperm(GAMES * ROLLOUT).split(BATCH):
                yield [part[chosen] for part in rollout]

    def learn(self, rollout: list[Tensor]) -> None:
        """Take the steps of one rollout; predicted steps replace its last batches."""
        engine, end = self.engine, self.engine.ledger.steps + PER_ROLLOUT
        for batch in self.batches(rollout):
            if engine.done or engine.ledger.steps >= end:
                return
            engine.before_step()
            loss = loss_of(self.agent, batch)
            loss.backward()
            nn.utils.clip_grad_norm_(self.agent.parameters(), 0.5)
            self.optimizer.step()
            self.optimizer.zero_grad()
            # The loss of a new rollout need not be lower than that of the last one. So it only
            # shows which matrices are heads, and no verdict uses it.
            engine.observe_graph(loss)
            for _ in range(engine.after_step().ticks):
                self.scheduler.step()


def main(rollouts: int = 40, seed: int = 0, *, enabled: bool = True) -> Run:
    run = Run(rollouts, seed, enabled)
    for _ in range(rollouts):
        run.learn(run.play())
    print(f"{run.engine.ledger}; mean score of the last 20 games: {np.mean(run.scores[-20:]):.0f}")
    return run


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--plain", action="store_true", help="train without the plug-in")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    main(seed=asked.seed, enabled=not asked.plain)
