import io

import pytest

from torchkiln.core._console import make_console


def test_a_file_has_the_width_that_was_asked_for(monkeypatch):
    monkeypatch.delenv("COLUMNS")
    assert make_console(io.StringIO()).width == 120
    assert make_console(io.StringIO(), plain_width=90).width == 90


@pytest.mark.parametrize(("columns", "width"), [("60", 60), ("120", 120), ("500", 160)])
def test_columns_decide_up_to_what_can_be_read(columns, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    assert make_console(io.StringIO(), plain_width=90).width == width
