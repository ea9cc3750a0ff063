"""In what the values of several processes differ, in a few words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torchkiln.core._choices import shown

# Beyond, a list of differences helps nobody.
_MOST_NAMES = 3
_ABSENT = object()


def differences(values: Sequence[Any]) -> str:
    """Return "2 on rank 0, 3 on rank 1", for mappings by name.

    Args:
        values: By rank; not all equal.
    """
    if not all(isinstance(value, Mapping) for value in values):
        return _by_rank(values)
    names = [
        name
        for name in dict.fromkeys(name for value in values for name in value)
        if any(value.get(name, _ABSENT) != values[0].get(name, _ABSENT) for value in values)
    ]
    texts = [
        f"{name} is {_by_rank([value.get(name, _ABSENT) for value in values])}"
        for name in names[:_MOST_NAMES]
    ]
    if len(names) > _MOST_NAMES:
        texts.append(f"and {len(names) - _MOST_NAMES} more")
    return "; ".join(texts)


def _by_rank(values: Sequence[Any]) -> str:
    """Return each value with the ranks that have it."""
    ranks: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault("nothing" if value is _ABSENT else shown(value), []).append(rank)
    if len(ranks) == 1:
        return f"{next(iter(ranks))}, in a part that is not shown here"
    return ", ".join(f"{text} on {_ranks(having)}" for text, having in ranks.items())


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
