"""The version of the original whose names these are, with Torchkiln's own behind the plus.

Not taken from `poptorch`, which a program with `popdist` alone does not load.
"""

from torchkiln import __version__ as _torchkiln_version

__version__ = f"3.4.0+torchkiln.{_torchkiln_version}"
