"""chgnet: its notebook that fine-tunes the pretrained model, which comes with the package."""

import random
from tempfile import TemporaryDirectory
from typing import Any

from chgnet.data.dataset import StructureData, get_train_val_test_loader
from chgnet.model import CHGNet
from chgnet.trainer import Trainer
from pymatgen.io.ase import AseAtomsAdaptor

from benchmarks.clients import Callbacks
from benchmarks.clients.crystals import crystals
from benchmarks.clients.kept import Steps


def data(seed: int) -> Any:
    random.seed(seed)
    alloys = crystals(seed, 150)
    labelled = StructureData(
        [AseAtomsAdaptor.get_structure(alloy) for alloy in alloys],
        [alloy.get_potential_energy() / len(alloy) for alloy in alloys],
        [alloy.get_forces() for alloy in alloys],
    )
    return get_train_val_test_loader(
        labelled, batch_size=4, train_ratio=0.8, val_ratio=0.2, return_test=False
    )


def train(data: Any, length: int, callbacks: Callbacks) -> Any:
    class Hybrid(Trainer):
        def _train(self, train_loader: Any, *args: Any) -> Any:
            return super()._train(steps.over(train_loader), *args)

    model = CHGNet.load(use_device="cpu", verbose=False)
    frozen = [
        model.atom_embedding, model.bond_embedding, model.angle_embedding,
        model.bond_basis_expansion, model.angle_basis_expansion,
        model.atom_conv_layers[:-1], model.bond_conv_layers, model.angle_layers,
    ]  # fmt: skip
    for layer in frozen:
        layer.requires_grad_(False)
    trainer = Hybrid(
        model, targets="ef", optimizer="Adam", scheduler="CosLR", criterion="MSE",
        epochs=length, learning_rate=1e-2, use_device="cpu", print_freq=10**9,
    )  # fmt: skip
    steps = Steps(callbacks, model, trainer.optimizer, length * len(data[0]))
    with TemporaryDirectory() as folder:
        trainer.train(*data, save_dir=folder, train_composition_model=True)
    return trainer


def quality(trained: Any, data: Any) -> float:
    return float(trained.training_history["f"]["val"][-1])
