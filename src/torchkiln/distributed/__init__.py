"""Several processes that train one model: who they are, and what they tell each other.

Asking for the world is cheap; what needs torch is imported when it is first used.
"""

from typing import TYPE_CHECKING

from torchkiln.core._lazy_names import lazy_names
from torchkiln.distributed._start import current, start
from torchkiln.distributed._world import World

if TYPE_CHECKING:
    from torchkiln.distributed._group import Group as Group
    from torchkiln.distributed._group import group_of as group_of

_GROUP = "torchkiln.distributed._group"
__getattr__ = lazy_names(__name__, {"Group": _GROUP, "group_of": _GROUP})

__all__ = ["Group", "World", "current", "group_of", "start"]
