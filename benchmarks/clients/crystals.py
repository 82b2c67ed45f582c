"""Crystals with the energies and forces of ASE's effective medium theory."""

from typing import Any

import numpy as np
from ase.build import bulk
from ase.calculators.emt import EMT

METALS = ("Al", "Cu", "Ag", "Au", "Ni", "Pd", "Pt")


def crystals(seed: int, count: int, symbols: tuple[str, ...] = METALS) -> list[Any]:
    """Return cubic cells of four atoms, of random elements, rattled and strained."""
    random = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        crystal = bulk("Cu", a=random.uniform(3.7, 4.3), cubic=True)
        crystal.symbols = random.choice(symbols, len(crystal))
        crystal.positions += random.normal(0, 0.1, crystal.positions.shape)
        crystal.calc = EMT()
        crystal.get_forces()
        made.append(crystal)
    return made
