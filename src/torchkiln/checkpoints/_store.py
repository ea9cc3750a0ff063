"""`CheckpointStore`: the state of a run on disk, of which one good version always survives."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, final

from safetensors import SafetensorError
from torch import Tensor

from torchkiln.checkpoints._files import read_tensors, write_tensors
from torchkiln.checkpoints._generations import (
    FORMAT,
    Damaged,
    header_file,
    list_generations,
    nothing_whole,
    own_files,
    read_generation,
    tensor_file,
)
from torchkiln.core import (
    CheckpointError,
    atomic_path,
    clean_leftovers_once,
    sha256_file,
    warn_user,
    write_sealed,
)
from torchkiln.core._claims import Claimed, claimed_folder


class Checkpoint(NamedTuple):
    """What was saved."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]


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
            except Damaged as finding:
                findings.append(f"{self._header_file(number).name}: {finding}")
                continue
            if findings:
                warn_user(
                    f"the newest checkpoint in {self.directory} is damaged ({'; '.join(findings)});"
                    " the one before it is used"
                )
            self._known_good = number
            return checkpoint
        raise nothing_whole(self.directory, findings)

    @contextlib.contextmanager
    def claim(self) -> Iterator[None]:
        """Keep other processes from writing here; the claim ends with the process at the latest.

        Raises:
            CheckpointError: Another process has it, or nothing can be written there.
        """
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(claimed_folder(self.directory))
            except Claimed as claimed:
                raise self._refuse_second(claimed) from None
            except OSError as error:
                raise CheckpointError(
                    f"checkpoints cannot be written to {self.directory}: {error}; choose another "
                    "place"
                ) from error
            # Now, since who resumes a finished run writes nothing.
            clean_leftovers_once(self.directory)
            self._remove_halves()
            yield

    def _refuse_second(self, claimed: Claimed) -> CheckpointError:
        if claimed.by_this_process:
            return CheckpointError(
                f"this process is training the model in {self.directory} already; leave that claim "
                "first, or choose another name"
            )
        return CheckpointError(
            f"another process is training the model in {self.directory}; wait for it, or choose "
            "another name"
        )

    # -- files ------------------------------------------------------------------------------

    def _header_file(self, number: int) -> Path:
        return header_file(self.directory, number)

    def _tensor_file(self, number: int) -> Path:
        return tensor_file(self.directory, number)

    def _generations(self) -> list[int]:
        """Return the numbers of all generations, oldest first."""
        return list_generations(self.directory)

    def _write(self, number: int, tensors: Mapping[str, Tensor], facts: dict[str, Any]) -> Path:
        path = self._tensor_file(number)
        with atomic_path(path) as temporary:
            aliases = write_tensors(temporary, tensors)
            checksum = sha256_file(temporary)
        header = {
            "format": FORMAT,
            "tensors": {"sha256": checksum, "aliases": aliases},
            "facts": facts,
        }
        write_sealed(self._header_file(number), header)
        _flush_directory(self.directory)
        return self._header_file(number)

    def _read(self, number: int) -> Checkpoint:
        found = read_generation(self.directory, number)
        try:
            return Checkpoint(read_tensors(found.content, found.aliases), found.facts)
        except (ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
            raise Damaged(f"{type(error).__name__}: {error}") from error

    def _last_good(self, generations: list[int]) -> int | None:
        """Return the newest of `generations` that could be loaded."""
        for number in reversed(generations):
            if number == self._known_good:
                return number
            try:
                self._read(number)
            except Damaged:
                continue
            except CheckpointError:
                pass  # of another version, which may want it back
            return number
        return None

    def _remove_all_but(self, kept: set[int | None]) -> None:
        """Remove other generations, and tensors that a killed process left without a header."""
        with contextlib.suppress(OSError):  # another time
            for number in own_files(self.directory):
                if number not in kept:
                    self._remove(number)

    def _remove_halves(self) -> None:
        """Remove tensors whose header a killed process had removed already."""
        with contextlib.suppress(OSError):
            found = own_files(self.directory)
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
