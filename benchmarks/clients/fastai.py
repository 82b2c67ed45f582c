"""fastai: a residual network on images of digits, in the Learner's own loop."""

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from fastai.callback.core import Callback, CancelBatchException
from fastai.vision.all import ImageDataLoaders, Learner, OptimWrapper, Resize, xresnet18
from PIL import Image
from sklearn.datasets import load_digits  # type: ignore[import-untyped]

from benchmarks.clients import Callbacks
from benchmarks.clients.kept import Steps


def data(seed: int) -> Any:
    folder = TemporaryDirectory()
    digits = load_digits()
    for k, (image, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        at = Path(folder.name) / str(label)
        at.mkdir(exist_ok=True)
        Image.fromarray((image * 15.9).astype("uint8")).convert("RGB").save(at / f"{k}.png")
    loaders = ImageDataLoaders.from_folder(
        folder.name, valid_pct=0.2, seed=seed, item_tfms=Resize(32), bs=64, num_workers=0
    )
    return loaders, folder


def train(data: Any, length: int, callbacks: Callbacks) -> Any:
    class Hybrid(Callback):
        def before_fit(self) -> None:
            steps = length * len(self.learn.dls.train)
            self.full = Steps(callbacks, self.learn.model, self.learn.opt.opt, steps)
            self.engine = self.full.engine

        def before_batch(self) -> None:
            if self.learn.training and not self.full.begin():
                raise CancelBatchException

        def after_loss(self) -> None:
            self.engine.observe_graph(self.learn.loss_grad)

        def after_step(self) -> None:
            self.full.end(self.learn.loss)

        def after_fit(self) -> None:
            self.engine.detach()

    adamw = partial(OptimWrapper, opt=torch.optim.AdamW)
    learner = Learner(data[0], xresnet18(n_out=10, widen=0.25), opt_func=adamw)
    with learner.no_bar(), learner.no_logging():
        learner.fit_one_cycle(length, cbs=[Hybrid() for _ in callbacks])
    return learner


def quality(trained: Any, data: Any) -> float:
    with trained.no_bar():
        return float(trained.validate()[0])
