"""Config files: whatever is in them, the answer comes soon and names the file."""

from __future__ import annotations

import sys

import pytest

from torchkiln.apps.schnet import _config_file
from torchkiln.apps.schnet._arguments import read_settings
from torchkiln.apps.schnet._config_file import read_config
from torchkiln.core import OptionsError, _text_formats


def bomb(levels=40, width=9):
    lines = ["a0: &a0 {x: 1}"]
    for level in range(1, levels):
        aliases = ", ".join([f"*a{level - 1}"] * width)
        lines.append(f"a{level}: &a{level} [{aliases}]")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (bomb(), "aliases repeat more than 10,000"),
        ("options: " + "[" * 3000 + "]" * 3000, "nested deeper"),
        ("options: " + '{"a":' * 3000 + "1" + "}" * 3000, "nested deeper"),
        ("a: &a [*a]", "stands for nothing"),
        ("\0\1\2", "neither YAML nor JSON"),
        ("batch_size: 3\n# more\nbatch_size: 4", "line 3: the key 'batch_size' is there twice"),
    ],
    ids=["bomb", "deep", "deep json", "itself", "binary", "twice"],
)
def test_files_that_would_never_end_are_named(tmp_path, content, message):
    path = tmp_path / "wrong.yml"
    path.write_text(content)
    with pytest.raises(OptionsError, match=message) as caught:
        read_settings(["--config", str(path)])
    assert str(path) in str(caught.value)


def test_a_file_that_is_no_text_or_a_device_is_named(tmp_path):
    path = tmp_path / "wrong.yml"
    path.write_bytes(b"batch_size: 3\n\xff\xfe")
    with pytest.raises(OptionsError, match=r"wrong\.yml, line 2: this is no text"):
        read_config(path)
    with pytest.raises(OptionsError, match="/dev/zero has more than 16 MB"):
        read_config("/dev/zero")


def test_every_key_is_looked_at_once(tmp_path, monkeypatch):
    """The number of events of the parser is the number of steps: no pair is compared."""
    steps = 0
    scan = _text_formats._scan

    def counted(events, *args):
        def count():
            nonlocal steps
            for event in events:
                steps += 1
                yield event

        scan(count(), *args)

    monkeypatch.setattr(_text_formats, "_scan", counted)
    path = tmp_path / "many.yml"
    recorded = "\n".join(f"    key{number}: {number}" for number in range(20_000))
    path.write_text(f"options:\n  recorded:\n{recorded}\n")
    # jsonargparse's own loader would take as long again.
    monkeypatch.setattr(_config_file, "get_value_loader", lambda _: lambda text: {})
    assert read_config(path) == {}
    assert 2 * 20_000 < steps < 2 * 20_000 + 20


def test_nested_anchors_are_looked_at_once():
    lines = ["a0: &a0 {x: 1}", *(f"a{n}: &a{n} {{p: *a{n - 1}, q: 2}}" for n in range(1, 60))]
    calls = 0

    def count(frame, event, _):
        nonlocal calls
        calls += event == "call" and frame.f_code is _text_formats._Open.add.__code__

    sys.setprofile(count)
    try:
        _text_formats.check_yaml("\n".join(lines), "x.yml")
    finally:
        sys.setprofile(None)
    assert calls < 60 * 10


def test_shared_parts_may_be_named_by_anchors(tmp_path):
    path = tmp_path / "shared.yml"
    path.write_text("model: &m {num_features: 32}\nbench: {num_epochs: 2}\n")
    assert read_config(path) == {"model": {"num_features": 32}, "bench": {"num_epochs": 2}}


@pytest.mark.parametrize("flag", ["--dataset_factory.options", "--learning_rate", "--k"])
def test_deep_values_of_flags_are_our_error(flag):
    with pytest.raises(OptionsError):
        read_settings([flag, "[" * 3000 + "]" * 3000])


@pytest.mark.parametrize("text", ["num_epochs: 1\nbatch_size:\n", "bench: {learning_rate: null}\n"])
def test_a_key_without_a_value_is_named(tmp_path, text):
    path = tmp_path / "config.yml"
    path.write_text(text)
    with pytest.raises(OptionsError, match=r"(batch_size|learning_rate) has no value"):
        read_settings(["--config", str(path)])
