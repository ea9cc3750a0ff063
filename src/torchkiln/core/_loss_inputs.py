"""What the recorded graph of a training step tells about the way from its batch to its loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class LossInputs:
    """On which tensors of a call the loss depends, and how; they are numbered as in the call.

    Attributes:
        reaching: The loss depends on these.
        uncut: On these it depends in a way that leaves out no last rows, as `x[:-1]` does.
        compared: From nothing but one of these a comparison is made that the loss depends on.
        ignored: Labels of a loss function, each with the class that this function ignores.
        functions: Names of the loss functions of torch that forward calls.
    """

    reaching: frozenset[int]
    uncut: frozenset[int] = frozenset()
    compared: frozenset[int] = frozenset()
    ignored: tuple[tuple[int, int], ...] = ()
    functions: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "reaching": sorted(self.reaching),
            "uncut": sorted(self.uncut),
            "compared": sorted(self.compared),
            "ignored": [list(pair) for pair in self.ignored],
            "functions": list(self.functions),
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> LossInputs:
        return cls(
            frozenset(values["reaching"]),
            frozenset(values["uncut"]),
            frozenset(values["compared"]),
            tuple((number, label) for number, label in values["ignored"]),
            tuple(values["functions"]),
        )


# Called with the name of each tensor of the first call of a training program, the tensors, and
# what the loss makes of them; returns what the user should be warned of.
LossReview = Callable[[Sequence[str], Sequence[Any], LossInputs], str | None]

_reviews: list[LossReview] = []


def add_loss_review(review: LossReview) -> Callable[[], None]:
    """Let `review` look at every training program that is built; returns what takes it off again.

    The runtime knows nothing of graph libraries, and they know nothing of the runtime: they meet
    here. Programs that come from a cache are looked at, too.
    """
    _reviews.append(review)
    return lambda: _reviews.remove(review)


def review_loss(names: Sequence[str], tensors: Sequence[Any], told: LossInputs) -> list[str]:
    """Return what all reviews say of a program."""
    said = [review(names, tensors, told) for review in _reviews]
    return [text for text in said if text is not None]
