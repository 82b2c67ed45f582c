"""lightly-train: SimCLR on images of digits, in files, by its one command."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import lightly_train
import torch
from lightly_train._callbacks import callback_helpers
from PIL import Image
from sklearn.datasets import load_digits  # type: ignore[import-untyped]
from torchvision.models import shufflenet_v2_x0_5

from benchmarks.clients import Callbacks

SIDE = 32


def data(seed: int) -> Any:
    folder = TemporaryDirectory()
    digits = load_digits()
    images = torch.from_numpy(digits.images).float()[:, None].expand(-1, 3, -1, -1) / 16
    images = torch.nn.functional.interpolate(images, SIDE, mode="bilinear").clamp(0, 1)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    cut = len(images) * 4 // 5
    for k in order[:cut]:
        pixels = (images[k].permute(1, 2, 0) * 255).byte().numpy()
        Image.fromarray(pixels).save(Path(folder.name) / f"{k}.png")
    return images[order], torch.from_numpy(digits.target)[order], cut, folder


def train(data: Any, length: int, callbacks: Callbacks) -> Any:
    own = callback_helpers.get_callbacks

    def with_ours(**options: Any) -> Any:
        return [*own(**options), *callbacks]

    model = shufflenet_v2_x0_5()
    # The command takes no callback object: it writes its arguments down as JSON.
    patched = mock.patch.object(callback_helpers, "get_callbacks", with_ours)
    with TemporaryDirectory() as folder, patched:
        lightly_train.pretrain(
            out=folder, overwrite=True, data=data[3].name, model=model, method="simclr",
            epochs=length, batch_size=32, num_workers=0, accelerator="cpu",
            seed=torch.initial_seed() % 2**31, transform_args={"image_size": (SIDE, SIDE)},
        )  # fmt: skip
    model.fc = torch.nn.Identity()
    return model.eval()


@torch.no_grad()
def quality(trained: Any, data: Any) -> float:
    images, labels, cut, _ = data
    mean = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
    scale = torch.tensor([0.229, 0.224, 0.225])[:, None, None]
    found = torch.nn.functional.normalize(trained((images - mean) / scale))
    near = (found[cut:] @ found[:cut].T).topk(20).indices
    votes = torch.nn.functional.one_hot(labels[:cut][near]).sum(1)
    return float((votes.argmax(1) == labels[cut:]).float().mean())
