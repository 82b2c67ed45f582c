"""Crystals with the energies and forces of ASE's effective medium theory."""

from typing import Any

import numpy as np
from ase.build import bulk
from ase.calculators.emt import EMT

METALS = ("Al", "Cu", "Ag", "Au", "Ni", "Pd", "Pt")


def rattled(crystal: Any, random: np.random.Generator) -> Any:
    """Return a crystal with its atoms displaced by a tenth of an Å, and with its forces."""
    crystal.positions += random.normal(0, 0.1, crystal.positions.shape)
    crystal.calc = EMT()
    crystal.get_forces()
    return crystal


def crystals(seed: int, count: int) -> list[Any]:
    """Return cubic cells of four atoms, of random elements, strained and rattled."""
    random = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        crystal = bulk("Cu", a=random.uniform(3.7, 4.3), cubic=True)
        crystal.symbols = random.choice(METALS, len(crystal))
        made.append(rattled(crystal, random))
    return made
