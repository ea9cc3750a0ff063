"""Whatever is in a text of settings or a header: a value or one of our errors, and soon."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchkiln.core import OptionsError, StoreError, check_yaml, parse_json, parse_yaml, read_text


def yaml_bomb(levels: int = 12, width: int = 9) -> str:
    """Return a text whose aliases stand for `width ** levels` entries."""
    lines = ["a0: &a0 [x]"]
    for level in range(1, levels):
        aliases = ", ".join([f"*a{level - 1}"] * width)
        lines.append(f"a{level}: &a{level} [{aliases}]")
    return "\n".join(lines)


def test_json_is_read():
    assert parse_json('{"a": [1, {"b": null}]}', "x.json") == {"a": [1, {"b": None}]}
    assert parse_json(b"[1]", "x.json") == [1]


@pytest.mark.parametrize("depth", [150, 990, 100_000])
@pytest.mark.parametrize(("start", "end"), [("[", "]"), ('{"a":', "}")])
def test_deep_json_names_the_file(depth, start, end):
    text = start * depth + "1" + end * depth
    with pytest.raises(StoreError, match=r"x\.json.*nested deeper than 100"):
        parse_json(text, "x.json")


def test_json_of_usual_depth_is_read():
    text = "[" * 90 + "]" * 90
    assert parse_json(text, "x.json")


def test_damaged_json_names_the_line():
    with pytest.raises(OptionsError, match=r"x\.json, line 2: no JSON"):
        parse_json('{"a": 1,\n "b": }', "x.json", error=OptionsError)


@pytest.mark.parametrize("text", [b"", b"\xff\xfe", "9" * 5000, b"\0\0\0"])
def test_what_is_no_json_names_the_file(text):
    with pytest.raises(StoreError, match=r"x\.json"):
        parse_json(text, "x.json")


def test_yaml_is_read_with_its_aliases():
    text = "base: &b {lr: 1}\nother: {<<: *b, epochs: 2}\nthird: *b"
    assert parse_yaml(text, "x.yml") == {
        "base": {"lr": 1},
        "other": {"lr": 1, "epochs": 2},
        "third": {"lr": 1},
    }


def test_a_yaml_bomb_is_refused_at_its_line():
    with pytest.raises(StoreError, match=r"x\.yml, line \d+: aliases repeat more than 10,000"):
        parse_yaml(yaml_bomb(), "x.yml")


def test_a_yaml_bomb_of_merges_is_refused():
    lines = ["a0: &a0 {k: v}"]
    for level in range(1, 20):
        merged = ", ".join([f"*a{level - 1}"] * 9)
        lines.append(f"a{level}: &a{level} {{<<: [{merged}], k{level}: v}}")
    with pytest.raises(StoreError, match="aliases repeat"):
        parse_yaml("\n".join(lines), "x.yml")


def test_aliases_cannot_nest_deeper_than_text():
    lines = ["a0: &a0 [x]", *(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 150))]
    with pytest.raises(StoreError, match="nested deeper"):
        parse_yaml("\n".join(lines), "x.yml")


def test_an_alias_of_itself_is_refused():
    with pytest.raises(StoreError, match=r"x\.yml, line 1: \*a stands for nothing"):
        parse_yaml("a: &a [1, *a]", "x.yml")


@pytest.mark.parametrize("depth", [150, 5000])
def test_deep_yaml_is_refused(depth):
    with pytest.raises(OptionsError, match=r"x\.yml, line 1: nested deeper"):
        parse_yaml("[" * depth + "]" * depth, "x.yml", error=OptionsError)


@pytest.mark.parametrize(
    "text",
    ["a: [", "\0", "a: !!python/object:os.system x", "!!bool x", '!!int ""', "a: 2024-06-31", "{a"],
)
def test_what_is_no_yaml_names_the_file(text):
    with pytest.raises(StoreError, match=r"x\.yml"):
        parse_yaml(text, "x.yml")


@pytest.mark.parametrize(
    ("text", "line"),
    [("a: 1\nb: 2\na: 3", 3), ("x:\n  a: 1\n  a: 2", 3), ("[{a: 1},\n {a: 1, a: 2}]", 2)],
)
def test_a_repeated_key_is_named_with_its_line(text, line):
    with pytest.raises(StoreError, match=f"line {line}: the key 'a' is there twice"):
        check_yaml(text, "x.yml")


def test_several_merges_and_keys_that_only_look_alike_are_fine():
    text = 'a: &a {x: 1}\nb: &b {y: 2}\nc:\n  <<: *a\n  <<: *b\nd: {"1": text, 1: number}'
    value = parse_yaml(text, "x.yml")
    assert value["c"] == {"x": 1, "y": 2}
    assert value["d"] == {"1": "text", 1: "number"}


def test_equal_keys_of_different_mappings_are_fine():
    check_yaml("x: {a: 1}\ny: {a: 1}\nz: [a, a]", "x.yml")


def test_text_names_the_file_that_is_missing_binary_or_endless(tmp_path):
    with pytest.raises(StoreError, match=r"cannot read .*none\.txt"):
        read_text(tmp_path / "none.txt")
    with pytest.raises(OptionsError, match="cannot read"):
        read_text(tmp_path, error=OptionsError)
    binary = tmp_path / "binary"
    binary.write_bytes(b"one\n\xff\xff")
    with pytest.raises(StoreError, match=r"binary, line 2: this is no text"):
        read_text(binary)
    with pytest.raises(StoreError, match="more than 16 MB"):
        read_text(Path("/dev/zero"))
