"""rl4co: the attention model of its quick start, tours of 20 cities by REINFORCE."""

from typing import Any

import torch
from rl4co.envs import TSPEnv
from rl4co.models import REINFORCE, AttentionModelPolicy
from rl4co.utils import RL4COTrainer

from benchmarks.clients import QUIET, Callbacks

CITIES = 20


def data(seed: int) -> Any:
    env = TSPEnv(generator_params={"num_loc": CITIES}, seed=seed)
    return env, env.generator([1000])


def train(data: Any, length: int, callbacks: Callbacks) -> Any:
    env = data[0]
    policy = AttentionModelPolicy(env_name=env.name, num_encoder_layers=3)
    model = REINFORCE(
        env, policy, baseline="rollout", batch_size=32, optimizer_kwargs={"lr": 1e-4},
        train_data_size=960, val_data_size=256,
    )  # fmt: skip
    trainer = RL4COTrainer(
        max_epochs=length, callbacks=list(callbacks), precision="32-true",
        enable_checkpointing=False, **QUIET,
    )  # fmt: skip
    trainer.fit(model)
    return model


@torch.no_grad()
def quality(trained: Any, data: Any) -> float:
    env, cities = data
    trained.policy.eval()
    tours = trained.policy(env.reset(cities), env, phase="test", decode_type="greedy")
    return float(-tours["reward"].mean())
