"""pykeen: a convolutional model of a knowledge graph, in a training loop of its own."""

from typing import Any

from pykeen.datasets import Kinships
from pykeen.pipeline import pipeline
from pykeen.training import LCWATrainingLoop
from torch import Tensor

from benchmarks.clients import Callbacks
from benchmarks.clients.kept import Steps


def data(seed: int) -> Any:
    return Kinships(create_inverse_triples=True), seed


def train(data: Any, length: int, callbacks: Callbacks) -> Any:
    class Hybrid(LCWATrainingLoop):
        kept: Steps | None = None

        def _train_epoch(self, batches: Any, **options: Any) -> float:
            if not options["only_size_probing"]:  # which comes first, with another optimizer
                if self.kept is None:
                    steps = length * len(batches)
                    self.kept = Steps(callbacks, self.model, self.optimizer, steps)
                batches = self.kept.over(batches)
            return float(super()._train_epoch(batches=batches, **options))

        def _process_batch(self, *batch: Any, **options: Any) -> Tensor:
            loss: Tensor = super()._process_batch(*batch, **options)
            return loss if self.kept is None else self.kept.see(loss)

    graph, seed = data
    return pipeline(
        dataset=graph,
        model="ConvE",
        training_loop=Hybrid,
        training_kwargs={"num_epochs": length, "batch_size": 256, "use_tqdm": False},
        evaluation_kwargs={"use_tqdm": False},
        evaluation_fallback=False,
        use_testing_data=False,
        random_seed=seed,
        device="cpu",
    )


def quality(trained: Any, data: Any) -> float:
    return float(trained.metric_results.get_metric("mean_reciprocal_rank"))
