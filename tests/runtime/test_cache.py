"""The cache directory itself: no program is compiled here."""

import json
import os

import pytest

from torchkiln.runtime._cache import ExecutableCache

LIMIT_BYTES = 10_000


@pytest.fixture
def cache(tmp_path):
    return ExecutableCache(tmp_path / "cache", LIMIT_BYTES)


def put(cache, tmp_path, key, size=100):
    source = tmp_path / "built.pt2"
    source.write_bytes(os.urandom(size))
    return cache.store(key, source, f"program {key}")


def test_a_stored_package_is_found_again(cache, tmp_path):
    path = put(cache, tmp_path, "a")
    assert cache.find("a") == path
    assert not (tmp_path / "built.pt2").exists()


def test_an_unknown_key_is_a_quiet_miss(cache):
    assert cache.find("nothing") is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda package, record: package.write_bytes(b"x" + package.read_bytes()[1:]),
        lambda package, record: package.write_bytes(package.read_bytes()[:10]),
        lambda package, record: package.unlink(),
        lambda package, record: record.write_text("{"),
        lambda package, record: record.unlink(),
        lambda package, record: record.write_text(json.dumps({"format": 999})),
    ],
    ids=["flipped", "truncated", "missing", "torn record", "no record", "foreign format"],
)
def test_a_damaged_entry_is_removed_with_one_warning(cache, tmp_path, damage):
    package = put(cache, tmp_path, "a")
    damage(package, package.with_suffix(".json"))
    with pytest.warns(UserWarning, match="damaged"):
        assert cache.find("a") is None
    assert cache.find("a") is None  # and now it is simply not there


def test_a_damaged_index_entry_is_a_miss(cache):
    cache.remember("fast", {"graph": "a", "program": {}})
    assert cache.lookup("fast")["graph"] == "a"
    (cache.directory / "index" / "fast.json").write_text('{"format": 1, "gra')
    assert cache.lookup("fast") is None


def test_the_oldest_entries_go_when_the_limit_is_reached(cache, tmp_path):
    for age, key in enumerate(["old", "used", "new"]):
        path = put(cache, tmp_path, key, size=3_000)
        os.utime(path, (1_000_000 + age, 1_000_000 + age))
    cache.find("old")  # use counts, not creation
    put(cache, tmp_path, "newest", size=3_000)
    assert {entry.key for entry in cache.entries()} == {"old", "new", "newest"}


def test_an_entry_larger_than_the_limit_still_serves_its_program(cache, tmp_path):
    put(cache, tmp_path, "huge", size=2 * LIMIT_BYTES)
    assert cache.find("huge") is not None


def test_clear_removes_all_and_says_how_much(cache, tmp_path):
    put(cache, tmp_path, "a", size=1_000)
    cache.remember("fast", {"graph": "a", "program": {}})
    assert cache.clear() >= 1_000
    assert cache.entries() == []
    assert cache.lookup("fast") is None


def test_clear_leaves_other_files_alone(cache, tmp_path):
    put(cache, tmp_path, "a")
    stranger = cache.directory / "notes.txt"
    stranger.write_text("mine")
    cache.clear()
    assert stranger.read_text() == "mine"
