"""Generations of a checkpoint as files: which there are, and whether they are whole. No torch here.

Each generation is a safetensors file and a sealed JSON file with its facts and both checksums.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from torchkiln.core import CheckpointError, SealBroken, read_sealed

FORMAT = 2
_OWN_NAME = re.compile(r"checkpoint-(\d{6,})\.(json|safetensors)")
_LENGTH_BYTES = 8  # with which a safetensors file begins: the length of its JSON


class Damaged(Exception):  # noqa: N818 - a finding, caught within this room
    """Why a generation cannot be used."""


class Generation(NamedTuple):
    """A whole generation, verified by its checksums.

    Args:
        number: Which one.
        facts: What was saved beside the tensors.
        content: Of the safetensors file.
        aliases: Tensors that were written once under several names.
    """

    number: int
    facts: dict[str, Any]
    content: bytes
    aliases: dict[str, str]

    def sizes(self) -> dict[str, int]:
        """Return how many numbers each tensor holds, by name; equal ones count once."""
        length = int.from_bytes(self.content[:_LENGTH_BYTES], "little")
        described = json.loads(self.content[_LENGTH_BYTES : _LENGTH_BYTES + length])
        return {
            name: _product(entry["shape"])
            for name, entry in described.items()
            if name != "__metadata__"
        }


def _product(shape: list[int]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size


def header_file(directory: Path, number: int) -> Path:
    return directory / f"checkpoint-{number:06d}.json"


def tensor_file(directory: Path, number: int) -> Path:
    return directory / f"checkpoint-{number:06d}.safetensors"


def own_files(directory: Path) -> dict[int, set[str]]:
    """Return the kinds of files that belong to each generation, by its number."""
    found: dict[int, set[str]] = {}
    if directory.is_dir():
        for path in directory.iterdir():
            match = _OWN_NAME.fullmatch(path.name)
            # Numbers are written with six digits, and more only where they are needed.
            if match and match[1] == f"{int(match[1]):06d}":
                found.setdefault(int(match[1]), set()).add(match[2])
    return found


def list_generations(directory: Path) -> list[int]:
    """Return the numbers of all generations, oldest first.

    Raises:
        CheckpointError: The directory cannot be read.
    """
    try:
        found = own_files(directory)
    except OSError as error:
        raise CheckpointError(
            f"{directory} cannot be read ({error}); look after the disk, or choose another place"
        ) from error
    return sorted(number for number, kinds in found.items() if "json" in kinds)


def read_generation(directory: Path, number: int) -> Generation:
    """Return one generation, read once: what was verified is what is used.

    Raises:
        Damaged: A file is missing, or does not have its checksum.
        CheckpointError: It is of another version.
    """
    header_path, tensor_path = header_file(directory, number), tensor_file(directory, number)
    try:
        header = read_sealed(header_path)
        found = header["format"]
        if found != FORMAT:
            raise _another_format(header_path, found)
        content = tensor_path.read_bytes()
        if header["tensors"]["sha256"] != hashlib.sha256(content).hexdigest():
            raise Damaged(f"{tensor_path.name} does not have its checksum")
        if not isinstance(header["facts"], dict):
            raise TypeError(f"facts are {type(header['facts']).__name__}")
        return Generation(number, header["facts"], content, dict(header["tensors"]["aliases"]))
    except SealBroken as finding:
        if _is_of_format_1(header_path):
            raise _another_format(header_path, 1) from finding
        raise Damaged(str(finding)) from finding
    except FileNotFoundError as error:
        raise Damaged(f"{Path(error.filename).name} is missing") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{type(error).__name__}: {error}") from error


def read_newest(directory: Path) -> Generation:
    """Return the newest generation that is whole; those that are not are passed over silently.

    Raises:
        CheckpointError: There is none, or all are damaged.
    """
    findings: list[str] = []
    for number in reversed(list_generations(directory)):
        try:
            return read_generation(directory, number)
        except Damaged as finding:
            findings.append(f"{header_file(directory, number).name}: {finding}")
    raise nothing_whole(directory, findings)


def nothing_whole(directory: Path, findings: list[str]) -> CheckpointError:
    """Say that nothing can be loaded; `findings` say why, if there is anything at all."""
    if findings:
        return CheckpointError(
            f"every checkpoint in {directory} is damaged: {'; '.join(findings)}; restore the files "
            "from a backup, or train again under another name"
        )
    return CheckpointError(
        f"there is no checkpoint in {directory}; check the name, or save one first"
    )


def _another_format(path: Path, found: object) -> CheckpointError:
    return CheckpointError(
        f"{path} has format {found!r}, this version of Torchkiln reads {FORMAT}; use the version "
        "that wrote it"
    )


def _is_of_format_1(path: Path) -> bool:
    """Whether this is an intact header of the format before seals, not a damaged one of ours."""
    try:
        header = json.loads(path.read_bytes())
        facts = hashlib.sha256(json.dumps(header["facts"]).encode()).hexdigest()
        return bool(header["format"] == 1 and header["facts_sha256"] == facts)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False
