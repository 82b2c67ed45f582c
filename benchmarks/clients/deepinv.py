"""deepinv: restoring noisy photographs with a U-Net, in the package's own Trainer."""

from typing import Any

import deepinv as dinv
import torch
from sklearn.datasets import load_sample_images  # type: ignore[import-untyped]
from torch.utils.data import DataLoader

from benchmarks.clients import Callbacks
from benchmarks.clients.kept import Steps

SIDE = 48
BATCH = 16
CROPS = 320


def data(seed: int) -> Any:
    torch.manual_seed(seed)
    train: Any = crops(0, 480 - SIDE, CROPS)
    held_out: Any = crops(480, 640 - SIDE, CROPS // 5)
    return DataLoader(train, BATCH, shuffle=True), DataLoader(held_out, BATCH)


def train(data: Any, length: int, callbacks: Callbacks) -> Any:
    class Hybrid(dinv.Trainer):
        def step(self, *args: Any, train: bool = True, **options: Any) -> Any:
            if not train:
                super().step(*args, train=False, **options)
            elif self.steps.begin():
                super().step(*args, train=True, **options)
                self.steps.end(self.total)

        def compute_loss(self, *args: Any, **options: Any) -> Any:
            self.total, *others = super().compute_loss(*args, **options)
            return self.total, *others

    model = dinv.models.UNet(3, 3, channels_per_scale=[16, 32, 64])
    adam = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-8)
    trainer = Hybrid(
        model=model, optimizer=adam, epochs=length,
        physics=dinv.physics.Denoising(dinv.physics.GaussianNoise(0.2)),
        scheduler=torch.optim.lr_scheduler.StepLR(adam, max(1, length * 4 // 5)),
        train_dataloader=data[0], eval_dataloader=data[1], online_measurements=True,
        device="cpu", save_path=None, verbose=False, show_progress_bar=False,
    )  # fmt: skip
    trainer.steps = Steps(callbacks, model, adam, length * len(data[0]))
    trainer.train()
    return trainer


def quality(trained: Any, data: Any) -> float:
    return float(trained.test(data[1])["PSNR"])


def crops(first: int, last: int, count: int) -> list[torch.Tensor]:
    """Return random crops of the photographs in turn, from columns ``first`` to ``last`` on."""
    images = [torch.from_numpy(image) / 255 for image in load_sample_images().images]
    rows = torch.randint(427 - SIDE, (count,))
    columns = torch.randint(first, last, (count,))
    return [
        images[k % 2][y : y + SIDE, x : x + SIDE].permute(2, 0, 1)
        for k, (y, x) in enumerate(zip(rows, columns, strict=True))
    ]
