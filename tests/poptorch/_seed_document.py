"""Reading the seed documents, whose code the tests run; nothing of them is copied."""

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[3] / "shared"


@dataclass(frozen=True)
class CodeBlock:
    """A fenced block: its language, text, and the file and line it stands at."""

    language: str
    text: str
    path: Path
    line: int

    def compiled(self):
        """Return code whose tracebacks point into the document."""
        return compile("\n" * self.line + self.text, str(self.path), "exec")

    def applied(self):
        """Return the new side of a diff as code."""
        return self._side("-", "+")

    def reverted(self):
        """Return the old side of a diff as code."""
        return self._side("+", "-")

    def _side(self, dropped, kept):
        lines = [line for line in self.text.splitlines() if not line.startswith(dropped)]
        return textwrap.dedent("\n".join(re.sub(rf"^\{kept}", " ", line) for line in lines))


def shared_file(*parts):
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"needs {path}, which is not part of the repository")
    return path


def read_blocks(name):
    """Return the fenced code blocks of a seed document in order."""
    path = shared_file("seeds", name)
    blocks, language, start, lines = [], None, 0, []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line.startswith("```"):
            if language is None:
                language, start, lines = line[3:].strip(), number, []
            else:
                blocks.append(CodeBlock(language, "\n".join(lines), path, start))
                language = None
        elif language is not None:
            lines.append(line)
    return blocks


def find_block(blocks, *fragments, language=None):
    """Return the one block that contains all fragments."""
    found = [
        block
        for block in blocks
        if all(fragment in block.text for fragment in fragments)
        and (language is None or block.language == language)
    ]
    assert len(found) == 1, f"{len(found)} blocks contain {fragments}"
    return found[0]
