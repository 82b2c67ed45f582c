"""recbole: the next film of a user, in the package's own Trainer."""

from tempfile import TemporaryDirectory
from typing import Any

from recbole.config import Config
from recbole.data import create_dataset, data_preparation
from recbole.model.sequential_recommender import SASRec
from recbole.trainer import Trainer

from benchmarks.clients import Callbacks
from benchmarks.clients.kept import Steps


def data(seed: int) -> Any:
    own = {"MAX_ITEM_LIST_LENGTH": 20, "user_inter_num_interval": "[20,60]", "seed": seed,
           "train_batch_size": 256, "train_neg_sample_args": None}  # fmt: skip
    config = Config(model="SASRec", dataset="ml-100k", config_dict=own)
    parts = data_preparation(config, create_dataset(config))
    return config, *parts[:2]


def train(data: Any, length: int, callbacks: Callbacks) -> Any:
    class Hybrid(Trainer):
        def _train_epoch(self, train_data: Any, epoch_idx: int, *rest: Any, **options: Any) -> Any:
            def loss(batch: Any) -> Any:
                return self.kept.see(self.model.calculate_loss(batch))

            return super()._train_epoch(self.kept.over(train_data), epoch_idx, loss)

    config, train, _ = data
    with TemporaryDirectory() as folder:
        config["epochs"] = length
        config["checkpoint_dir"] = folder
        model = SASRec(config, train.dataset)
        trainer = Hybrid(config, model)
        trainer.kept = Steps(callbacks, model, trainer.optimizer, length * len(train))
        trainer.fit(train, saved=False)
    return trainer


def quality(trained: Any, data: Any) -> float:
    return float(trained.evaluate(data[2], load_best_model=False)["mrr@10"])
