"""Which molecules are for training, validation and test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchkiln.core import OptionsError, StoreError, parse_json, read_npz, read_text

# Twenty million indices; what is larger is not a split.
_MAX_JSON_BYTES = 200_000_000
SPLITS = ("train", "validation", "test")
# The split of the SchNet papers on QM9; what is left is for the test.
_SCHNET = (110_000, 10_000)
_FORMS = (
    "'80/10/10', 'schnet', three shares that add up to 1 or 100, three counts, or a file "
    "(.npz or .json with train, validation and test)"
)
# How files name the parts: ours, PyG's and SchNetPack's.
_ALIASES = {
    "train": ("train", "train_idx"),
    "validation": ("validation", "val", "valid", "val_idx"),
    "test": ("test", "test_idx"),
}
# Beside the seed, so that choosing molecules and splitting them do not use the same numbers.
_STREAM_SPLIT, _STREAM_LIMIT = 1, 2

Indices = dict[str, NDArray[np.int64]]
Splits = str | Path | Sequence[float] | Mapping[str, Any]


def split_indices(num_molecules: int, splits: Splits = "80/10/10", *, seed: int = 0) -> Indices:
    """Return disjoint sorted indices by the names "train", "validation" and "test".

    The same arguments give the same split. Shares use every molecule, and no part is empty as long
    as there are three molecules. Counts may leave molecules over, which are then not used.

    Args:
        num_molecules: How many there are.
        splits: "80/10/10" or other shares; "schnet" for 110,000, 10,000 and the rest; three counts;
            a file (.npz, .json) with lists of indices, or such a mapping, taken as it is.
        seed: Of the random order.

    Raises:
        OptionsError: if the split makes no sense or needs more molecules than there are.
        StoreError: if a file is damaged or its indices do not fit.
    """
    if isinstance(splits, Mapping):
        return _checked(splits, num_molecules, "the split")
    if isinstance(splits, Path) or (isinstance(splits, str) and names_molecules(splits)):
        return _read_split(Path(splits), num_molecules)
    counts = _counts(splits, num_molecules)
    order = _generator(seed, _STREAM_SPLIT).permutation(num_molecules)
    ends = np.cumsum(counts)
    return {
        name: np.sort(order[end - count : end])
        for name, count, end in zip(SPLITS, counts, ends, strict=True)
    }


def choose_some(num_molecules: int, limit: int | None, *, seed: int = 0) -> NDArray[np.int64]:
    """Return the sorted indices of `limit` random molecules, or of all if there are fewer.

    Not the first ones: those of QM9 are the smallest.
    """
    if limit is not None and (isinstance(limit, bool) or limit < 1):
        raise OptionsError(f"limit must be a number of molecules, at least 1; got {limit!r}")
    if limit is None or limit >= num_molecules:
        return np.arange(num_molecules)
    order = _generator(seed, _STREAM_LIMIT).permutation(num_molecules)
    return np.sort(order[:limit])


def restrict(splits: Indices, chosen: NDArray[np.int64]) -> Indices:
    """Return what `splits` says about the `chosen` molecules (sorted), counted among these."""
    kept = {name: np.flatnonzero(np.isin(chosen, indices)) for name, indices in splits.items()}
    if not len(kept["train"]):
        raise OptionsError(
            f"none of the {len(chosen)} molecules that are left is for training; raise limit"
        )
    return kept


def _generator(seed: int, stream: int) -> np.random.Generator:
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise OptionsError(f"seed must be a whole number from 0 on, got {seed!r}")
    return np.random.default_rng((seed, stream))


def names_molecules(splits: Splits) -> bool:
    """Tell whether a split names single molecules, as a file does, instead of sizes."""
    if isinstance(splits, str):
        return splits.endswith((".npz", ".json"))
    return isinstance(splits, Path | Mapping)


def _counts(splits: str | Sequence[float], num_molecules: int) -> tuple[int, int, int]:
    if num_molecules < 1:
        raise OptionsError("there are no molecules to split")
    if splits == "schnet":
        used = sum(_SCHNET)
        if num_molecules <= used:
            raise OptionsError(
                f"the split 'schnet' takes {_SCHNET[0]:,} molecules for training and "
                f"{_SCHNET[1]:,} for validation, but there are {num_molecules:,}; use shares such "
                "as '80/10/10', or all of QM9 without a limit"
            )
        return (*_SCHNET, num_molecules - used)
    numbers = _numbers(splits)
    total = sum(numbers)
    if np.isclose(total, 1.0) or np.isclose(total, 100.0):
        shares = [number / total for number in numbers]
        # The rest is for training; nothing is lost by rounding.
        held = [_share(share, num_molecules) for share in shares[1:]]
        train = num_molecules - sum(held)
        if train < 1:
            raise OptionsError(f"{num_molecules} molecules are too few for the split {splits!r}")
        return train, held[0], held[1]
    if any(number != int(number) for number in numbers):
        raise OptionsError(f"shares {splits!r} add up to {total:g} instead of 1 or 100")
    if total > num_molecules:
        raise OptionsError(
            f"the split {splits!r} takes {int(total):,} molecules, but there are "
            f"{num_molecules:,}; use shares such as '80/10/10'"
        )
    train, validation, test = map(int, numbers)
    return train, validation, test


def _share(share: float, num_molecules: int) -> int:
    if not share:
        return 0
    # 1e-9: 10 % of 130 must not become 12 by rounding of the share.
    return max(int(share * num_molecules + 1e-9), 1 if num_molecules >= len(SPLITS) else 0)


def _numbers(splits: str | Sequence[float]) -> list[float]:
    try:
        parts = splits.replace(",", "/").split("/") if isinstance(splits, str) else list(splits)
        numbers = [float(part) for part in parts]
    except (TypeError, ValueError, OverflowError):
        raise OptionsError(f"cannot read the split {splits!r}; wanted is {_FORMS}") from None
    if len(numbers) != len(SPLITS) or not all(0 <= n < np.inf for n in numbers) or not numbers[0]:
        raise OptionsError(f"cannot use the split {splits!r}; wanted is {_FORMS}")
    return numbers


def _read_split(path: Path, num_molecules: int) -> Indices:
    if not path.is_file():
        raise OptionsError(f"there is no file {path}; a split is {_FORMS}")
    try:
        if path.suffix == ".json":
            content: Any = parse_json(read_text(path, max_bytes=_MAX_JSON_BYTES), path.name)
        else:
            content = read_npz(path, "it")
    except StoreError as error:
        raise StoreError(f"{path} is no split: {error}; wanted is {_FORMS}") from error
    if not isinstance(content, Mapping):
        raise StoreError(f"{path} holds no lists of indices by name; wanted is {_FORMS}")
    return _checked(content, num_molecules, str(path))


def _checked(content: Mapping[str, Any], num_molecules: int, where: str) -> Indices:
    result: Indices = {}
    for name in SPLITS:
        found = next((content[alias] for alias in _ALIASES[name] if alias in content), None)
        if found is None:
            raise StoreError(
                f"{where} has no {name!r} (it has {', '.join(map(repr, content))}); give a list of "
                "indices, empty if there are none"
            )
        try:
            indices = np.asarray(found)
        except ValueError:  # rows of different lengths
            indices = np.zeros((1, 1), dtype=object)
        if indices.size == 0:
            indices = np.zeros(0, dtype=np.int64)
        if indices.ndim != 1 or indices.dtype.kind not in "iu":
            raise StoreError(
                f"{name!r} of {where} is {indices.dtype} {list(indices.shape)}, not a list of "
                "indices"
            )
        if len(indices) and not 0 <= indices.min() <= indices.max() < num_molecules:
            wrong = indices[(indices < 0) | (indices >= num_molecules)][0]
            raise StoreError(
                f"{name!r} of {where} names molecule {wrong} of {num_molecules:,} (counted from 0)"
            )
        result[name] = np.sort(indices.astype(np.int64))
    every = np.concatenate(list(result.values()))
    values, counts = np.unique(every, return_counts=True)
    if len(values) < len(every):
        raise StoreError(f"{where} has molecule {values[counts > 1][0]} more than once")
    if not len(result["train"]):
        raise StoreError(f"{where} has no molecules for training")
    return result
