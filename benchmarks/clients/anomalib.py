"""anomalib: GANomaly, two networks against each other, finds digits with a defect."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from anomalib.data import Folder
from anomalib.engine import Engine
from anomalib.models import Ganomaly
from PIL import Image
from sklearn.datasets import load_digits  # type: ignore[import-untyped]

from benchmarks.clients import QUIET, Callbacks

SIDE = 32
DEFECTS = 180


def data(seed: int) -> Any:
    folder = TemporaryDirectory()
    random = np.random.default_rng(seed)
    for k, image in enumerate(random.permutation(load_digits().images)):
        at = Path(folder.name) / ("abnormal" if k < DEFECTS else "normal")
        at.mkdir(exist_ok=True)
        if k < DEFECTS:
            row, column = random.integers(1, 6, 2)
            image[row : row + 2, column : column + 2] = random.uniform(0, 16, (2, 2))
        Image.fromarray((image * 15.9).astype("uint8")).convert("RGB").save(at / f"{k}.png")
    images = Folder(
        "digits", root=folder.name, normal_dir="normal", abnormal_dir="abnormal",
        num_workers=0, seed=seed,
    )  # fmt: skip
    return images, folder


def train(data: Any, length: int, callbacks: Callbacks) -> Any:
    sized = Ganomaly.configure_pre_processor(image_size=(SIDE, SIDE))
    model = Ganomaly(n_features=16, pre_processor=sized, visualizer=False)
    engine = Engine(
        max_epochs=length, callbacks=list(callbacks), default_root_dir=data[1].name, **QUIET
    )
    engine.fit(model, datamodule=data[0])
    return engine, model


def quality(trained: Any, data: Any) -> float:
    engine, model = trained
    return float(engine.test(model, datamodule=data[0], verbose=False)[0]["image_AUROC"])
