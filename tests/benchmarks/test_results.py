"""Results of benchmarks: readable, with all rounds beside them, and without anybody's paths."""

import json
import re
from pathlib import Path

import pytest
from _results import machine, machine_name, read_result, result_path, write_result

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
KEPT = sorted(RESULTS.rglob("*.json"))


def values(entry):
    if isinstance(entry, dict):
        for key, value in entry.items():
            yield key
            yield from values(value)
    elif isinstance(entry, list):
        for value in entry:
            yield from values(value)
    else:
        yield entry


@pytest.mark.parametrize(
    ("processor", "cores", "name"),
    [
        ("AMD EPYC", 2, "epyc-2core"),
        ("Intel(R) Xeon(R) Processor", 2, "xeon-2core"),
        ("AMD EPYC 7763 64-Core Processor", 4, "epyc-7763-4core"),
        ("Intel(R) Core(TM) i7-9750H CPU @ 2.60GHz", 6, "core-i7-9750h-6core"),
        ("Apple M2", 8, "apple-m2-8core"),
        ("", 1, "cpu-1core"),
    ],
)
def test_machines_have_short_names(processor, cores, name):
    assert machine_name(processor, cores) == name


def test_each_machine_has_a_folder():
    assert result_path("step").parent.parent == RESULTS
    assert KEPT
    for path in RESULTS.iterdir():
        assert path.is_dir(), path
        assert re.fullmatch(r"[a-z0-9-]+-\d+core", path.name)


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_kept_results_tell_no_absolute_path_and_no_single_round(path):
    for record in (json.loads(path.read_text()), read_result(path)):
        texts = [value for value in values(record) if isinstance(value, str)]
        assert not [text for text in texts if re.search(r"(^|[\s='\"])(/|[A-Z]:\\)\w", text)]
    assert len(path.read_text().splitlines()) < 1500
    assert "curve" not in set(values(json.loads(path.read_text())))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_kept_results_are_what_would_be_written_of_all_rounds(path, tmp_path):
    again = tmp_path / path.name
    write_result(again, read_result(path))
    assert json.loads(again.read_text()) == json.loads(path.read_text())


def test_people_see_spreads_and_all_rounds_are_beside_them(tmp_path):
    path = tmp_path / "machine" / "figures.json"
    row = {"rate": 3.0, "rounds": [1.0, 2.0, 3.0, 4.0, 5.0], "curve": [[1, 0.5], [2, 0.25]]}
    record = {"rounds": 5, "models": {"A": row}}
    write_result(path, record)
    seen = json.loads(path.read_text())
    spread = {"rounds": 5, "least": 1.0, "q1": 2.0, "q3": 4.0, "most": 5.0}
    assert seen == {"rounds": 5, "models": {"A": {"rate": 3.0, "spread_of_rounds": spread}}}
    assert read_result(path) == record


def test_rounds_of_several_figures_have_a_spread_each(tmp_path):
    path = tmp_path / "figures.json"
    write_result(path, {"runs": [{"a": 1.0, "b": 5.0}, {"a": 2.0, "b": 7.0}]})
    spread = json.loads(path.read_text())["spread_of_rounds"]
    assert (spread["a"]["most"], spread["b"]["least"]) == (2.0, 5.0)
    write_result(path, {"rounds": [[1.0, 10.0], [2.0, 20.0]]})
    assert [part["most"] for part in json.loads(path.read_text())["spread_of_rounds"]] == [2, 20]


def test_a_record_without_rounds_needs_no_second_file(tmp_path):
    path = tmp_path / "figures.json"
    write_result(path, {"rounds": [1.0, 2.0]})
    write_result(path, {"rate": 1.0})
    assert [entry.name for entry in tmp_path.iterdir()] == ["figures.json"]
    assert read_result(path) == {"rate": 1.0}
    assert read_result(tmp_path / "other.json") == {}


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (f"{ROOT}/docs/images/a.png", "docs/images/a.png"),
        ("/tmp/spk/bin/python", "python"),
        ("python benchmarks/fit.py --cache /tmp/a/cache --json=/tmp/x.json", None),
        ("molecules/s, PyG / Torchkiln", "molecules/s, PyG / Torchkiln"),
    ],
)
def test_files_are_named_without_their_folders(tmp_path, text, kept):
    path = tmp_path / "figures.json"
    write_result(path, {"text": text})
    expected = kept or "python benchmarks/fit.py --cache cache --json=x.json"
    assert read_result(path)["text"] == expected


def test_a_record_says_where_and_with_what_it_was_measured():
    assert {"when", "cpu", "cores", "python", "torch", "torchkiln"} <= set(machine())


def test_results_that_the_documents_name_are_there():
    named = re.compile(r"benchmarks/results/[\w*/.-]+\.json(?:\.gz)?")
    for document in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        if document.name == "CHANGELOG.md":
            continue
        for name in named.findall(document.read_text()):
            assert list(ROOT.glob(name)), f"{document.name} names {name}"
