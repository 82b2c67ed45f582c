"""monai: the segmentation tutorial of a U-Net on generated images, in a LightningModule."""

from typing import Any

import torch

from benchmarks.clients import About, Callbacks, fitted, validated


def data(seed: int) -> Any:
    import monai.transforms as mt
    from monai.data import DataLoader, Dataset, create_test_image_2d
    from monai.utils import set_determinism

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
    import lightning.pytorch as pl
    from monai.losses import DiceLoss
    from monai.metrics import DiceMetric
    from monai.networks.nets import UNet

    class Net(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = UNet(2, 1, 1, (16, 32, 64, 128, 256), (2, 2, 2, 2), num_res_units=2)
            self.loss = DiceLoss(sigmoid=True)
            self.dice = DiceMetric()

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), 1e-3)

        def training_step(self, batch: Any, index: int) -> Any:
            return self.loss(self.net(batch["image"]), batch["label"])

        def validation_step(self, batch: Any, index: int) -> None:
            self.dice((self.net(batch["image"]) > 0).float(), batch["label"])

        def on_validation_epoch_end(self) -> None:
            self.log("val_dice", self.dice.aggregate())
            self.dice.reset()

    return fitted(Net(), data, length, callbacks)


quality = validated("val_dice", 1)

ABOUT = About(
    trains="`UNet` with `DiceLoss`, 40 images of `create_test_image_2d`, crops of 96 pixels",
    metric="Dice score of held-out images",
    lower=False,
    length=10,
    requires=("monai==1.6.1",),
)
