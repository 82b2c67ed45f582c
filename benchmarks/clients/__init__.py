"""Published packages that train with the plug-in, each by a module of its name; see `About`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "logger": False,
}

Callbacks = Sequence[Any]
"""Callbacks of Lightning: one HybridPredict, or none."""


@dataclass(frozen=True)
class About:
    """What a client is, beside the module of its name, which has three functions.

    ``data(seed)`` returns data for training and validation. ``train(data, length, callbacks)``
    trains as the package's documentation does, seeded before. ``quality(trained, data)`` returns
    the metric of what ``train`` returned, on data held out.

    ``requires`` names packages beyond torch, Lightning and this project, its own first. ``trains``
    names settings that are not the package's defaults. The full run has ``length`` of a ``unit``.
    ``lower`` says whether a lower metric is better.
    """

    requires: str
    trains: str
    metric: str
    length: int
    lower: bool = True
    unit: str = "epochs"

    @property
    def package(self) -> str:
        return self.requires.partition("==")[0]


CLIENTS = {
    "scvi": About(
        "scvi-tools==1.4.2",
        "`SCVI`, counts of 420 cells and 120 genes from 6 programs",
        "validation ELBO per cell, negated",
        400,
    ),
    "chemprop": About(
        "chemprop==2.3.1",
        "`MPNN`, logP by Crippen of 250 molecules of the NCI set",
        "validation loss (squared error of the scaled target)",
        50,
    ),
    "nhits": About(
        "neuralforecast==3.3.0",
        "`NHITS`, the package's panel of airline passengers, robust scaler, 128 windows per batch",
        "mean absolute error of rolling forecasts over the last two years",
        300,
        unit="steps",
    ),
    "tide": About(
        "darts==0.48.1",
        "`TiDEModel`, weekly differences of carbon dioxide at Mauna Loa",
        "mean absolute error of rolling forecasts over the last four years",
        20,
    ),
    "fusion": About(
        "pytorch-forecasting==1.8.0",
        "`TemporalFusionTransformer`, `generate_ar_data` with 10 series of 150 steps, "
        "clipped at .1",
        "validation loss (quantiles)",
        20,
    ),
    "deeptab": About(
        "deeptab==2.1.0",
        "`ResNetRegressor`, scikit-learn's diabetes data of 442 patients",
        "validation squared error, as a share of the target's variance",
        100,
    ),
    "deepxde": About(
        "DeepXDE==1.15.0",
        "`FNN`, 3 layers of 150 units, Helmholtz equation on a square, 480 points per step",
        "relative error of the solution at 3,600 points",
        1000,
        unit="steps",
    ),
    "neuraloperator": About(
        "neuraloperator==2.0.0",
        "`FNO`, Darcy flow through 1000 generated media of 16 x 16 cells",
        "relative error (L2) on generated media",
        15,
    ),
    "geometric": About(
        "torch_geometric==2.8.1",
        "`GIN`, 1600 random graphs that contain a house or a cycle of five nodes",
        "cross entropy on 400 further graphs",
        40,
    ),
    "nequip": About(
        "nequip==0.19.1",
        "`NequIPGNNModel`, 100 rattled crystals of copper, with the potential of ASE",
        "validation mean absolute error of forces, eV/Å",
        15,
    ),
    "speechbrain": About(
        "speechbrain==1.1.2 torchaudio==2.11.0",
        "`Xvector` of width 64, 3200 artificial voices of 40 speakers, Adam",
        "validation loss (cross entropy)",
        6,
    ),
    "asteroid": About(
        "asteroid==0.5.1 torchaudio==2.11.0 requests<3",
        "`ConvTasNet` with 6 blocks of width 64, 240 sums of two artificial voices",
        "validation loss (negated scale-invariant ratio of signal and distortion, dB)",
        4,
    ),
    "pykeen": About(
        "pykeen==1.11.1",
        "`ConvE` with inverse relations on `Kinships`, Adam",
        "mean reciprocal rank of the validation facts",
        20,
        lower=False,
    ),
    "sentence_transformers": About(
        "sentence-transformers==6.2.0 datasets==5.2.0 accelerate==1.15.0",
        "a BERT of 3 layers of width 128 from scratch, 4096 pairs of artificial texts",
        "validation loss (rank of the partner among 64 texts)",
        3,
    ),
    "recbole": About(
        "recbole==1.2.1 numpy<2 pandas<3",
        "`SASRec` on sequences of 20 films of `ml-100k`, of users with 20 to 60 films, Adam",
        "mean reciprocal rank of the validation film among 10",
        4,
        lower=False,
    ),
    "fastai": About(
        "fastai==2.8.12 scikit-learn==1.9.1",
        "`Learner` with `xresnet18(widen=0.25)`, scikit-learn's digits at 32 pixels, "
        "`AdamW` in an `OptimWrapper`",
        "validation loss (cross entropy)",
        10,
    ),
    "monai": About(
        "monai==1.6.1",
        "`UNet` with `DiceLoss`, 40 images of `create_test_image_2d`, crops of 96 pixels",
        "Dice score of held-out images",
        10,
        lower=False,
    ),
    "smp": About(
        "segmentation-models-pytorch==0.6.0",
        "`FPN` with encoder `timm-mobilenetv3_small_100`, 320 generated images of 64 pixels",
        "intersection over union of held-out images",
        13,
        lower=False,
    ),
    "lightly": About(
        "lightly==1.6.0 scikit-learn==1.9.1",
        "SimCLR, `ResNetGenerator('resnet-9', width=0.25)`, scikit-learn's digits at 16 pixels, "
        "batches of 64 images",
        "accuracy of held-out images by their nearest neighbours",
        10,
        lower=False,
    ),
    "deepinv": About(
        "deepinv==0.5.0 scikit-learn==1.9.1",
        "`UNet` on crops of 48 pixels of scikit-learn's two photographs, noise of 0.2",
        "peak signal-to-noise ratio of held-out crops",
        10,
        lower=False,
    ),
    "pytorch_tabular": About(
        "pytorch_tabular==1.2.0 requests",
        "`FTTransformerConfig`, 3000 rows of `make_mixed_dataset` with 16 numbers and 4 categories",
        "validation loss (cross entropy) of the best epoch",
        10,
    ),
    "torch_uncertainty": About(
        "torch-uncertainty==0.13.0 torchvision timm scikit-learn==1.9.1",
        "`bayesian_lenet` with `ELBOLoss`, scikit-learn's digits at 28 pixels, Adam",
        "negative log-likelihood of held-out images",
        8,
    ),
    "rl4co": About(
        "rl4co==0.7.0",
        "`AttentionModelPolicy` with `REINFORCE`, 960 drawn sets of 20 cities an epoch",
        "length of the tours through 1000 further sets of cities",
        5,
    ),
    "matgl": About(
        "matgl==4.1.2",
        "`MEGNet`, energies of 400 random alloys, with the potential of ASE",
        "validation mean absolute error, eV per atom",
        25,
    ),
    "chgnet": About(
        "chgnet==0.4.2",
        "the pretrained `CHGNet`, its last layers, 120 random alloys, with the potential of ASE",
        "validation mean absolute error of forces, eV/Å",
        3,
    ),
    "anomalib": About(
        "anomalib==2.7.0 scikit-learn==1.9.1",
        "`Ganomaly` with 16 features, scikit-learn's digits at 32 pixels, without a defect",
        "area under the curve of held-out images with and without a defect",
        5,
        lower=False,
    ),
    "sevenn": About(
        "sevenn==0.13.0",
        "the pretrained `7net-0`, 40 random alloys, with the potential of ASE",
        "validation mean absolute error of forces, eV/Å",
        3,
    ),
}


def validated(metric: str, part: int | None = None) -> Callable[[Any, Any], float]:
    """Return a quality: what a Lightning Trainer logs as it validates a part of the data."""

    def quality(trained: Any, data: Any) -> float:
        held = data if part is None else data[part]
        return float(trained.validate(trained.model, held, verbose=False)[0][metric])

    return quality


def fitted(
    module: Any, data: Sequence[Any], epochs: int, callbacks: Callbacks, **options: Any
) -> Any:
    """Return a Lightning Trainer that has trained a module; ``data`` are what ``fit`` is given."""
    import lightning.pytorch as pl

    trainer = pl.Trainer(
        max_epochs=epochs, callbacks=list(callbacks), enable_checkpointing=False, **QUIET, **options
    )
    trainer.fit(module, *data)
    return trainer


def learner(net: Any, optimizer: Any, loss: Any, judge: Any = None) -> Any:
    """Return a LightningModule that trains a net by ``loss(net, batch)`` with an optimizer.

    For a batch held out, ``judge(net, batch)`` returns the metric, logged as ``judged``, and size.
    """
    import lightning.pytorch as pl

    class Learner(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def configure_optimizers(self) -> Any:
            return optimizer

        def training_step(self, batch: Any, index: int) -> Any:
            return loss(self.net, batch)

        def validation_step(self, batch: Any, index: int) -> None:
            value, size = judge(self.net, batch)
            self.log("judged", value, batch_size=size)

    return Learner()
