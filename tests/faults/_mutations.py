"""Inputs that nobody would write: valid ones that are changed, and tokens in any order.

All are a function of the seed. Changes of bytes are made by a plain loop, which is a hundred times
as fast as hypothesis; hypothesis makes documents, where structure counts.
"""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

_NUMBER_TEXTS = """0 -1 1 2 3 255 256 65536 2147483648 4294967296 1e308 1e400 -1e308 1e-400 NaN nan
inf -Infinity 1000000000000000000 18446744073709551616 -0 0x10 1_000 +5 1e . 5. 1d3
\u0661 \xb2 \xbd"""
_WORD_TEXTS = """' " \\ , ; : = # * &a *a [ ] { } ( ) null true ~ !!int !!python/name:os.system
!!binary
--- ... | $$$$ V3000 Lattice= Properties= species:S:1:pos:R:3 \xe9 \U0001d7d9 \ud7ff"""
_SPACES = ("", " ", "\t", "\n", "\r", "\r\n", "\0", "\x0b", "\x1c", "\x85", "\u2028", "\ufeff")
_NUMBERS = [*_NUMBER_TEXTS.split(), "9" * 5000]
_WORDS = [*_WORD_TEXTS.split(), *_SPACES, "<<: *a", "? ", "M  END", "A" * 70_000]
_WORDS += ["[" * 5000, "{" * 3000, "(" * 3000, "- " * 3000, '{"a":' * 3000]
_TOKENS = [text.encode("utf-8", "surrogatepass") for text in (*_NUMBERS, *_WORDS)]
_TOKENS += [b"\xff", b"\xfe\xff", b"\xc3", b"\x80\x80", bytes(64), b"PK\x03\x04", b"\x1f\x8b"]
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_PIECES = re.compile(rb"\w+|\s+|[^\w\s]")
# Nothing that has a megabyte by accident tells more than what has a hundred kilobytes.
_MOST_BYTES = 200_000


class Distinct:
    """Inputs of which no two are the same, and which are not too hard to find."""

    def __init__(self, inputs: Iterable[Any]) -> None:
        self.found: list[Any] = []
        self._seen: set[Any] = set()
        self._tried = 0
        for one in inputs:
            self.add(one)

    def add(self, one: Any) -> None:
        self._tried += 1
        assert self._tried < 1000 + 50 * len(self.found), "there are not so many"
        key = identity(one)
        if key not in self._seen:
            self._seen.add(key)
            self.found.append(one)


def identity(one: Any) -> Any:
    """Return what tells an input from others."""
    return one if isinstance(one, bytes | str) else repr(one)


def unchanged(content: bytes) -> bytes:
    return content


def as_words(content: bytes) -> str:
    return content.decode("utf-8", "replace")


def mutations(
    seeds: Sequence[bytes],
    count: int,
    *,
    others: Iterable[Any] = (),
    becomes: Callable[[bytes], Any] = unchanged,
) -> list[Any]:
    """Return `count` different inputs made of valid ones, the valid ones first, then `others`.

    They are different after `becomes` has made of them what is read.
    """
    chance = random.Random(0)
    kept = Distinct([*(becomes(seed) for seed in seeds), *others])
    # Parts of seeds in any order: a grammar without its rules.
    vocabulary = sorted({piece for one in seeds for piece in _PIECES.findall(one[:20_000])})
    while len(kept.found) < count:
        if chance.random() < 0.1:
            content = b"".join(_token(chance, vocabulary) for _ in range(chance.randrange(40)))
        else:
            content = chance.choice(seeds)
            for _ in range(chance.choice((1, 1, 1, 2, 3, 6))):
                content = _changed(content, seeds, chance)
        kept.add(becomes(content[:_MOST_BYTES]))
    return kept.found[:count]


def _token(chance: random.Random, vocabulary: Sequence[bytes]) -> bytes:
    return chance.choice(vocabulary if vocabulary and chance.random() < 0.8 else _TOKENS)


def _changed(content: bytes, seeds: Sequence[bytes], chance: random.Random) -> bytes:
    begin = chance.randrange(len(content) + 1)
    end = min(begin + chance.choice((1, 1, 2, 4, 8, 30, 100)), len(content))
    kind = chance.randrange(9)
    if kind == 0 and content:
        bit = chance.randrange(8 * len(content))
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        return bytes(changed)
    if kind == 1:
        return content[:begin]
    if kind == 2:
        return content[:begin] + content[end:]
    if kind == 3:
        return content[:end] + content[begin:end] * chance.choice((1, 2, 100)) + content[end:]
    if kind == 4:
        return content[:begin] + chance.choice(_TOKENS) + content[begin:]
    if kind == 5:
        return content[:begin] + chance.choice(_TOKENS) + content[end:]
    if kind == 6:
        other = chance.choice(seeds)
        return content[:begin] + other[chance.randrange(len(other) + 1) :]
    numbers = list(_NUMBER.finditer(content)) if kind == 7 else []
    if numbers:
        place = chance.choice(numbers)
        return (
            content[: place.start()]
            + chance.choice(_TOKENS[: len(_NUMBERS)])
            + content[place.end() :]
        )
    lines = content.split(b"\n")
    first, second = (chance.randrange(len(lines)) for _ in range(2))
    lines[first], lines[second] = lines[second], lines[first]
    return b"\n".join(lines)


_ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 10**18, 10**400, 0.5, 1e308, float("nan"), float("inf")),
    *("", "a", "\0", "../../etc/passwd", "/dev/zero", "9" * 5000, "NaN", "é", [], {}, [[]]),
    *([None], {"": None}, [1, "a"], {"a": {"a": {"a": 1}}}, ["a"] * 1000, -0.0, "int64", "float32"),
)


def documents(seeds: Sequence[Any], count: int, *, others: Iterable[Any] = ()) -> list[Any]:
    """Return different JSON documents: valid ones, with odd values, missing and additional keys."""
    chance = random.Random(0)
    kept = Distinct([*seeds, *others])
    while len(kept.found) < count:
        document = json.loads(json.dumps(chance.choice(seeds)))
        for _ in range(chance.choice((1, 1, 2, 4))):
            document = _with_odd_value(document, chance)
        kept.add(document)
    return kept.found[:count]


def _with_odd_value(document: Any, chance: random.Random) -> Any:
    places: list[tuple[Any, Any]] = []
    level = [document] if isinstance(document, dict | list) else []
    while level:
        one = level.pop()
        keys = list(one) if isinstance(one, dict) else range(len(one))
        for key in keys:
            places.append((one, key))
            if isinstance(one[key], dict | list):
                level.append(one[key])
    if not places or chance.random() < 0.02:
        return copy.deepcopy(chance.choice(_ODD_VALUES))
    parent, key = chance.choice(places)
    kind = chance.randrange(6)
    if kind == 0:
        del parent[key]
    elif kind == 1 and isinstance(parent, dict):
        parent[chance.choice(("a", "", "é", f"{key}s", "__class__", "0"))] = parent.pop(key)
    elif kind == 2:
        _, other = chance.choice(places), chance.choice(places)
        parent[key] = json.loads(
            json.dumps(other[0].get(other[1], 1) if isinstance(other[0], dict) else 1)
        )
    else:
        parent[key] = copy.deepcopy(chance.choice(_ODD_VALUES))
    return document


def from_hypothesis(strategy: st.SearchStrategy[Any], count: int) -> list[Any]:
    """Return what hypothesis makes of a strategy; the same each time."""
    found: list[Any] = []

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(value: Any) -> None:
        found.append(value)

    collect()
    return found


def any_values(names: Sequence[str]) -> st.SearchStrategy[Any]:
    """Return a strategy for nested values with these names and others."""
    keys = st.sampled_from([*names, "a", ""]) | st.text(max_size=3)
    leaves = (
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text(max_size=8)
        | st.sampled_from(["auto", "none", "1e5", "inf", "nan", "~", "eager", "float16", "[1"])
    )
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
        max_leaves=6,
    )


def mappings(names: Sequence[str]) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy for mappings of which most keys are known."""
    keys = st.sampled_from(list(names)) | st.text(max_size=4)
    return st.dictionaries(keys, any_values(names), min_size=1, max_size=4)


def as_text(dump: Callable[[Any], str], values: Sequence[Any]) -> list[bytes]:
    return [dump(value).encode("utf-8", "surrogatepass") for value in values]
