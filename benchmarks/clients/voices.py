"""Artificial voices, for the clients of sound."""

import torch
from torch import Tensor

SPEAKERS = 40
RATE = 16_000


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
