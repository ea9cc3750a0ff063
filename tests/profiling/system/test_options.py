"""PVTI_OPTIONS: what it asks for, and what is made of nonsense."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchkiln.core import OptionsError
from torchkiln.profiling.system._options import RecordOptions, read_options, to_channels


def test_the_options_of_the_original():
    text = '{"enable":"true", "directory":"system_profile", "channels":["a"], "duration":"2.5"}'
    options, problems = read_options(text)
    assert options == RecordOptions(Path("system_profile"), frozenset({"a"}), 2.5)
    assert problems == []


@pytest.mark.parametrize("value", ['"false"', "false", '"False"', '"0"', "0", '"off"'])
def test_it_can_be_switched_off(value):
    assert read_options(f'{{"enable":{value},"directory":"x"}}') == (None, [])


@pytest.mark.parametrize("value", ['"true"', "true", '"True"', '"1"', "1", '"on"'])
def test_it_can_be_switched_on(value):
    assert read_options(f'{{"enable":{value}}}') == (RecordOptions(), [])


def test_who_sets_it_wants_it():
    assert read_options('{"directory":"x"}') == (RecordOptions(Path("x")), [])


@pytest.mark.parametrize("text", ["nonsense", "{'enable':'true'}", "[1]", "3", "[" * 100_000])
def test_what_cannot_be_read_means_on_with_defaults(text):
    options, problems = read_options(text)
    assert options == RecordOptions()
    assert len(problems) == 1


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('{"enable":"maybe"}', "enable"),
        ('{"directory":3}', "directory"),
        ('{"directory":""}', "directory"),
        ('{"directory":"~nobody-of-this-name/x"}', "directory"),
        ('{"directory":"\\ud800"}', "directory"),
        ('{"channels":[1]}', "channels"),
        ('{"channels":7}', "channels"),
        ('{"duration":-1}', "duration"),
        ('{"duration":"long"}', "duration"),
        ('{"duration":true}', "duration"),
        ('{"duration":NaN}', "duration"),
        ('{"duration":1e305}', "duration"),
        (f'{{"duration":1{"0" * 400}}}', "duration"),
        ('{"dirctory":"x"}', "directory"),
    ],
)
def test_a_part_that_is_wrong_is_named_and_left_at_its_default(text, named):
    options, problems = read_options(text)
    assert options == RecordOptions()
    assert len(problems) == 1
    assert named in problems[0]


def test_channels_are_names():
    assert to_channels("a") == {"a"}
    assert to_channels(["a", "b"]) == {"a", "b"}
    for wrong in ([], [1], [""]):
        with pytest.raises(OptionsError, match="list of names"):
            to_channels(wrong)


def test_a_duration_is_positive():
    with pytest.raises(OptionsError, match="positive number of seconds"):
        RecordOptions(duration_s=0)
