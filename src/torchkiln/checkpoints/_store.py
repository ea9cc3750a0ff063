"""`CheckpointStore`: the state of a run on disk, of which one good version always survives."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple, final

from safetensors import SafetensorError
from torch import Tensor

from torchkiln.checkpoints._files import read_tensors, write_tensors
from torchkiln.core import (
    CheckpointError,
    SealBroken,
    atomic_path,
    clean_leftovers_once,
    read_sealed,
    sha256_file,
    warn_user,
    write_sealed,
)

_FORMAT = 2
_OWN_NAME = re.compile(r"checkpoint-(\d{6,})\.(json|safetensors)")
_LOCK = ".lock"

# Directories that this process claims: record locks do not keep a process from itself.
_claimed: set[tuple[int, Path]] = set()
_claiming = threading.Lock()


class Checkpoint(NamedTuple):
    """What was saved."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]


class _Damaged(Exception):  # noqa: N818 - a finding, caught in this file
    """Why a generation cannot be used."""


@final
class CheckpointStore:
    """Generations of one checkpoint in a directory of its own.

    Each is a safetensors file and a JSON file with the facts and the checksums of both; the JSON
    file is written last, so a generation without one does not exist. Files are complete on disk
    before they get their names. The newest generation and the last good one before it are kept;
    files of other names are never touched. Nothing is ever pickled or executed.

    Args:
        directory: Folder of the checkpoint; the first `save` makes it.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        self._known_good: int | None = None  # saved or read by this object

    def exists(self) -> bool:
        """Whether anything was saved here, damaged or not."""
        return bool(self._generations())

    def save(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Path:
        """Write a new generation; return its JSON file.

        Args:
            tensors: By name, on any device, of any dtype but sparse; they may share memory.
            facts: Plain JSON values. Tuples come back as lists, and keys as strings.

        Raises:
            CheckpointError: The disk is full or cannot be written, or `facts` is not JSON. What was
                saved before stays as it was.
        """
        try:
            plain = json.loads(json.dumps(facts))
        except Exception as error:  # objects of the user's may raise anything
            raise CheckpointError(
                f"facts must be plain JSON values to be saved: {error}; put arrays and tensors "
                "into `tensors`"
            ) from error
        generations = self._generations()
        number = max(generations, default=0) + 1
        try:
            header = self._write(number, tensors, plain)
        except (OSError, SafetensorError) as error:
            self._remove(number)
            before = "the last good one is kept" if generations else "there is none before it"
            raise CheckpointError(
                f"the checkpoint could not be written to {self.directory} "
                f"({error.__cause__ or error}), {before}; free some space, or save elsewhere"
            ) from error
        previous = self._last_good(generations)
        self._known_good = number
        self._remove_all_but({number, previous})
        return header

    def load(self) -> Checkpoint:
        """Return the newest good generation, with a warning if a newer one is damaged.

        Raises:
            CheckpointError: There is none, or all are damaged.
        """
        findings: list[str] = []
        for number in reversed(self._generations()):
            try:
                checkpoint = self._read(number)
            except _Damaged as finding:
                findings.append(f"{self._header_file(number).name}: {finding}")
                continue
            if findings:
                warn_user(
                    f"the newest checkpoint in {self.directory} is damaged ({'; '.join(findings)});"
                    " the one before it is used"
                )
            self._known_good = number
            return checkpoint
        if findings:
            raise CheckpointError(
                f"every checkpoint in {self.directory} is damaged: {'; '.join(findings)}; restore "
                "the files from a backup, or train again under another name"
            )
        raise CheckpointError(
            f"there is no checkpoint in {self.directory}; check the name, or save one first"
        )

    @contextlib.contextmanager
    def claim(self) -> Iterator[None]:
        """Keep other processes from writing here; the claim ends with the process at the latest.

        Raises:
            CheckpointError: Another process has it, or nothing can be written there.
        """
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            place = (os.getpid(), self.directory.resolve())
            with _claiming:
                if place in _claimed:
                    raise CheckpointError(
                        f"this process is training the model in {self.directory} already; leave "
                        "that claim first, or choose another name"
                    )
                # Not opened twice: closing a second handle would end the lock of the first.
                file = (self.directory / _LOCK).open("a")
                _claimed.add(place)
        except OSError as error:
            raise CheckpointError(
                f"checkpoints cannot be written to {self.directory}: {error}; choose another place"
            ) from error
        try:
            with file:
                self._lock(file)
                # Now, since who resumes a finished run writes nothing.
                clean_leftovers_once(self.directory)
                self._remove_halves()
                yield
        finally:
            _claimed.discard(place)

    def _lock(self, file: IO[str]) -> None:
        try:
            # A record lock, unlike flock, is not shared with forked loader processes, which
            # may outlive a killed run for a moment.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CheckpointError(
                f"another process is training the model in {self.directory}; wait for it, or "
                "choose another name"
            ) from None

    # -- files ------------------------------------------------------------------------------

    def _header_file(self, number: int) -> Path:
        return self.directory / f"checkpoint-{number:06d}.json"

    def _tensor_file(self, number: int) -> Path:
        return self.directory / f"checkpoint-{number:06d}.safetensors"

    def _own_files(self) -> dict[int, set[str]]:
        """Return the files that this class wrote, by the number of their generation."""
        found: dict[int, set[str]] = {}
        if self.directory.is_dir():
            for path in self.directory.iterdir():
                match = _OWN_NAME.fullmatch(path.name)
                # Numbers are written with six digits, and more only where they are needed.
                if match and match[1] == f"{int(match[1]):06d}":
                    found.setdefault(int(match[1]), set()).add(match[2])
        return found

    def _generations(self) -> list[int]:
        """Return the numbers of all generations, oldest first."""
        try:
            found = self._own_files()
        except OSError as error:
            raise CheckpointError(
                f"{self.directory} cannot be read ({error}); look after the disk, or choose "
                "another place"
            ) from error
        return sorted(number for number, kinds in found.items() if "json" in kinds)

    def _write(self, number: int, tensors: Mapping[str, Tensor], facts: dict[str, Any]) -> Path:
        path = self._tensor_file(number)
        with atomic_path(path) as temporary:
            aliases = write_tensors(temporary, tensors)
            checksum = sha256_file(temporary)
        header = {
            "format": _FORMAT,
            "tensors": {"sha256": checksum, "aliases": aliases},
            "facts": facts,
        }
        write_sealed(self._header_file(number), header)
        _flush_directory(self.directory)
        return self._header_file(number)

    def _read(self, number: int) -> Checkpoint:
        path = self._tensor_file(number)
        try:
            header = read_sealed(self._header_file(number))
            found = header["format"]
            if found != _FORMAT:
                raise _another_format(self._header_file(number), found)
            # Read once: what was verified is what is used, whatever becomes of the file.
            content = path.read_bytes()
            if header["tensors"]["sha256"] != hashlib.sha256(content).hexdigest():
                raise _Damaged(f"{path.name} does not have its checksum")
            tensors = read_tensors(content, header["tensors"]["aliases"])
            if not isinstance(header["facts"], dict):
                raise TypeError(f"facts are {type(header['facts']).__name__}")
            return Checkpoint(tensors, header["facts"])
        except SealBroken as finding:
            if _is_of_format_1(self._header_file(number)):
                raise _another_format(self._header_file(number), 1) from finding
            raise _Damaged(str(finding)) from finding
        except FileNotFoundError as error:
            raise _Damaged(f"{Path(error.filename).name} is missing") from error
        except (
            *(OSError, ValueError, KeyError, TypeError, AttributeError),
            SafetensorError,
        ) as error:
            raise _Damaged(f"{type(error).__name__}: {error}") from error

    def _last_good(self, generations: list[int]) -> int | None:
        """Return the newest of `generations` that could be loaded."""
        for number in reversed(generations):
            if number == self._known_good:
                return number
            try:
                self._read(number)
            except _Damaged:
                continue
            except CheckpointError:
                pass  # of another version, which may want it back
            return number
        return None

    def _remove_all_but(self, kept: set[int | None]) -> None:
        """Remove other generations, and tensors that a killed process left without a header."""
        with contextlib.suppress(OSError):  # another time
            for number in self._own_files():
                if number not in kept:
                    self._remove(number)

    def _remove_halves(self) -> None:
        """Remove tensors whose header a killed process had removed already."""
        with contextlib.suppress(OSError):
            found = self._own_files()
            newest = max((n for n, kinds in found.items() if "json" in kinds), default=0)
            for number, kinds in found.items():
                # Newer ones may belong to a save that goes on; the next save takes their place.
                if "json" not in kinds and number < newest:
                    self._remove(number)

    def _remove(self, number: int) -> None:
        # What cannot be removed now is removed another time.
        with contextlib.suppress(OSError):
            # The header goes first: a generation is never there without its tensors.
            self._header_file(number).unlink(missing_ok=True)
            self._tensor_file(number).unlink(missing_ok=True)


def _another_format(header_file: Path, found: object) -> CheckpointError:
    return CheckpointError(
        f"{header_file} has format {found!r}, this version of Torchkiln reads {_FORMAT}; use the "
        "version that wrote it"
    )


def _is_of_format_1(header_file: Path) -> bool:
    """Whether this is an intact header of the format before seals, not a damaged one of ours."""
    try:
        header = json.loads(header_file.read_bytes())
        facts = hashlib.sha256(json.dumps(header["facts"]).encode()).hexdigest()
        return bool(header["format"] == 1 and header["facts_sha256"] == facts)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def _flush_directory(directory: Path) -> None:
    """Make new names in a directory survive a power failure."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems flush files but no folders, which is no reason to give up the files.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(descriptor)
