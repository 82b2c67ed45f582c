"""nequip: an equivariant force field, as in its tutorial."""

from tempfile import mkdtemp
from typing import Any

import ase.io
import numpy as np
from ase.build import bulk
from nequip.data.datamodule import ASEDataModule
from nequip.train import EMALightningModule
from nequip.utils.global_state import set_global_state

from benchmarks.clients import Callbacks, fitted, validated
from benchmarks.clients.crystals import rattled

CUTOFF = 4.0
TRAINED = 100
VALIDATED = 50


def data(seed: int) -> Any:
    rng = np.random.default_rng(seed)
    path = f"{mkdtemp()}/copper.xyz"
    perfect = bulk("Cu", orthorhombic=True).repeat((2, 2, 1))
    ase.io.write(path, [rattled(perfect.copy(), rng) for _ in range(TRAINED + VALIDATED)])
    changes = "nequip.data.transforms."
    loader = {"_target_": "torch.utils.data.DataLoader", "batch_size": 5, "num_workers": 0}
    return ASEDataModule(
        seed, split_dataset={"file_path": path, "train": TRAINED, "val": VALIDATED},
        transforms=[
            {"_target_": changes + "ChemicalSpeciesToAtomTypeMapper",
             "model_type_names": ["Cu"]},
            {"_target_": changes + "NeighborListTransform", "r_max": CUTOFF},
        ],
        train_dataloader={**loader, "shuffle": True}, val_dataloader=loader,
        stats_manager={
            "_target_": "nequip.data.CommonDataStatisticsManager", "type_names": ["Cu"],
            "dataloader_kwargs": {"batch_size": 10},
        },
    )  # fmt: skip


def train(data: Any, length: int, callbacks: Callbacks) -> Any:
    set_global_state()
    data.prepare_data()
    data.setup("fit")
    known = data.get_statistics("train")
    even = {"total_energy": 1.0, "forces": 1.0}
    module = EMALightningModule(
        ema_decay=0.98,
        model={
            "_target_": "nequip.model.NequIPGNNModel", "seed": 0, "model_dtype": "float32",
            "r_max": CUTOFF, "type_names": ["Cu"], "num_layers": 3, "l_max": 1,
            "parity": False, "num_features": 32, "radial_mlp_depth": 2,
            "radial_mlp_width": 64, "avg_num_neighbors": known["num_neighbors_mean"],
            "per_type_energy_shifts": known["per_atom_energy_mean"],
            "per_type_energy_scales": known["forces_rms"],
        },
        num_datasets={"train": 1, "val": 1, "test": 0, "predict": 0},
        optimizer={"_target_": "torch.optim.Adam", "lr": 0.01},
        lr_scheduler={
            "scheduler": {"_target_": "torch.optim.lr_scheduler.ReduceLROnPlateau"},
            "monitor": "val0_epoch/weighted_sum", "interval": "epoch", "frequency": 1,
        },
        loss={"_target_": "nequip.train.EnergyForceLoss", "coeffs": even},
        val_metrics={
            "_target_": "nequip.train.EnergyForceMetrics",
            "coeffs": {"per_atom_energy_mae": 1.0, "forces_mae": 1.0},
        },
    )  # fmt: skip
    return fitted(module, [data], length, callbacks, inference_mode=False)


quality = validated("val0_epoch/forces_mae")
