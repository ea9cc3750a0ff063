"""JSON and YAML of unknown origin: whatever is in a text, the outcome is a value or an error.

Parsers recurse, and aliases of YAML repeat what they stand for, so that a kilobyte can grow without
end. Depth and repetition are therefore limited before anybody walks through the value.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchkiln.core._errors import StoreError, TorchkilnError, Unreadable

# Far above what any file of ours needs, far below what exhausts Python's stack.
_MAX_DEPTH = 100
# Entries that aliases may repeat in one text, all together.
_MAX_REPEATED = 10_000
# A file of settings has kilobytes; what has more is another file (or a device that never ends).
_MAX_BYTES = 16_000_000
_PIECE_BYTES = 1 << 20

_Key = tuple[str, str]  # tag and text: the number 1 and the text "1" are two keys
_MERGE: _Key = ("tag:yaml.org,2002:merge", "<<")


def read_text(
    path: Path, *, error: type[TorchkilnError] = StoreError, max_bytes: int = _MAX_BYTES
) -> str:
    """Return a text file of moderate size.

    Raises:
        error: if it is missing, unreadable, too large, or no UTF-8; the message names the file.
    """
    try:
        with path.open("rb") as file:
            # In pieces: asked for many bytes, Python makes room for all of them first.
            pieces: list[bytes] = []
            while sum(map(len, pieces)) <= max_bytes and (piece := file.read(_PIECE_BYTES)):
                pieces.append(piece)
            content = b"".join(pieces)
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise error(f"cannot read {path}: {reason}; check its name") from problem
    if len(content) > max_bytes:
        raise error(
            f"{path} has more than {max_bytes // 1_000_000} MB, which no such file has; name "
            "another one"
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = content.count(b"\n", 0, problem.start) + 1
        raise error(
            f"{path}, line {line}: this is no text ({problem.reason} in UTF-8); name another "
            "file, or save it as UTF-8"
        ) from problem


def parse_json(
    text: str | bytes, label: object, *, error: type[TorchkilnError] = StoreError
) -> Any:
    """Return the value of a JSON text.

    Args:
        text: The text.
        label: What to call it in errors: its path.
        error: What to raise.

    Raises:
        error: if it is no JSON, or nested deeper than any of ours; the message has the line.
    """
    try:
        value = json.loads(text)
    except json.JSONDecodeError as problem:
        raise error(f"{label}, line {problem.lineno}: no JSON ({problem.msg})") from problem
    except RecursionError:
        raise _too_deep(label, error) from None
    except ValueError as problem:  # no UTF-8, or a whole number of thousands of digits
        raise error(f"{label}: no JSON ({problem})") from problem
    _require_shallow(value, label, error)
    return value


def read_json(path: Path) -> Any:
    """Return the content of a JSON file.

    Raises:
        Unreadable: if it is no JSON, or nested too deeply. A file that is not there is a
            `FileNotFoundError`.
    """
    return parse_json(path.read_bytes(), path, error=Unreadable)


def parse_yaml(text: str, label: object, *, error: type[TorchkilnError] = StoreError) -> Any:
    """Return the value of a YAML (or JSON) text; nothing is expanded beyond reason.

    Raises:
        error: see `check_yaml`; also for values that do not exist, such as the 31st of June.
    """
    import yaml

    check_yaml(text, label, error=error)
    try:
        return yaml.safe_load(text)
    except Exception as problem:  # a tag lets PyYAML raise anything: `!!bool no thing`, `!!int ""`
        raise error(f"{label}: neither YAML nor JSON ({_one_line(problem)})") from problem


def check_yaml(text: str, label: object, *, error: type[TorchkilnError] = StoreError) -> None:
    """Look through a YAML text, each node once, before a loader makes values of it.

    Raises:
        error: if it is no YAML, nested too deep, expands too far by its aliases, or has a key twice
            (loaders take the last one without a word); the message has the line.
    """
    import yaml

    try:
        _scan(yaml.parse(text, yaml.SafeLoader), label, error)
    except (yaml.YAMLError, ValueError) as problem:
        if isinstance(problem, TorchkilnError):
            raise
        mark = getattr(problem, "problem_mark", None)
        where = f"{label}, line {mark.line + 1}" if mark is not None else str(label)
        raise error(f"{where}: neither YAML nor JSON ({_one_line(problem)})") from problem


@dataclass(slots=True)
class _Open:
    """A collection whose end was not seen yet."""

    is_mapping: bool
    anchor: str | None
    entries: int = 0
    size: int = 1  # with everything that aliases in it stand for
    height: int = 1
    keys: set[_Key] = field(default_factory=set)

    def add(self, size: int, height: int) -> None:
        self.entries += 1
        self.size += size
        self.height = max(self.height, height + 1)


def _scan(events: Iterable[Any], label: object, error: type[TorchkilnError]) -> None:
    import yaml

    stack = [_Open(is_mapping=False, anchor=None)]
    # What an anchor stands for: number of nodes, levels, and which key a scalar would be.
    anchors: dict[str, tuple[int, int, _Key | None]] = {}
    resolver: Any = yaml.resolver.Resolver()
    repeated = 0
    for event in events:
        where = f"{label}, line {event.start_mark.line + 1}"
        if isinstance(event, yaml.CollectionStartEvent):
            stack.append(_Open(isinstance(event, yaml.MappingStartEvent), event.anchor))
            if event.anchor is not None:
                anchors.pop(event.anchor, None)  # until it ends, it cannot be meant
            if len(stack) > _MAX_DEPTH:
                raise _too_deep(where, error)
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            closed = stack.pop()
            found: tuple[int, int, _Key | None] = (closed.size, closed.height, None)
            anchor = closed.anchor
        elif isinstance(event, yaml.ScalarEvent):
            tag = event.tag or resolver.resolve(yaml.ScalarNode, event.value, event.implicit)
            found, anchor = (1, 1, (tag, event.value)), event.anchor
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in anchors:
                raise error(f"{where}: *{event.anchor} stands for nothing that is complete here")
            found, anchor = anchors[event.anchor], None
            repeated += found[0]
            if repeated > _MAX_REPEATED:
                raise error(
                    f"{where}: aliases repeat more than {_MAX_REPEATED:,} entries by now; write "
                    "out what is needed"
                )
            if len(stack) + found[1] > _MAX_DEPTH:
                raise _too_deep(where, error)
        else:
            continue
        if anchor is not None:
            anchors[anchor] = found
        parent = stack[-1]
        is_key = parent.is_mapping and parent.entries % 2 == 0
        # A mapping may merge several others.
        if is_key and found[2] is not None and found[2] != _MERGE:
            if found[2] in parent.keys:
                raise error(f"{where}: the key {found[2][1]!r} is there twice; remove one of them")
            parent.keys.add(found[2])
        parent.add(*found[:2])


def _require_shallow(value: Any, label: object, error: type[TorchkilnError]) -> None:
    """Raise for a value that recursive code could not walk through."""
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise _too_deep(label, error)


def _too_deep(label: object, error: type[TorchkilnError]) -> TorchkilnError:
    return error(
        f"{label}: nested deeper than {_MAX_DEPTH} levels, which nothing of Torchkiln is; the file "
        "is damaged or of another kind"
    )


def _one_line(problem: Exception) -> str:
    return " ".join(str(problem).split())
