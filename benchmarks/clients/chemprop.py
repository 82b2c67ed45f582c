"""chemprop: a message-passing network on molecules."""

from pathlib import Path
from typing import Any

import chemprop.data as cp
import numpy as np
from chemprop import models, nn
from rdkit import Chem, RDConfig
from rdkit.Chem.Crippen import MolLogP

from benchmarks.clients import Callbacks, fitted, validated

MOLECULES = 250


def data(seed: int) -> Any:
    lines = (Path(RDConfig.RDDataDir) / "NCI" / "first_5K.smi").read_text().splitlines()
    texts = [line.split()[0] for line in lines[: 2 * MOLECULES]]
    known = [(t, m) for t in texts if (m := Chem.MolFromSmiles(t)) and m.GetNumBonds() > 1]
    points = [cp.MoleculeDatapoint.from_smi(t, [MolLogP(m)]) for t, m in known[:MOLECULES]]
    mixed = np.random.default_rng(seed).permutation(len(points))
    cut = len(points) * 4 // 5
    train, val = (cp.MoleculeDataset([points[k] for k in o]) for o in np.split(mixed, [cut]))
    scaler = train.normalize_targets()
    val.normalize_targets(scaler)
    train.cache = val.cache = True
    return cp.build_dataloader(train, seed=seed), cp.build_dataloader(val, shuffle=False)


def train(data: Any, length: int, callbacks: Callbacks) -> Any:
    model = models.MPNN(nn.BondMessagePassing(), nn.MeanAggregation(), nn.RegressionFFN())
    return fitted(model, data, length, callbacks)


quality = validated("val_loss", 1)
