"""Molecules as flat drawings, from plain arrays."""

from torchkiln.drawing._elements import element_colour
from torchkiln.drawing._scene import Ball, Scene, Stick, common_size, make_scene

__all__ = ["Ball", "Scene", "Stick", "common_size", "element_colour", "make_scene"]
