"""Which graphs share a fixed-size batch, planned from their sizes alone. No torch here."""

from torchkiln.packing._algorithms import ALGORITHMS
from torchkiln.packing._giants import split_giants
from torchkiln.packing._pack import pack
from torchkiln.packing._plan import PackPlan
from torchkiln.packing._slots import choose_slots

__all__ = ["ALGORITHMS", "PackPlan", "choose_slots", "pack", "split_giants"]
