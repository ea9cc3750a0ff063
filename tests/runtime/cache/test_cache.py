"""The cache directory itself: no program is compiled here."""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
import warnings

import pytest

from torchkiln.core import ExecutableError, TrustError, read_sealed, write_sealed
from torchkiln.runtime.cache import _cache
from torchkiln.runtime.cache._cache import ExecutableCache

LIMIT_BYTES = 10_000


def key(name):
    return hashlib.sha256(name.encode()).hexdigest()


@pytest.fixture
def cache(tmp_path):
    return ExecutableCache(tmp_path / "cache", LIMIT_BYTES)


def put(cache, tmp_path, name, size=100):
    source = tmp_path / "built.pt2"
    source.write_bytes(os.urandom(size))
    with cache.holding(key(name)):
        cache.store(key(name), source, f"program {name}")
    return cache.directory / "executables" / f"{key(name)}.pt2"


def find(cache, name):
    with cache.holding(key(name)) as package:
        return package


def test_a_stored_package_is_found_again(cache, tmp_path):
    path = put(cache, tmp_path, "a")
    assert find(cache, "a") == path
    assert path.read_bytes() == (tmp_path / "built.pt2").read_bytes()


def test_an_unknown_key_is_a_quiet_miss(cache):
    assert find(cache, "nothing") is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda package, record: package.write_bytes(b"x" + package.read_bytes()[1:]),
        lambda package, record: package.write_bytes(package.read_bytes()[:10]),
        lambda package, record: record.write_text("{"),
        lambda package, record: record.unlink(),
        lambda package, record: record.write_text(json.dumps({"format": 999})),
        lambda package, record: write_sealed(record, {**read_sealed(record), "format": 999}),
    ],
    ids=["flipped", "truncated", "torn record", "no record", "foreign", "other format"],
)
def test_a_damaged_entry_is_removed_with_one_warning(cache, tmp_path, damage):
    package = put(cache, tmp_path, "a")
    damage(package, package.with_suffix(".json"))
    with pytest.warns(UserWarning, match="damaged"):
        assert find(cache, "a") is None
    assert find(cache, "a") is None  # and now it is simply not there


def test_a_record_whose_package_is_gone_is_a_quiet_miss(cache, tmp_path, recwarn):
    put(cache, tmp_path, "a").unlink()  # what an interrupted removal leaves
    assert find(cache, "a") is None
    put(cache, tmp_path, "a")
    assert find(cache, "a") is not None
    assert not recwarn.list


REMEMBERED = {"graph": key("a"), "program": {"entries": ["step"], "mutated_inputs": [0, 3]}}


def test_every_flipped_bit_of_an_index_file_is_noticed(cache):
    cache.remember(key("fast"), REMEMBERED)
    path = cache.directory / "index" / f"{key('fast')}.json"
    intact = path.read_bytes()
    for position in range(len(intact)):
        for bit in range(8):
            damaged = bytearray(intact)
            damaged[position] ^= 1 << bit
            path.write_bytes(damaged)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = cache.lookup(key("fast"))
            assert found is None or found == {"format": 2, **REMEMBERED}
            assert path.exists() == (found is not None)


def test_a_damaged_index_file_is_removed_with_one_warning(cache):
    cache.remember(key("fast"), REMEMBERED)
    assert cache.lookup(key("fast"))["graph"] == key("a")
    (cache.directory / "index" / f"{key('fast')}.json").write_text('{"format": 1, "gra')
    with pytest.warns(UserWarning, match=r"index.*is damaged"):
        assert cache.lookup(key("fast")) is None
    assert cache.lookup(key("fast")) is None


@pytest.mark.parametrize("name", ["../../etc/passwd", "..", "", "a/b", "A" * 64, key("a") + "\n"])
def test_keys_that_are_no_digests_are_refused(cache, name):
    for call in (cache.lookup, cache.forget, lambda k: cache.remember(k, {})):
        with pytest.raises(ExecutableError, match="no key of the executable cache"):
            call(name)
    with pytest.raises(ExecutableError, match="no key"), cache.holding(name):
        pass


def test_an_index_file_that_points_elsewhere_is_removed(cache):
    cache.remember(key("fast"), {"graph": "../../../tmp/evil", "program": {}})
    with pytest.warns(UserWarning, match="damaged"):
        assert cache.lookup(key("fast")) is None


def test_a_package_is_never_removed_before_its_record_is_written(cache, tmp_path, recwarn):
    stop = threading.Event()

    def look():
        while not stop.is_set():
            find(cache, "a")

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for _ in range(40):
            path = put(cache, tmp_path, "a")
            assert path.exists()
    finally:
        stop.set()
        looking.join()
    assert find(cache, "a") is not None
    assert not [w for w in recwarn if "damaged" in str(w.message)]


def test_the_oldest_entries_go_when_the_limit_is_reached(cache, tmp_path):
    for age, name in enumerate(["old", "used", "new"]):
        path = put(cache, tmp_path, name, size=3_000)
        os.utime(path, (1_000_000 + age, 1_000_000 + age))
    cache.remember(key("fast"), {"graph": key("used"), "program": {}})
    find(cache, "old")  # use counts, not creation
    put(cache, tmp_path, "newest", size=3_000)
    left = {entry.key for entry in cache.entries()}
    assert left == {key("old"), key("new"), key("newest")}
    assert cache.lookup(key("fast")) is None  # what pointed to it went with it


def test_entries_dated_in_the_future_leave_first(cache, tmp_path):
    later = time.time() + 10 * 365 * 86_400
    os.utime(put(cache, tmp_path, "future", size=3_000), (later, later))
    for name in ("a", "b", "c"):
        put(cache, tmp_path, name, size=3_000)
    assert {entry.key for entry in cache.entries()} == {key("a"), key("b"), key("c")}


def test_an_entry_in_use_is_not_pruned(cache, tmp_path):
    path = put(cache, tmp_path, "old", size=8_000)
    os.utime(path, (1_000_000, 1_000_000))
    with cache.holding(key("old")) as package:
        put(cache, tmp_path, "new", size=8_000)
        assert package is not None
        assert package.exists()


def test_an_entry_larger_than_the_limit_still_serves_its_program(cache, tmp_path):
    put(cache, tmp_path, "huge", size=2 * LIMIT_BYTES)
    assert find(cache, "huge") is not None


def test_clear_removes_all_and_says_how_much(cache, tmp_path):
    put(cache, tmp_path, "a", size=1_000)
    cache.remember(key("fast"), REMEMBERED)
    assert cache.clear() >= 1_000
    assert cache.entries() == []
    assert cache.lookup(key("fast")) is None
    assert list(cache.directory.iterdir()) == []


def test_clear_takes_all_files_of_an_entry_under_one_lock(cache, tmp_path, monkeypatch):
    put(cache, tmp_path, "a")
    held, original = [], _cache.file_lock

    @contextlib.contextmanager
    def recorded(path, **how):
        with original(path, **how):
            yield
            held.append(sorted(p.suffix for p in (cache.directory / "executables").iterdir()))

    monkeypatch.setattr(_cache, "file_lock", recorded)
    cache.clear()
    assert held[0] == []


def test_clear_removes_what_killed_processes_left(cache, tmp_path):
    put(cache, tmp_path, "a")
    code = (
        "import os, sys, pathlib, torchkiln.core as core\n"
        "for folder in ('.', 'executables', 'index'):\n"
        "    path = pathlib.Path(sys.argv[1], folder, 'x')\n"
        "    context = core.atomic_path(path); context.__enter__()\n"
        "    keep = globals().setdefault('kept', []); keep.append(context)\n"
        "os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", code, str(cache.directory)], check=False)
    assert len(list(cache.directory.rglob("*.torchkiln-tmp"))) == 3
    cache.clear()
    assert list(cache.directory.iterdir()) == []


def test_clear_leaves_other_files_alone(cache, tmp_path):
    put(cache, tmp_path, "a")
    strangers = [
        cache.directory / "notes.txt",
        cache.directory / "executables" / "mine.pt2",
        cache.directory / "index" / "notes.json",
        cache.directory / "locks" / "key-of-my-house",
    ]
    for path in strangers:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    cache.clear()
    assert all(path.read_text() == "mine" for path in strangers)


def test_a_folder_that_others_may_write_is_refused_unless_named(cache, tmp_path):
    put(cache, tmp_path, "a")
    cache.directory.chmod(0o777)
    with pytest.raises(TrustError, match=r"can be written by everybody.*TORCHKILN_TRUSTED_DIRS"):
        find(cache, "a")
    shared = ExecutableCache(cache.directory, LIMIT_BYTES, trusted=(cache.directory,))
    assert find(shared, "a") is not None


def test_a_package_that_others_may_write_is_refused(cache, tmp_path):
    put(cache, tmp_path, "a").chmod(0o666)
    with pytest.raises(TrustError, match="is native code and is not run"):
        find(cache, "a")


@pytest.mark.parametrize("umask", [0o000, 0o002])
def test_what_we_make_is_trusted_whatever_the_umask(tmp_path, umask):
    home = tmp_path / "home"
    home.mkdir()
    if os.geteuid() == 0:
        os.chown(home, -1, 12345)  # a group that is not private, which all below inherit
    home.chmod(0o2755)
    cache = ExecutableCache(home / "deep" / "cache", LIMIT_BYTES)
    before = os.umask(umask)
    try:
        put(cache, tmp_path, "a")
        cache.remember(key("fast"), REMEMBERED)
    finally:
        os.umask(before)
    assert find(cache, "a") is not None
    assert cache.lookup(key("fast")) is not None


def test_a_folder_that_a_team_shares_follows_the_umask(tmp_path):
    team = tmp_path / "team"
    cache = ExecutableCache(team / "cache", LIMIT_BYTES, trusted=(team,))
    before = os.umask(0o002)
    try:
        package = put(cache, tmp_path, "a")
    finally:
        os.umask(before)
    for path in (package, package.parent, cache.directory / "locks" / key("a")):
        assert path.stat().st_mode & 0o020


@pytest.mark.parametrize("folder", ["locks", "executables", "index"])
def test_every_folder_of_the_cache_is_looked_at_before_it_is_used(cache, tmp_path, folder):
    put(cache, tmp_path, "a")
    cache.remember(key("fast"), REMEMBERED)
    lock = cache.directory / "locks" / key("b")
    lock.symlink_to(tmp_path / "elsewhere")
    (cache.directory / folder).chmod(0o777)
    with pytest.raises(TrustError, match=f"{folder} can be written by everybody"):
        find(cache, "b")
    assert not (tmp_path / "elsewhere").exists()


def test_a_lock_that_is_a_link_is_not_followed(cache, tmp_path):
    put(cache, tmp_path, "a")
    (cache.directory / "locks" / key("b")).symlink_to(tmp_path / "elsewhere")
    assert find(cache, "b") is None
    assert not (tmp_path / "elsewhere").exists()


def test_limit_and_clear_count_also_where_there_are_no_locks(cache, tmp_path, monkeypatch):
    def no_locks(_descriptor, _kind):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    for name in ("a", "b", "c", "d"):
        put(cache, tmp_path, name, size=4_000)
    assert len(cache.entries()) == 2
    assert cache.clear() >= 8_000
    assert cache.entries() == []
