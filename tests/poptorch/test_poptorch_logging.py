import logging

import pytest

import poptorch
from poptorch import _logging


@pytest.fixture(autouse=True)
def _restore_handlers():
    yield
    _logging.configure_from_environment()


def test_logger_has_the_originals_name():
    assert poptorch.logger is logging.getLogger("poptorch::python")


@pytest.mark.parametrize(("level", "number"), [("WARN", 30), ("ERR", 40), (1, 10), (0, 5)])
def test_levels_by_name_and_number(level, number):
    poptorch.setLogLevel(level)
    assert poptorch.logger.level == number


def test_off_silences_everything(capsys):
    poptorch.setLogLevel("OFF")
    poptorch.logger.critical("nothing")
    assert capsys.readouterr().err == ""


def test_messages_go_to_the_current_stderr(capsys):
    poptorch.logger.warning("careful")
    assert "careful" in capsys.readouterr().err


def test_unknown_levels_are_refused():
    with pytest.raises(ValueError, match="Invalid log level integer"):
        poptorch.setLogLevel(5)
    with pytest.raises(
        ValueError, match=r"Unknown log level: LOUD\. Valid values are DEBUG, ERR, INFO, OFF, TRACE"
    ):
        poptorch.setLogLevel("LOUD")


def test_environment_sets_level_and_destination(monkeypatch, tmp_path):
    monkeypatch.setenv("POPTORCH_LOG_LEVEL", "DEBUG_IR")
    monkeypatch.setenv("POPTORCH_LOG_DEST", str(tmp_path / "log.txt"))
    _logging.configure_from_environment()
    poptorch.logger.debug("detail")
    assert "detail" in (tmp_path / "log.txt").read_text()
    monkeypatch.undo()


def test_a_bad_level_in_the_environment_names_the_variable(monkeypatch):
    monkeypatch.setenv("POPTORCH_LOG_LEVEL", "loud")
    with pytest.raises(ValueError, match="POPTORCH_LOG_LEVEL=loud"):
        _logging.configure_from_environment()
    monkeypatch.undo()
