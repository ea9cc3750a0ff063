"""The version of the original whose surface this is, with Torchkiln's own behind the plus."""

from torchkiln import __version__ as _torchkiln_version

__version__ = f"3.4.0+torchkiln.{_torchkiln_version}"
