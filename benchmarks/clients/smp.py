"""segmentation_models_pytorch: its Lightning tutorial on generated images."""

from typing import Any

import segmentation_models_pytorch as smp
import torch
from torch.utils.data import DataLoader, TensorDataset, random_split

from benchmarks.clients import Callbacks, fitted, learner, validated

SIDE = 64
BATCH = 16
IMAGES = 320


def data(seed: int) -> Any:
    torch.manual_seed(seed)
    axes = torch.meshgrid(*[torch.linspace(-1, 1, SIDE)] * 2, indexing="ij")
    places = torch.rand(IMAGES, 4, 2, 1, 1) * 1.6 - 0.8
    radii = torch.rand(IMAGES, 4, 1, 1) / 3
    discs = (torch.stack(axes) - places).norm(dim=2) < radii + 0.1
    colours = torch.rand(IMAGES, 4, 3, 1, 1)
    images = (discs[:, :, None] * colours).amax(1) + torch.randn(IMAGES, 3, SIDE, SIDE) / 2
    masks = (discs & (colours[:, :, 0] > 0.5)).any(1)[:, None].float()
    train, held_out = random_split(TensorDataset(images, masks), [0.8, 0.2])
    return DataLoader(train, BATCH, shuffle=True), DataLoader(held_out, BATCH)


def train(data: Any, length: int, callbacks: Callbacks) -> Any:
    net = smp.create_model("FPN", "timm-mobilenetv3_small_100", encoder_weights=None)
    dice = smp.losses.DiceLoss("binary", from_logits=True)
    adam = torch.optim.Adam(net.parameters(), 2e-4)
    steps = length * len(data[0])
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps, eta_min=1e-5)

    def loss(net: Any, batch: Any) -> Any:
        return dice(net(batch[0]), batch[1])

    def judge(net: Any, batch: Any) -> Any:
        found = (net(batch[0]) > 0).long()
        counts = smp.metrics.get_stats(found, batch[1].long(), mode="binary")
        return smp.metrics.iou_score(*counts, reduction="micro"), len(found)

    optimizer = [adam], [{"scheduler": cosine, "interval": "step"}]
    return fitted(learner(net, optimizer, loss, judge), data, length, callbacks)


quality = validated("judged", 1)
