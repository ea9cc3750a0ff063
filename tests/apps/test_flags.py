import argparse

import pytest

from torchkiln.apps._flags import checked_flags, is_switch, with_switch_values
from torchkiln.core import OptionsError

HELP = argparse.Namespace(nargs=0)
KNOWN = {"--rows": None, "--name": None, "--quiet": None, "--files+": None, "--help": HELP}


def test_switches_are_true_or_false():
    assert is_switch(bool)
    assert is_switch(bool | None)
    assert not is_switch(int | None)


def test_a_switch_may_stand_alone():
    switches = {"--quiet", "--force"}
    args = ["--quiet", "--rows", "3", "--force", "false"]
    assert with_switch_values(args, switches) == [
        *["--quiet", "true", "--rows", "3", "--force", "false"]
    ]
    with pytest.raises(OptionsError, match="--quiet takes true or false, got 'maybe'"):
        with_switch_values(["--quiet", "maybe"], switches)
    words = with_switch_values(["--quiet", "a.xyz"], switches, words_may_follow=True)
    assert words == ["--quiet", "true", "a.xyz"]


@pytest.mark.parametrize(
    ("args", "spelled"),
    [
        (["--name", "m", "a", "b"], ["--name=m", "--files+=a", "--files+=b"]),
        (["a", "--name=m", "b"], ["--files+=a", "--name=m", "--files+=b"]),
        (["--rows", "-1"], ["--rows=-1"]),
        (["--rows", "--name"], ["--rows=--name"]),
        (["--help", "a"], ["--help", "--files+=a"]),
        (["--", "-a", "--b"], ["--files+=-a", "--files+=--b"]),
        (["-1"], ["--files+=-1"]),
    ],
)
def test_words_without_a_flag_belong_to_one(args, spelled):
    assert list(checked_flags(args, KNOWN, words_for="--files+")) == spelled


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--row", "3"], "unknown flag --row; did you mean --rows?"),
        (["-q"], "unknown flag -q; --help lists all of them"),
        (["--rows"], "--rows needs a value behind it"),
        (["word"], "'word' belongs to no flag; flags begin with two dashes"),
    ],
)
def test_what_belongs_to_nothing_is_named(args, message):
    with pytest.raises(OptionsError, match=message.replace("?", r"\?")):
        list(checked_flags(args, KNOWN))


def test_groups_are_left_to_the_parser():
    args = ["--network.depth", "3"]
    assert list(checked_flags(args, KNOWN, groups="--network.")) == ["--network.depth=3"]
