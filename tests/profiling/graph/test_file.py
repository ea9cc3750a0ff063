from __future__ import annotations

import dataclasses
import json
import re
import typing
from pathlib import Path

import pytest
from _sample_profiles import big_profile, hostile, never_run, one_call, small_profile, too_large

from torchkiln.core import StoreError, read_sealed, write_sealed
from torchkiln.profiling.graph import _values
from torchkiln.profiling.graph._file import (
    PROFILE_NAME,
    find_profiles,
    is_graph_profile,
    load_profile,
    save_profile,
)

DOCS = Path(__file__).parents[3] / "docs" / "profile_format.md"


@pytest.mark.parametrize("make", [small_profile, never_run, too_large, one_call, hostile])
def test_what_is_saved_is_loaded_to_the_last_bit(make, tmp_path):
    profile = make()
    path = save_profile(profile, tmp_path / "training")
    assert path == tmp_path / "training" / PROFILE_NAME
    for place in (path, path.parent, tmp_path):
        assert load_profile(place) == load_profile(str(place)) == profile
        assert is_graph_profile(place)


def test_a_large_profile_survives(tmp_path):
    profile = big_profile()
    assert len(profile.calls) > 3000
    assert len(profile.rows) > 9500
    save_profile(profile, tmp_path)
    assert load_profile(tmp_path) == profile


def test_several_programs_must_be_told_apart(tmp_path):
    save_profile(small_profile(), tmp_path / "training")
    save_profile(small_profile(training=False), tmp_path / "inference")
    assert [path.parent.name for path in find_profiles(tmp_path)] == ["inference", "training"]
    with pytest.raises(
        StoreError, match=r"holds 2 profiles; name one of them: .*inference, .*trai"
    ):
        load_profile(tmp_path)


def test_what_is_not_there_is_told(tmp_path):
    with pytest.raises(StoreError, match=r"there is no .*nowhere; name a folder that holds"):
        load_profile(tmp_path / "nowhere")
    with pytest.raises(StoreError, match=r"holds no profile\.json, and neither do the folders"):
        load_profile(tmp_path)
    assert not is_graph_profile(tmp_path)
    assert not is_graph_profile(tmp_path / "nowhere")


def test_a_damaged_file_is_told(tmp_path):
    path = save_profile(small_profile(), tmp_path)
    text = path.read_text()
    for damaged in (text[:-40], text.replace('"runs": 1.0', '"runs": 2.0', 1), "[]", "", "{}"):
        path.write_text(damaged)
        with pytest.raises(StoreError, match=r"is damaged.*profile the program again"):
            load_profile(path)


def test_another_format_is_told_with_who_wrote_it(tmp_path):
    path = save_profile(small_profile(), tmp_path)
    write_sealed(path, {**read_sealed(path), "format": 99})
    with pytest.raises(StoreError, match=r"format 99, this .* reads format 1.*torchkiln 0\.9\.0"):
        load_profile(path)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"name": 3}, "GraphProfile.name is int instead of str"),
        ({"training": 1}, "GraphProfile.training is int instead of bool"),
        ({"lines": []}, "line 0 is named, there are 0"),
        ({"calls": []}, "call 0 is named, there are 0"),
        ({"rows": None}, "GraphProfile.rows is NoneType instead of list"),
        ({"surprise": 1}, "does not know surprise"),
        ({"times": {}}, "GraphProfile.times lacks or does not know"),
    ],
)
def test_a_sealed_file_with_other_values_is_told(change, told, tmp_path):
    path = save_profile(small_profile(), tmp_path)
    write_sealed(path, {**read_sealed(path), **change})
    with pytest.raises(StoreError, match=re.escape(told)):
        load_profile(path)


def test_whole_numbers_pass_for_times_but_not_the_other_way_round(tmp_path):
    path = save_profile(small_profile(), tmp_path)
    content = read_sealed(path)
    content["peaks"] = {"gflops_per_s": 148, "gbytes_per_s": 21}
    write_sealed(path, content)
    assert isinstance(load_profile(path).peaks.gflops_per_s, float)
    content["num_parameters"] = 1.5
    write_sealed(path, content)
    with pytest.raises(StoreError, match="num_parameters is float instead of int"):
        load_profile(path)


def test_the_file_is_plain_json(tmp_path):
    sealed = json.loads(save_profile(small_profile(), tmp_path).read_text())
    assert sealed.keys() == {"sha256", "content"}
    assert sealed["content"]["format"] == _values.FORMAT


def test_every_field_is_documented():
    text = DOCS.read_text()
    kinds = [
        kind
        for kind in vars(_values).values()
        if isinstance(kind, type) and "torchkiln" in kind.__module__
    ]
    assert len(kinds) == 9
    for kind in kinds:
        section = text.partition(f"## {kind.__name__}\n")[2].partition("\n## ")[0]
        assert section, f"{kind.__name__} is not documented"
        named = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
        fields = [field.name for field in dataclasses.fields(typing.cast(typing.Any, kind))]
        assert [name for name in named if name != "format"] == fields, kind.__name__
