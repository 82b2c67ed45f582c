"""speechbrain: speakers told apart by x-vectors of artificial voices, in the loop of a Brain."""

from typing import Any

import speechbrain as sb
import torch
from speechbrain.lobes.features import Fbank
from speechbrain.lobes.models.Xvector import Classifier, Xvector
from speechbrain.nnet.schedulers import LinearScheduler
from speechbrain.processing.features import InputNormalization

from benchmarks.clients import Callbacks
from benchmarks.clients.kept import Steps
from benchmarks.clients.voices import SPEAKERS, voices

VOICES = 3200


def data(seed: int) -> Any:
    draw = torch.Generator().manual_seed(seed)
    speakers = torch.randint(SPEAKERS, (VOICES + 640,), generator=draw)
    sounds = torch.cat([voices(part, draw) for part in speakers.split(160)])
    pairs = torch.utils.data.TensorDataset
    return pairs(sounds[:VOICES], speakers[:VOICES]), pairs(sounds[VOICES:], speakers[VOICES:])


def train(data: Any, length: int, callbacks: Callbacks) -> Any:
    scheduler = LinearScheduler(1e-3, 1e-4, length)

    class Speakers(sb.Brain):
        """A Brain as in speechbrain's template."""

        def compute_forward(self, batch: Any, stage: Any) -> Any:
            lengths = torch.ones(len(batch[0]))
            features = self.modules.norm(self.modules.fbank(batch[0]), lengths)
            return self.modules.classifier(self.modules.vectors(features))

        def compute_objectives(self, predictions: Any, batch: Any, stage: Any) -> Any:
            return sb.nnet.losses.nll_loss(predictions, batch[1][:, None])

        def on_stage_end(self, stage: Any, loss: Any, epoch: int | None = None) -> None:
            if stage == sb.Stage.VALID:
                self.valid_loss = loss
                sb.nnet.schedulers.update_learning_rate(self.optimizer, scheduler(epoch)[1])

        def on_fit_start(self) -> None:
            super().on_fit_start()
            steps = length * (VOICES // 16)
            self.steps = Steps(callbacks, self.modules, self.optimizer, steps)

        def fit_batch(self, batch: Any) -> Any:
            if self.steps.begin():
                return super().fit_batch(batch)
            return torch.tensor(self.avg_train_loss)  # which this leaves as it is

        def on_fit_batch_end(self, batch: Any, outputs: Any, loss: Any, should_step: bool) -> None:
            self.steps.end(loss)

    vectors = Xvector(tdnn_channels=[64, 64, 64, 64, 192], lin_neurons=64, in_channels=40)
    classifier = Classifier((None, None, 64), lin_blocks=1, lin_neurons=64, out_neurons=SPEAKERS)
    modules = {"fbank": Fbank(n_mels=40), "norm": InputNormalization(norm_type="sentence"),
               "vectors": vectors, "classifier": classifier}  # fmt: skip
    brain = Speakers(modules, lambda p: torch.optim.Adam(p, lr=1e-3))
    brain.fit(range(1, length + 1), *data, progressbar=False,
              train_loader_kwargs={"batch_size": 16, "shuffle": True},
              valid_loader_kwargs={"batch_size": 64})  # fmt: skip
    return brain


def quality(trained: Any, data: Any) -> float:
    return float(trained.valid_loss)
