"""`profile.json`: a `GraphProfile` on disk, sealed. docs/profile_format.md describes it."""

from __future__ import annotations

import dataclasses
import functools
import os
import types
import typing
from pathlib import Path
from typing import Any

from torchkiln.core import SealBroken, StoreError, read_sealed, write_sealed
from torchkiln.profiling.graph._values import FORMAT, GraphProfile

PROFILE_NAME = "profile.json"
_AGAIN = "profile the program again"


def save_profile(profile: GraphProfile, folder: Path) -> Path:
    """Write `profile.json` into `folder`, which is made if it is missing, and return its path."""
    path = folder / PROFILE_NAME
    write_sealed(path, {"format": FORMAT, **to_plain(profile)}, indent=None)
    return path


def load_profile(path: str | os.PathLike[str]) -> GraphProfile:
    """Read what `save_profile` wrote.

    Args:
        path: The file, the folder of one program, or a folder that holds the folder of one program.

    Raises:
        StoreError: There is no profile or more than one, it is damaged, or of another format.
    """
    found = find_profiles(Path(path))
    if len(found) > 1:
        names = ", ".join(str(one.parent) for one in found)
        raise StoreError(f"{path} holds {len(found)} profiles; name one of them: {names}")
    return _read(found[0])


def find_profiles(path: Path) -> list[Path]:
    """Return the files of the profiles that a path means: one, or one for each program in it.

    Raises:
        StoreError: There is none.
    """
    if path.is_file():
        return [path]
    if not path.exists():
        raise StoreError(f"there is no {path}; name a folder that holds {PROFILE_NAME}")
    if (path / PROFILE_NAME).is_file():
        return [path / PROFILE_NAME]
    try:
        found = sorted(one for one in path.glob(f"*/{PROFILE_NAME}") if one.is_file())
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({error}); name another folder") from error
    if not found:
        raise StoreError(
            f"{path} holds no {PROFILE_NAME}, and neither do the folders in it; name the folder "
            f"that a profile was written to, or {_AGAIN}"
        )
    return found


def is_graph_profile(path: Path) -> bool:
    """Whether a path leads to a profile of this kind, be it damaged or not."""
    try:
        return all(one.name == PROFILE_NAME for one in find_profiles(path))
    except StoreError:
        return False


def _read(path: Path) -> GraphProfile:
    try:
        content = read_sealed(path)
    except FileNotFoundError as error:
        raise StoreError(f"there is no {path}; name a folder that holds {PROFILE_NAME}") from error
    except SealBroken as error:
        raise StoreError(
            f"{path} is damaged, or no profile of a program ({error}); {_AGAIN}"
        ) from error
    version = content.pop("format", None)
    if version != FORMAT:
        raise StoreError(
            f"{path} has format {version!r}, this Torchkiln reads format {FORMAT}; read it with "
            f"the version that wrote it{_writer(content)}, or {_AGAIN}"
        )
    try:
        profile = _to_value(content, GraphProfile)
        _check_places(profile)
    except (TypeError, ValueError) as error:
        raise StoreError(f"{path} is damaged: {error}; {_AGAIN}") from error
    return typing.cast(GraphProfile, profile)


def _writer(content: dict[str, Any]) -> str:
    versions = content.get("versions")
    known = versions.get("torchkiln") if isinstance(versions, dict) else None
    return f" (torchkiln {known})" if known else ""


def to_plain(value: Any) -> Any:
    """Return a value of a profile as JSON has it: dataclasses are objects, tuples are lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: to_plain(getattr(value, name)) for name in _fields_of(type(value))}
    if isinstance(value, tuple | list):
        return [to_plain(entry) for entry in value]
    if isinstance(value, dict):
        return {key: to_plain(entry) for key, entry in value.items()}
    return value


@functools.cache
def _fields_of(kind: type) -> dict[str, Any]:
    """Return names and types of the fields of a dataclass."""
    kinds = typing.get_type_hints(kind)
    return {field.name: kinds[field.name] for field in dataclasses.fields(kind)}


def _to_value(plain: Any, kind: Any, place: str = "the profile") -> Any:
    """Return what `to_plain` made of a value of type `kind`; wrong types are a TypeError."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        if plain is None:
            return None
        return _to_value(plain, next(one for one in inner if one is not types.NoneType), place)
    if dataclasses.is_dataclass(kind):
        return _to_dataclass(plain, typing.cast(type, kind), place)
    if origin is tuple:
        _check(plain, list, place)
        return tuple(_to_value(entry, inner[0], place) for entry in plain)
    if origin is dict:
        _check(plain, dict, place)
        return {key: _to_value(entry, inner[1], place) for key, entry in plain.items()}
    if kind is float and type(plain) is int:
        return float(plain)
    _check(plain, kind, place)
    return plain


def _to_dataclass(plain: Any, kind: type, place: str) -> Any:
    _check(plain, dict, place)
    fields = _fields_of(kind)
    if plain.keys() != fields.keys():
        wrong = ", ".join(sorted(plain.keys() ^ fields.keys()))
        raise ValueError(f"{place} lacks or does not know {wrong}")
    return kind(
        **{
            name: _to_value(plain[name], inner, f"{kind.__name__}.{name}")
            for name, inner in fields.items()
        }
    )


def _check(plain: Any, kind: type, place: str) -> None:
    if type(plain) is not kind:
        raise TypeError(f"{place} is {type(plain).__name__} instead of {kind.__name__}")


def _check_places(profile: GraphProfile) -> None:
    """Everything that others refer to by index must be there."""
    if any(call.index != place for place, call in enumerate(profile.calls)):
        raise ValueError("calls are not numbered in their order")
    blocks = profile.liveness.blocks if profile.liveness is not None else ()
    for line in (*(row.line for row in profile.rows), *(block.line for block in blocks)):
        if line is not None and not 0 <= line < len(profile.lines):
            raise ValueError(f"line {line} is named, there are {len(profile.lines)}")
    for row in profile.rows:
        if not 0 <= row.call < len(profile.calls):
            raise ValueError(f"call {row.call} is named, there are {len(profile.calls)}")
    for block in blocks:
        if not 0 <= block.born <= block.last:
            raise ValueError(f"a block lives from call {block.born} to call {block.last}")
