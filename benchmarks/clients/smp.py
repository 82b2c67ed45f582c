"""segmentation_models_pytorch: its Lightning tutorial on generated images."""

from typing import Any

import torch

from benchmarks.clients import About, Callbacks, fitted, validated

SIDE = 64
BATCH = 16
IMAGES = 320
ENCODER = "timm-mobilenetv3_small_100"


def data(seed: int) -> Any:
    from torch.utils.data import DataLoader, TensorDataset, random_split

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
    import lightning.pytorch as pl
    import segmentation_models_pytorch as smp

    class Net(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = smp.create_model("FPN", ENCODER, encoder_weights=None)
            self.loss = smp.losses.DiceLoss("binary", from_logits=True)

        def configure_optimizers(self) -> Any:
            adam = torch.optim.Adam(self.parameters(), 2e-4)
            steps = int(self.trainer.estimated_stepping_batches)
            cosine = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps, eta_min=1e-5)
            return [adam], [{"scheduler": cosine, "interval": "step"}]

        def training_step(self, batch: Any, index: int) -> Any:
            return self.loss(self.net(batch[0]), batch[1])

        def validation_step(self, batch: Any, index: int) -> None:
            found = (self.net(batch[0]) > 0).long()
            counts = smp.metrics.get_stats(found, batch[1].long(), mode="binary")
            self.log("val_iou", smp.metrics.iou_score(*counts, reduction="micro"))

    return fitted(Net(), data, length, callbacks)


quality = validated("val_iou", 1)

ABOUT = About(
    trains=f"`FPN` with encoder `{ENCODER}`, {IMAGES} generated images of {SIDE} pixels",
    metric="intersection over union of held-out images",
    lower=False,
    length=13,
    requires=("segmentation-models-pytorch==0.6.0",),
)
