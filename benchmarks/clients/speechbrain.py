"""speechbrain: speakers told apart by x-vectors of artificial voices, in the loop of a Brain."""

from typing import Any

import torch
from torch import Tensor

from benchmarks.clients import About, Callbacks, engine_for
from benchmarks.clients.kept import Steps

SPEAKERS = 40
VOICES = 3200
RATE = 16_000


def data(seed: int) -> Any:
    draw = torch.Generator().manual_seed(seed)
    speakers = torch.randint(SPEAKERS, (VOICES + 640,), generator=draw)
    sounds = torch.cat([voices(part, draw) for part in speakers.split(160)])
    sets = (torch.utils.data.TensorDataset(sounds[k], speakers[k])
            for k in (slice(VOICES), slice(VOICES, None)))  # fmt: skip
    return tuple(sets)


def train(data: Any, length: int, callbacks: Callbacks) -> Any:
    from speechbrain.nnet.schedulers import LinearScheduler

    steps = length * (VOICES // 16)
    found = brain(LinearScheduler(1e-3, 1e-4, length), *callbacks, steps=steps)
    found.fit(range(1, length + 1), *data, progressbar=False,
              train_loader_kwargs={"batch_size": 16, "shuffle": True},
              valid_loader_kwargs={"batch_size": 64})  # fmt: skip
    return found


def quality(trained: Any, data: Any) -> float:
    return float(trained.valid_loss)


def voices(speakers: Tensor, draw: torch.Generator, noise: float = 1.0) -> Tensor:
    """Return half a second of noisy voice, [n, 8000], for each speaker, [n]."""
    own = torch.rand(SPEAKERS, 4, generator=torch.Generator().manual_seed(0))[speakers]
    random = torch.rand(len(speakers), 4, generator=draw)
    base = 90 + 130 * own[:, :1] + 15 * random[:, :1]
    formants = torch.tensor([500.0, 1500, 2500]) * (0.8 + 0.4 * own[:, 1:] + 0.1 * random[:, 1:])
    tones = base * torch.arange(1, 21)
    loud = (-(((tones[:, :, None] - formants[:, None]) / 200) ** 2)).exp().sum(-1) + 0.05
    time = torch.arange(RATE // 2) / RATE
    waves = torch.sin(2 * torch.pi * tones[..., None] * time)
    sound = torch.einsum("nh,nht->nt", loud, waves)
    return sound + noise * torch.randn(sound.shape, generator=draw)


def brain(scheduler: Any, *callbacks: Any, steps: int) -> Any:
    """Return a Brain as in speechbrain's template, with the plug-in if a callback is given."""
    import speechbrain as sb
    from speechbrain.lobes.features import Fbank
    from speechbrain.lobes.models.Xvector import Classifier, Xvector
    from speechbrain.processing.features import InputNormalization

    class Speakers(sb.Brain):
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

    class Hybrid(Speakers):
        def on_fit_start(self) -> None:
            super().on_fit_start()
            engine = engine_for(callbacks[0], self.modules, self.optimizer, steps)
            self.steps = Steps(engine)

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
    return (Hybrid if callbacks else Speakers)(modules, lambda p: torch.optim.Adam(p, lr=1e-3))


ABOUT = About(
    trains=f"`Xvector` of width 64, {VOICES} artificial voices of {SPEAKERS} speakers, Adam",
    metric="validation loss (cross entropy)",
    length=6,
)
