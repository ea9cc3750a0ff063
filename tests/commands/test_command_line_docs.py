"""docs/command_line.md says what is true."""

import re
from pathlib import Path

from torchkiln import cli
from torchkiln.apps._command_line import EXIT_CODES
from torchkiln.apps._presets import preset_names

PAGE = Path(__file__).parents[2] / "docs" / "command_line.md"


def test_every_command_is_in_the_table():
    rows = re.findall(r"^\| `torchkiln (\w+)` \|", PAGE.read_text(), flags=re.MULTILINE)
    assert sorted(rows) == sorted(cli._COMMANDS)


def test_the_exit_codes_are_those_of_the_help():
    codes = re.findall(r"^\| (\d+) \|", PAGE.read_text(), flags=re.MULTILINE)
    assert codes == re.findall(r"^  (\d+) ", EXIT_CODES, flags=re.MULTILINE)


def test_the_presets_are_those_that_there_are():
    named = re.search(r"The presets are (.*?);", PAGE.read_text())
    assert named is not None
    assert sorted(re.findall(r"`(\w+)`", named[1])) == preset_names("schnet")


def test_links_exist():
    links = re.findall(r"\]\(([^):#]+)\)", PAGE.read_text())
    assert links
    assert [link for link in links if not (PAGE.parent / link).exists()] == []
