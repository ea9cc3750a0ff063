"""The store under every group of options: named, type-checked values that can be frozen."""

from __future__ import annotations

import copy
from typing import Any, Self


class OptionStore:
    """Values readable as attributes, writable until frozen, each keeping its type."""

    def __init__(self, **values: Any) -> None:
        self._frozen = False
        self._values = values

    def __getattr__(self, name: str) -> Any:
        # Copying asks for attributes before `_values` exists; never recurse into it.
        values = self.__dict__.get("_values", {})
        if name in values:
            return values[name]
        raise AttributeError(
            f"{type(self).__name__} has no option {name!r}, or it was never set; "
            f"set options: {', '.join(values) or 'none'}"
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or name in _PROPERTY_NAMES:
            super().__setattr__(name, value)
        else:
            self.set(**{name: value})

    def __call__(self, name: str) -> Any:
        """Return the value stored under `name`."""
        return getattr(self, name)

    def exists(self, name: str) -> bool:
        """Return whether `name` has a value."""
        return name in self._values

    def deleteIfExists(self, name: str) -> None:
        """Forget the value of `name`, if there is one."""
        self.checkIsFrozen()
        self._values.pop(name, None)

    def set(self, **values: Any) -> Self:
        """Change existing values; each must be an instance of the current value's type."""
        self.checkIsFrozen()
        for name, value in values.items():
            if name not in self._values:
                raise AssertionError(
                    f"Unknown option {name!r} of {type(self).__name__}; "
                    f"known: {', '.join(self._values)}"
                )
            expected = type(self._values[name])
            require(isinstance(value, expected), f"Unexpected type for {name}", value, expected)
            self._values[name] = value
        return self

    def createOrSet(self, **values: Any) -> Self:
        """Store values whether or not they existed; existing ones keep their type."""
        self.checkIsFrozen()
        for name, value in values.items():
            if name in self._values:
                self.set(**{name: value})
            else:
                self._values[name] = value
        return self

    def checkIsFrozen(self) -> None:
        """Raise if a program or loader already uses these options."""
        if self._frozen:
            raise AttributeError(
                "Can't modify frozen Options: a DataLoader or model already uses them. "
                "Set everything first, or change a clone() and build from that"
            )

    def freeze(self) -> None:
        """Refuse every later change."""
        self._frozen = True

    def toDict(self) -> dict[str, Any]:
        """Return a copy of the stored values."""
        return dict(self._values)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return an independent copy that may be changed, whatever the state of this one."""
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        for name, value in self.__dict__.items():
            twin.__dict__[name] = copy.deepcopy(value, memo)
        twin.__dict__["_frozen"] = False
        return twin

    def __repr__(self) -> str:
        entries = ", ".join(f"{name}={value!r}" for name, value in self._values.items())
        return f"{type(self).__name__.strip('_')}({entries})"


# Groups of `Options` are attributes, not values.
_PROPERTY_NAMES = frozenset({"Distributed", "Jit", "Precision", "TensorLocations", "Training"})


def require(condition: bool, what: str, got: Any, expected: Any) -> None:
    """Raise the AssertionError that PopTorch programs expect for a wrong argument."""
    if not condition:
        if isinstance(expected, type):
            expected = expected.__name__
        raise AssertionError(f"{what}: expected {expected}, got {got!r}")
