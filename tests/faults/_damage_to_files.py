"""Bits flipped and ends cut off, and what a reader may make of such a file."""

from __future__ import annotations

import dataclasses
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _in_child import harms, ran_out_of_memory

from torchkiln.core import TorchkilnError


def never(_value: Any, _told: list[str]) -> bool:
    """Return that another value than the right one is harm: there is nothing to fall back on."""
    return False


@dataclass
class Kept:
    """Something that was written, and how it is read back.

    Attributes:
        folder: Everything in it is put back after each damage.
        files: What is damaged, one at a time.
        read: Reads everything that counts.
        falls_back: Whether another value is fine, given the warnings that came with it.
        errors: What a reader may raise; the message has to name the file.
        names: What else may stand for the name of a file in messages.
    """

    folder: Path
    files: list[Path]
    read: Callable[[], Any]
    falls_back: Callable[[Any, list[str]], bool] = never
    errors: tuple[type[Exception], ...] = (TorchkilnError,)
    names: tuple[str, ...] = field(default=())


def damages(length: int, count: int) -> list[tuple[str, int]]:
    """Return `count` bits to flip and `count` lengths to cut to, spread over a file."""
    chance = random.Random(length)
    bits = _spread(8 * length, count, chance)
    cuts = _spread(length, count, chance)
    return [("flip bit", bit) for bit in bits] + [("cut to", cut) for cut in cuts]


def _spread(length: int, count: int, chance: random.Random) -> list[int]:
    """Return numbers below `length`: one in each of `count` parts, the first and the last."""
    if length <= count:
        return list(range(length))
    places = {0, length - 1}
    for part in range(count):
        places.add(chance.randrange(part * length // count, (part + 1) * length // count))
    return sorted(places)


def apply(damage: tuple[str, int], content: bytes) -> bytes:
    kind, place = damage
    if kind == "cut to":
        return content[:place]
    changed = bytearray(content)
    changed[place // 8] ^= 1 << place % 8
    return bytes(changed)


def harms_of_damage(kept: Kept, path: Path, count: int) -> tuple[list[str], int]:
    """Damage a file again and again; return what came of it that is harm, and how often it was."""
    originals = {one: one.read_bytes() for one in kept.folder.rglob("*") if one.is_file()}
    content = originals[path]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = kept.read()
    cases = damages(len(content), count)

    def attempt(damage: tuple[str, int]) -> str | None:
        path.write_bytes(apply(damage, content))
        try:
            finding = _finding(kept, path, expected)
        finally:
            _put_back(originals)
        return None if finding is None else f"{path.name}, {damage[0]} {damage[1]}: {finding}"

    return harms(cases, attempt), len(cases)


def _finding(kept: Kept, path: Path, expected: Any) -> str | None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            value = kept.read()
        except kept.errors as error:
            if ran_out_of_memory(error):
                return f"it takes too much memory: {error}"
            if any(name in str(error) for name in (path.name, *kept.names)):
                return None
            return f"the error does not name the file: {error}"
    told = [str(warning.message) for warning in caught]
    if same(value, expected) or kept.falls_back(value, told):
        return None
    return f"other values, with the warnings {told}"


def _put_back(originals: dict[Path, bytes]) -> None:
    for path, content in originals.items():
        if not path.is_file() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def same(left: Any, right: Any) -> bool:
    """Compare to the last bit: types, shapes, NaN and all."""
    if isinstance(left, torch.Tensor):
        if not isinstance(right, torch.Tensor) or left.dtype != right.dtype:
            return False
        left, right = (
            tensor.detach()
            .contiguous()
            .reshape(-1)
            .view(torch.uint8)
            .numpy()
            .reshape(*tensor.shape, -1)
            for tensor in (left, right)
        )
    if isinstance(left, np.ndarray):
        return (
            isinstance(right, np.ndarray)
            and (left.dtype, left.shape) == (right.dtype, right.shape)
            and left.tobytes() == right.tobytes()
        )
    if type(left) is not type(right):
        return False
    if dataclasses.is_dataclass(left):
        names = [one.name for one in dataclasses.fields(left)]
        return all(same(getattr(left, name), getattr(right, name)) for name in names)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right) or (left != left and right != right)
