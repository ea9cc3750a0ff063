import os
import re
import sys

import pytest

from torchkiln.report._tables import print_table

COLUMNS = ("name", "date", "status")
ROWS = [["a[b]" + "c" * 20, "2026-01-01 10:00", "finished"], ["d", "2026-01-02 11:00", "failed"]]


@pytest.fixture
def terminal(monkeypatch):
    """Pretend that standard output is a terminal of that width."""

    def be(columns):
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setattr(
            "shutil.get_terminal_size", lambda *fallback: os.terminal_size((columns, 24))
        )

    return be


def table(capsys):
    print_table("Some runs", COLUMNS, ROWS, may_be_left_out=("date",))
    return capsys.readouterr().out


def test_a_wide_terminal_shows_everything(terminal, capsys):
    terminal(80)
    out = table(capsys)
    assert out.startswith("Some runs")
    assert "2026-01-01" in out
    assert "a[b]ccc" in out
    assert "lack of room" not in out


def test_a_narrow_one_leaves_out_what_it_may_and_says_so(terminal, capsys):
    terminal(50)
    out = table(capsys)
    assert "2026" not in out
    assert "finished" in out
    assert "for lack of room without: date" in out
    plain = re.sub(r"\x1b\[\d*m", "", out)
    assert max(map(len, plain.splitlines())) <= 50


def test_a_pipe_is_as_wide_as_columns_says(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "50")
    out = table(capsys)
    assert "for lack of room without: date" in out
    assert max(map(len, out.splitlines())) <= 50


def test_a_pipe_gets_whole_lines(monkeypatch, capsys):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert "2026-01-01" in table(capsys)


def test_texts_lose_their_middles_before_a_column_goes(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "50")
    print_table("Some runs", COLUMNS, ROWS, may_be_left_out=("date",), may_be_shortened=("name",))
    out = capsys.readouterr().out
    assert "lack of room" not in out
    assert "2026-01-01 10:00" in out
    assert re.search(r"a\[b\]c+…c+ ", out)
    assert max(map(len, out.splitlines())) <= 50
