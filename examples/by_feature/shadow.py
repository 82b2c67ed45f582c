"""shadow=True: forecasts are scored, and training stays plain.

Look at: the last line. The weights are those of plain training, bit for bit. The skill shows
whether predicted steps would be taken on this model.

Run with: python examples/by_feature/shadow.py (about 8 seconds on one core)
"""

from __future__ import annotations

import torch
from waves import Waves, train

from hybrid_predict import HybridPredict


def main() -> tuple[HybridPredict, bool]:
    callback = HybridPredict(shadow=True)
    torch.manual_seed(0)
    plain, watched = Waves(), Waves()
    watched.load_state_dict(plain.state_dict())
    train(model=plain)
    train(callback, model=watched)
    pairs = zip(plain.parameters(), watched.parameters(), strict=True)
    same = all(torch.equal(a, b) for a, b in pairs)
    print(f"skill {callback.ledger.skill:.2f}; weights identical to plain training: {same}")
    return callback, same


if __name__ == "__main__":
    main()
