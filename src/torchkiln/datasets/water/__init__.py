"""Water clusters: the HydroNet release, or minima of q-TIP4P/F that are generated here."""

from torchkiln.datasets.water._generate import generate_minima
from torchkiln.datasets.water._load import load_water, water_molecules
from torchkiln.datasets.water._potential import Q_TIP4P_F, WaterModel, water_energy, water_forces
from torchkiln.datasets.water._prepare import prepare_water
from torchkiln.datasets.water._relax import Relaxed, relax_cluster
from torchkiln.datasets.water._subsets import SUBSETS

__all__ = [
    "Q_TIP4P_F",
    "Relaxed",
    "SUBSETS",
    "WaterModel",
    "generate_minima",
    "load_water",
    "prepare_water",
    "relax_cluster",
    "water_energy",
    "water_forces",
    "water_molecules",
]
