"""Events of a neutrino detector: CosmicTagger's larcv3 files, or generated ones like them."""

from torchkiln.datasets.cosmic._event import (
    BACKGROUND,
    COSMIC,
    NEUTRINO,
    NUM_PLANES,
    NUM_TICKS,
    NUM_WIRES,
    CosmicEvent,
)
from torchkiln.datasets.cosmic._generate import generate_event
from torchkiln.datasets.cosmic._images import CosmicImages, GeneratedEvents, load_cosmic
from torchkiln.datasets.cosmic._larcv3 import Larcv3Events
from torchkiln.datasets.cosmic._write import write_larcv3

__all__ = [
    "BACKGROUND",
    "COSMIC",
    "NEUTRINO",
    "NUM_PLANES",
    "NUM_TICKS",
    "NUM_WIRES",
    "CosmicEvent",
    "CosmicImages",
    "GeneratedEvents",
    "Larcv3Events",
    "generate_event",
    "load_cosmic",
    "write_larcv3",
]
