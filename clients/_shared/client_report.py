"""What `run.py` of a client says at the end: one JSON line, whatever happened before.

    with ClientReport("lightning") as report:
        import lightning
        report.imports = True
        ...

Each of `imports`, `trains`, `checkpoints` and `matches` is False until it is shown; None says that
a client does not do it. What ends the block with an error becomes part of `detail`.
"""

from __future__ import annotations

import json
import traceback
from types import TracebackType
from typing import Self

# Of an error: enough to recognise it.
_LONGEST_ERROR = 400


class ClientReport:
    """A record of what a client could do."""

    def __init__(self, client: str) -> None:
        self.client = client
        self.imports: bool | None = False
        self.trains: bool | None = False
        self.checkpoints: bool | None = False
        self.matches: bool | None = False
        self.detail = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if isinstance(error, KeyboardInterrupt):
            return False
        if error is not None:
            traceback.print_exception(error)
            text = " ".join(str(error).split())[:_LONGEST_ERROR]
            self.detail = f"{self.detail} Ended with {type(error).__name__}: {text}".strip()
        print(json.dumps(vars(self)), flush=True)
        return True
