"""monai: the segmentation tutorial of a U-Net on generated images, in a LightningModule."""

from typing import Any

import monai.transforms as mt
import torch
from monai.data import DataLoader, Dataset, create_test_image_2d
from monai.losses import DiceLoss
from monai.metrics import compute_dice
from monai.networks.nets import UNet
from monai.utils import set_determinism

from benchmarks.clients import Callbacks, fitted, learner, validated


def data(seed: int) -> Any:
    set_determinism(seed)
    made = [create_test_image_2d(128, 128, num_seg_classes=1, channel_dim=0) for _ in range(60)]
    images = [{"image": image, "label": label} for image, label in made]
    scale = mt.ScaleIntensityd("image")
    keys = ["image", "label"]
    crop = mt.RandCropByPosNegLabeld(keys, "label", [96, 96], num_samples=4)
    changed = mt.Compose([scale, crop, mt.RandRotate90d(keys, prob=0.5)])
    train = DataLoader(Dataset(images[:40], changed), batch_size=2, shuffle=True)
    return train, DataLoader(Dataset(images[40:], scale), batch_size=1)


def train(data: Any, length: int, callbacks: Callbacks) -> Any:
    net = UNet(2, 1, 1, (16, 32, 64, 128, 256), (2, 2, 2, 2), num_res_units=2)
    dice = DiceLoss(sigmoid=True)

    def loss(net: Any, batch: Any) -> Any:
        return dice(net(batch["image"]), batch["label"])

    def judge(net: Any, batch: Any) -> Any:
        return compute_dice((net(batch["image"]) > 0).float(), batch["label"]).mean(), 1

    adam = torch.optim.Adam(net.parameters(), 1e-3)
    return fitted(learner(net, adam, loss, judge), data, length, callbacks)


quality = validated("judged", 1)
