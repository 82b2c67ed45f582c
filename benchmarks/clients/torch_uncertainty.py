"""torch-uncertainty: its tutorial of a Bayesian LeNet, on images of digits."""

from typing import Any

import torch
from sklearn.datasets import load_digits  # type: ignore[import-untyped]
from torch.utils.data import DataLoader, TensorDataset, random_split
from torch_uncertainty import TUTrainer
from torch_uncertainty.losses import ELBOLoss
from torch_uncertainty.models.classification import bayesian_lenet
from torch_uncertainty.routines import ClassificationRoutine

from benchmarks.clients import QUIET, Callbacks, validated

SIDE = 28


def data(seed: int) -> Any:
    digits = load_digits()
    images = torch.from_numpy(digits.images).float()[:, None] / 16
    images = torch.nn.functional.interpolate(images, SIDE, mode="bilinear")
    images = (images - images.mean()) / images.std()
    pairs = TensorDataset(images, torch.from_numpy(digits.target))
    train, held_out = random_split(pairs, [0.8, 0.2], torch.Generator().manual_seed(seed))
    return DataLoader(train, 64, shuffle=True), DataLoader(held_out, 360)


def train(data: Any, length: int, callbacks: Callbacks) -> Any:
    model = bayesian_lenet(in_channels=1, num_classes=10)
    loss = ELBOLoss(
        model=model, inner_loss=torch.nn.CrossEntropyLoss(), kl_weight=1 / 10000, num_samples=3
    )
    routine = ClassificationRoutine(
        model=model, num_classes=10, loss=loss, is_ensemble=True,
        optim_recipe=torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=0.0),
    )  # fmt: skip
    trainer = TUTrainer(
        max_epochs=length, callbacks=list(callbacks), enable_checkpointing=False, **QUIET
    )
    trainer.fit(routine, *data)
    return trainer


quality = validated("val/cls/NLL", 1)
