import ast
import io
from pathlib import Path

import pytest

from torchkiln.core import _progress
from torchkiln.core._progress import is_quiet, is_watched, progress_bar, quietly, say

REPOSITORY = Path(__file__).parents[2]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_pipe_and_a_dumb_terminal_are_not_watched(monkeypatch):
    assert not is_watched(io.StringIO())
    monkeypatch.setenv("TERM", "xterm")
    assert is_watched(Terminal())
    monkeypatch.setenv("TERM", "dumb")
    assert not is_watched(Terminal())


def test_a_closed_stream_is_not_watched(monkeypatch):
    stream = io.StringIO()
    stream.close()
    assert not is_watched(stream)
    monkeypatch.setattr("sys.stderr", None)
    assert not is_watched()


def test_a_notebook_is_watched(monkeypatch):
    monkeypatch.setattr(_progress, "_is_notebook", lambda: True)
    assert is_watched(io.StringIO())


def test_bars_are_drawn_on_a_terminal_only(capsys, monkeypatch):
    assert list(progress_bar(range(3), desc="Counting")) == [0, 1, 2]
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(_progress, "is_terminal", lambda stream: True)
    assert list(progress_bar(range(3), desc="Counting")) == [0, 1, 2]
    assert "Counting" in capsys.readouterr().err
    assert list(progress_bar(range(3), desc="Counting", show=False)) == [0, 1, 2]
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("watched")
def test_quietly_nothing_is_told(capsys):
    with quietly():
        say("by the way")
        assert is_quiet()
        with quietly(False):  # whoever asked for quiet wins
            say("by the way")
            assert list(progress_bar(range(2), desc="Counting")) == [0, 1]
    assert capsys.readouterr().err == ""
    with quietly(False):
        say("by the way")
    assert not is_quiet()
    assert capsys.readouterr().err == "by the way\n"


def test_bars_are_made_here_only():
    """A bar that is made elsewhere fills log files with its carriage returns."""
    own = {"src/torchkiln/core/_progress.py", "src/torchkiln/report/_progress.py"}
    found = set()
    for path in [*REPOSITORY.glob("src/torchkiln/**/*.py"), *REPOSITORY.glob("benchmarks/*.py")]:
        tree = ast.parse(path.read_text())
        for_types = {
            inner
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            for inner in ast.walk(node)
        }
        for node in ast.walk(tree):
            is_import = isinstance(node, ast.ImportFrom | ast.Import) and node not in for_types
            if is_import and "tqdm" in ast.unparse(node):
                found.add(path.relative_to(REPOSITORY).as_posix())
    assert found == own
