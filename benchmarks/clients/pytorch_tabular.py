"""pytorch-tabular: an FT-Transformer on a generated table, with the package's early stopping."""

import tempfile
from typing import Any

from pytorch_tabular import TabularModel
from pytorch_tabular.config import DataConfig, OptimizerConfig, TrainerConfig
from pytorch_tabular.models import FTTransformerConfig
from pytorch_tabular.utils import make_mixed_dataset
from sklearn.model_selection import train_test_split  # type: ignore[import-untyped]

from benchmarks.clients import Callbacks


def data(seed: int) -> Any:
    table, categories, numbers = make_mixed_dataset(
        "classification", 3000, n_features=20, n_categories=4, random_state=seed
    )
    columns = DataConfig(["target"], continuous_cols=numbers, categorical_cols=categories)
    return columns, *train_test_split(table, test_size=0.2, random_state=seed)


def train(data: Any, length: int, callbacks: Callbacks) -> Any:
    columns, table, held = data
    with tempfile.TemporaryDirectory() as folder:
        trainer = TrainerConfig(
            batch_size=64, max_epochs=length, accelerator="cpu", progress_bar="none",
            checkpoints_path=folder, trainer_kwargs={"enable_model_summary": False},
        )  # fmt: skip
        model = TabularModel(
            data_config=columns,
            model_config=FTTransformerConfig(task="classification"),
            optimizer_config=OptimizerConfig(),
            trainer_config=trainer,
            verbose=False,
        )
        model.fit(table, held, callbacks=list(callbacks))
    return model


def quality(trained: Any, data: Any) -> float:
    return float(trained.evaluate(data[2], verbose=False)[0]["test_loss"])
