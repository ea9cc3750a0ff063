import logging
import os
import sys
import warnings

import pytest

from torchkiln.core._plain_warnings import logging_at, plain_messages


def test_a_warning_is_formatted_as_one_line():
    with plain_messages():
        text = warnings.formatwarning("two\n lines", UserWarning, "some.py", 3)
    assert text == "warning: two lines\n"
    assert "some.py:3" in warnings.formatwarning("two\n lines", UserWarning, "some.py", 3)


@pytest.mark.parametrize(
    ("level", "shown"),
    [
        ("debug", "debug: a\ninfo: b\nwarning: c\n"),
        ("warning", "warning: c\n"),
        ("error", ""),
    ],
)
def test_messages_from_the_level_on_are_shown(level, shown, capsys):
    logger = logging.getLogger("torchkiln.some.part")
    before = logging.getLogger("torchkiln").level, logging.getLogger("torch").level
    with logging_at(level):
        logger.debug("a")
        logger.info("b")
        logger.warning("c")
        assert logging.getLogger("torch").level == logging.getLevelName(level.upper())
    assert capsys.readouterr().err == shown
    assert (logging.getLogger("torchkiln").level, logging.getLogger("torch").level) == before


def test_torch_is_told_before_it_is_loaded(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")
    with logging_at("info"):
        assert os.environ["TORCH_LOGS"] == "all"
    assert "TORCH_LOGS" not in os.environ
    monkeypatch.setenv("TORCH_LOGS", "dynamo")
    with logging_at("debug"):
        assert os.environ["TORCH_LOGS"] == "dynamo"
    assert os.environ["TORCH_LOGS"] == "dynamo"


def test_errors_only_means_no_warnings():
    with warnings.catch_warnings(record=True) as caught, logging_at("error"):
        warnings.simplefilter("ignore")
        warnings.warn("nobody wants to know", stacklevel=1)
    assert caught == []
