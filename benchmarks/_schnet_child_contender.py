"""A contender in a process of its own: it is told for how long to work, and says what it did."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

from _schnet_rounds import Contender


class ChildContender(Contender):
    """Starts `python script folder` and hands it seconds, line by line.

    The child answers each line with a JSON object: `steps`, pairs of molecules and loss, and the
    `seconds` that they took. It inherits the number of threads and the cores that they are pinned
    to, which are in the environment. The folder is removed in the end.
    """

    def __init__(
        self, name: str, python: Path, script: Path, folder: tempfile.TemporaryDirectory[str]
    ) -> None:
        super().__init__(name, [], lambda batch: (0, 0.0))
        self._folder = folder
        self._child = subprocess.Popen(
            [str(python), str(script), folder.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def work(self, seconds: float) -> tuple[list[tuple[int, float]], float]:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(f"{seconds}\n")
        self._child.stdin.flush()
        answer = self._child.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process of {self.name} ended with code {self._child.wait()}")
        done = json.loads(answer)
        return [(count, loss) for count, loss in done["steps"]], done["seconds"]

    def close(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait(timeout=30)
        self._folder.cleanup()
