"""The version of Torchkiln, in the room that every other may import."""

__version__ = "0.1.0"
