"""scvi-tools: a variational autoencoder of gene counts, with a rising weight of the KL term."""

from typing import Any

import anndata
import numpy as np
import scvi
import torch

from benchmarks.clients import QUIET, Callbacks

CELLS = 420
GENES = 120
PROGRAMS = 6
BATCHES = 2


def data(seed: int) -> Any:
    random = np.random.default_rng(seed)
    use = random.dirichlet(np.full(PROGRAMS, 0.3), CELLS)
    genes = random.gamma(0.5, 1.0, (PROGRAMS, GENES))
    batch = random.integers(BATCHES, size=CELLS)
    shift = np.exp(0.3 * random.normal(size=(BATCHES, GENES)))
    size = random.lognormal(0.0, 0.3, (CELLS, 1))
    mean = 4 * size * (use @ genes) * shift[batch]
    counts = random.poisson(random.gamma(5.0, mean / 5.0)).astype(np.float32)
    cells = anndata.AnnData(counts)
    cells.obs["batch"] = [str(b) for b in batch]
    return cells


def train(data: Any, length: int, callbacks: Callbacks) -> Any:
    scvi.settings.seed = torch.initial_seed() % 2**31  # seed of the split
    scvi.model.SCVI.setup_anndata(data, batch_key="batch")
    model = scvi.model.SCVI(data)
    trainer = {k: v for k, v in QUIET.items() if k != "enable_model_summary"}  # set by the package
    model.train(max_epochs=length, callbacks=list(callbacks), **trainer)
    return model


def quality(trained: Any, data: Any) -> float:
    return float(-trained.get_elbo(indices=trained.validation_indices, return_mean=True))
