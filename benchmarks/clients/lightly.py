"""lightly: its SimCLR tutorial on images of digits."""

from typing import Any

import torch
from lightly.loss import NTXentLoss
from lightly.models import ResNetGenerator
from lightly.models.modules import SimCLRProjectionHead
from lightly.transforms import SimCLRTransform
from lightly.utils.benchmarking import knn_predict
from sklearn.datasets import load_digits  # type: ignore[import-untyped]
from torchvision.transforms.functional import to_pil_image

from benchmarks.clients import Callbacks, fitted, learner

SIDE = 16


def data(seed: int) -> Any:
    digits = load_digits()
    generator = torch.Generator().manual_seed(seed)
    images = torch.from_numpy(digits.images).float()[:, None].expand(-1, 3, -1, -1) / 16
    images = torch.nn.functional.interpolate(images, SIDE, mode="bilinear").clamp(0, 1)
    order = torch.randperm(len(images), generator=generator)
    return images[order], torch.from_numpy(digits.target)[order], len(images) * 4 // 5


def train(data: Any, length: int, callbacks: Callbacks) -> Any:
    layers = list(ResNetGenerator("resnet-9", 0.25).children())[:-1]
    backbone = torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    net = torch.nn.Sequential(backbone, SimCLRProjectionHead(128, 128, 128))
    contrast = NTXentLoss()

    def loss(net: Any, batch: Any) -> Any:
        return contrast(*map(net, batch))

    views = SimCLRTransform(input_size=SIDE, gaussian_blur=0.0)
    pictures: Any = [to_pil_image(image) for image in data[0][: data[2]]]
    loader: Any = torch.utils.data.DataLoader(
        pictures, 64, shuffle=True, drop_last=True,
        collate_fn=lambda batch: [torch.stack(v) for v in zip(*map(views, batch), strict=True)],
    )  # fmt: skip
    sgd = torch.optim.SGD(net.parameters(), lr=0.06)
    fitted(learner(net, sgd, loss), [loader], length, callbacks)
    return backbone.eval()


@torch.no_grad()
def quality(trained: Any, data: Any) -> float:
    images, labels, cut = data
    found = torch.nn.functional.normalize(trained((images - 0.45) / 0.23))
    ranked = knn_predict(found[cut:], found[:cut].T, labels[:cut], num_classes=10, knn_k=20)
    return float((ranked[:, 0] == labels[cut:]).float().mean())
