"""PopTorch Geometric's names on Torchkiln; the loaders and layers arrive with the next release."""

from torchkiln import __version__

__all__ = ["__version__"]
