"""matgl: its tutorial of a MEGNet for energies of crystals, on random alloys."""

from tempfile import TemporaryDirectory
from typing import Any

import torch
from matgl.ext.pymatgen import Structure2Graph
from matgl.graph.data import MGLDataLoader, MGLDataset
from matgl.models import MEGNet
from matgl.utils.training import ModelLightningModule
from pymatgen.io.ase import AseAtomsAdaptor

from benchmarks.clients import Callbacks, fitted, validated
from benchmarks.clients.crystals import METALS, crystals

CUTOFF = 4.0


def data(seed: int) -> Any:
    alloys = crystals(seed, 500)
    with TemporaryDirectory() as folder:
        graphs = MGLDataset(
            structures=[AseAtomsAdaptor.get_structure(alloy) for alloy in alloys],
            labels={"energy": [alloy.get_potential_energy() / len(alloy) for alloy in alloys]},
            converter=Structure2Graph(METALS, CUTOFF), root=folder, save_cache=False,
        )  # fmt: skip
    draw = torch.Generator().manual_seed(seed)
    train, val = torch.utils.data.random_split(graphs, [0.8, 0.2], draw)
    return MGLDataLoader(train, val, batch_size=32, num_workers=0)


def train(data: Any, length: int, callbacks: Callbacks) -> Any:
    module = ModelLightningModule(MEGNet(element_types=METALS, cutoff=CUTOFF))
    return fitted(module, data, length, callbacks)


quality = validated("val_MAE", 1)
