"""Running a seed document from its first block to its last, as a notebook does."""

import ast
import contextlib
import io
from dataclasses import dataclass
from typing import Any

from _seed_document import CodeBlock, read_blocks


@dataclass(frozen=True)
class Cell:
    """A block that was run: what it printed, and the value of its last line."""

    block: CodeBlock
    printed: str
    value: Any
    outputs: list[str]  # what the document shows below it


@dataclass(frozen=True)
class Notebook:
    cells: list[Cell]
    names: dict[str, Any]

    def cell(self, *fragments: str) -> Cell:
        """Return the one cell that contains all fragments."""
        found = [cell for cell in self.cells if all(f in cell.block.text for f in fragments)]
        assert len(found) == 1, f"{len(found)} cells contain {fragments}"
        return found[0]


def run_document(name: str) -> Notebook:
    """Run all Python blocks of a document in one namespace."""
    names: dict[str, Any] = {"__name__": "document"}
    cells: list[Cell] = []
    for block in read_blocks(name):
        if block.language == "python":
            cells.append(Cell(block, *_run(block, names), outputs=[]))
        elif block.language == "output" and cells:
            cells[-1].outputs.append(block.text)
    return Notebook(cells, names)


def _run(block: CodeBlock, names: dict[str, Any]) -> tuple[str, Any]:
    tree = ast.parse("\n" * block.line + block.text, str(block.path))
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, str(block.path), "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), str(block.path), "eval"), names)
    return printed.getvalue(), value
