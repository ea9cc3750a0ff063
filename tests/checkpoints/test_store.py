import errno
import hashlib
import json
import os
import resource
import stat
import subprocess
import sys
import warnings

import pytest
import torch

from torchkiln import CheckpointError, CheckpointStore
from torchkiln.checkpoints import find_non_finite
from torchkiln.core import read_sealed, write_sealed

FACTS = {"epoch": 3, "nested": {"list": [1, 2.5, None, "ä"], "flag": True}, "exact": 0.1 + 0.2}


def tensors(value=1.0):
    return {"weight": torch.full((3, 2), value), "count": torch.tensor(int(value))}


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "models" / "one")


def files(store, suffix):
    return sorted(path for path in store.directory.iterdir() if path.suffix == suffix)


def test_what_is_saved_comes_back(store):
    assert not store.exists()
    path = store.save(tensors(), FACTS)
    assert store.exists()
    loaded, facts = CheckpointStore(store.directory).load()
    assert facts == FACTS
    assert set(loaded) == {"weight", "count"}
    assert torch.equal(loaded["weight"], tensors()["weight"])
    assert loaded["count"].shape == ()
    assert json.loads(path.read_text())["content"]["facts"] == FACTS


DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8]


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool, torch.int8, torch.complex64], ids=str)
def test_every_dtype_and_layout_comes_back(store, dtype):
    values = torch.arange(12).reshape(3, 4).to(dtype)
    given = {
        "plain": values,
        "transposed": values.t(),
        "every second": values[::2, ::2],
        "scalar": values[1, 1],
        "empty": values[:0],
        "also empty": values[:0],
        "last": values[2:],
    }
    store.save(given, {})
    loaded, _ = store.load()
    for name, tensor in given.items():
        assert loaded[name].dtype == dtype
        assert torch.equal(loaded[name], tensor), name


def test_what_was_loaded_does_not_follow_its_file(store):
    store.save(tensors(1.0), FACTS)
    loaded, _ = store.load()
    path = files(store, ".safetensors")[0]
    # In place, as `cp` does it; a mapped file would change the tensors, or end the process.
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
    assert torch.equal(loaded["weight"], tensors(1.0)["weight"])
    path.write_bytes(b"")
    assert torch.equal(loaded["weight"], tensors(1.0)["weight"])


def test_tensors_that_are_the_same_are_written_once(store):
    large = torch.rand(1000)
    store.save(
        {"a": large, "b": large, "part": large[:10], "parameter": torch.nn.Parameter(large)}, {}
    )
    loaded, _ = store.load()
    assert loaded["b"] is loaded["a"]
    assert torch.equal(loaded["part"], large[:10])
    assert torch.equal(loaded["parameter"], large)
    (path,) = files(store, ".safetensors")
    assert path.stat().st_size < 2 * large.nbytes


def test_two_generations_are_kept(store):
    for value in range(5):
        store.save(tensors(float(value)), {"value": value})
    assert len(files(store, ".json")) == len(files(store, ".safetensors")) == 2
    assert CheckpointStore(store.directory).load().facts == {"value": 4}


def damage_nothing_left(path):
    path.write_bytes(b"")


def damage_truncated(path):
    path.write_bytes(path.read_bytes()[:-5])


def damage_one_bit(path):
    content = bytearray(path.read_bytes())
    content[-8] ^= 1
    path.write_bytes(content)


def damage_removed(path):
    path.unlink()


DAMAGES = [damage_nothing_left, damage_truncated, damage_one_bit, damage_removed]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda f: f.__name__)
def test_damaged_tensors_fall_back_with_a_warning(store, damage):
    store.save(tensors(1.0), {"value": 1})
    store.save(tensors(2.0), {"value": 2})
    damage(files(store, ".safetensors")[-1])
    with pytest.warns(UserWarning, match=r"000002\.json: .*the one before it is used"):
        loaded, facts = CheckpointStore(store.directory).load()
    assert facts == {"value": 1}
    assert torch.equal(loaded["weight"], torch.ones(3, 2))


@pytest.mark.parametrize("damage", DAMAGES[:2], ids=lambda f: f.__name__)
def test_damaged_facts_fall_back_with_a_warning(store, damage):
    store.save(tensors(), {"value": 1})
    store.save(tensors(), {"value": 2})
    damage(files(store, ".json")[-1])
    with pytest.warns(UserWarning, match="the one before it is used"):
        assert CheckpointStore(store.directory).load().facts == {"value": 1}


def test_changed_facts_are_noticed(store):
    path = store.save(tensors(), {"value": 1})
    path.write_text(path.read_text().replace('"value": 1', '"value": 7'))
    with pytest.raises(
        CheckpointError, match=r"every checkpoint .*json does not have its checksum"
    ):
        store.load()


def test_saving_after_damage_keeps_the_good_one(store):
    for value in (1, 2):
        store.save(tensors(), {"value": value})
    damage_truncated(files(store, ".safetensors")[-1])
    other = CheckpointStore(store.directory)
    with pytest.warns(UserWarning, match="damaged"):
        other.load()
    other.save(tensors(), {"value": 3})
    damage_truncated(files(store, ".safetensors")[-1])
    with pytest.warns(UserWarning, match="damaged"):
        assert other.load().facts == {"value": 1}


def test_nothing_to_load(store):
    with pytest.raises(CheckpointError, match="there is no checkpoint in"):
        store.load()


def test_another_format_is_named(store):
    path = store.save(tensors(), {})
    write_sealed(path, {**read_sealed(path), "format": 9})
    with pytest.raises(CheckpointError, match=r"has format 9, this version .* reads 2"):
        store.load()


def test_a_generation_of_another_version_is_not_thrown_away(store):
    path = store.save(tensors(), {})
    write_sealed(path, {**read_sealed(path), "format": 9})
    CheckpointStore(store.directory).save(tensors(), {})
    assert path.exists()


def test_checkpoints_of_the_format_before_are_named_and_kept(store):
    path = store.save(tensors(), {})
    sealed = read_sealed(path)
    facts_sha256 = hashlib.sha256(json.dumps(sealed["facts"]).encode()).hexdigest()
    path.write_text(json.dumps({**sealed, "format": 1, "facts_sha256": facts_sha256}))
    with pytest.raises(CheckpointError, match=r"has format 1, .* use the version that wrote it"):
        CheckpointStore(store.directory).load()
    CheckpointStore(store.directory).save(tensors(), {})
    assert path.exists()
    assert path.with_suffix(".safetensors").exists()


def test_a_folder_that_cannot_be_flushed_keeps_its_checkpoint(store, monkeypatch):
    original = os.fsync

    def refuse_folders(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "folders are not flushed here")
        original(descriptor)

    monkeypatch.setattr(os, "fsync", refuse_folders)
    store.save(tensors(), FACTS)
    assert CheckpointStore(store.directory).load().facts == FACTS


def test_half_of_a_generation_that_was_being_removed_goes_with_the_next_claim(store):
    for value in (1.0, 2.0):
        store.save(tensors(value), {})
    half = store.directory / "checkpoint-000000.safetensors"
    unfinished = store.directory / "checkpoint-000003.safetensors"
    for path in (half, unfinished):
        path.write_bytes(b"tensors")
    with CheckpointStore(store.directory).claim():
        assert not half.exists()
        assert unfinished.exists()  # perhaps of a save that goes on
    assert len(files(store, ".json")) == 2


def test_every_flipped_bit_of_the_header_falls_back_to_the_older_one(store):
    tied = torch.ones(3)
    given = {"a": tied, "b": tied, "c": torch.zeros(3), "d": torch.full((3,), 2.0)}
    store.save(given, {"value": 1})
    newest = store.save(given, {"value": 2})
    intact = newest.read_bytes()
    used_older = 0
    for position in range(len(intact)):
        for bit in range(0, 8, 3):
            damaged = bytearray(intact)
            damaged[position] ^= 1 << bit
            newest.write_bytes(damaged)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                loaded, facts = CheckpointStore(store.directory).load()
            assert set(loaded) == set(given)
            assert all(torch.equal(loaded[name], given[name]) for name in given)
            assert facts in ({"value": 1}, {"value": 2})
            used_older += facts == {"value": 1}
    assert used_older > len(intact) * 2


FOREIGN = [
    "best-checkpoint-000001.safetensors",
    "checkpoint-notes.txt",
    "my-checkpoint-final.pt",
    "checkpoint-7.json",
    "checkpoint-0000007.safetensors",
    ".checkpoint-000001.safetensors.abc.tmp",
]


def test_saving_touches_nothing_that_the_store_did_not_write(store):
    store.directory.mkdir(parents=True)
    for name in FOREIGN:
        (store.directory / name).write_text("mine")
    (store.directory / "checkpoint-500").mkdir()
    for value in range(4):
        store.save(tensors(), {"value": value})
    assert all((store.directory / name).read_text() == "mine" for name in FOREIGN)
    assert (store.directory / "checkpoint-500").is_dir()


def test_a_tensor_without_values_is_named(store):
    with pytest.raises(CheckpointError, match="'ghost' cannot be saved"):
        store.save({"ghost": torch.empty(3, device="meta")}, {})
    assert not store.exists()


class Unwilling(dict):
    def items(self):
        raise RuntimeError("not today")


def test_facts_that_raise_while_they_are_saved(store):
    with pytest.raises(CheckpointError, match="not today"):
        store.save(tensors(), {"inner": Unwilling(a=1)})


def test_facts_that_are_not_json(store):
    with pytest.raises(CheckpointError, match="plain JSON values"):
        store.save(tensors(), {"tensor": torch.ones(1)})
    assert not store.exists()


@pytest.mark.parametrize("num_bytes", [2_000, 40_000], ids=["tensors", "facts"])
def test_a_full_disk_leaves_the_last_good_one(store, num_bytes):
    """The limit on file sizes makes writing fail as a full disk does, after some bytes."""
    store.save(tensors(1.0), {"value": 1})
    before = sorted(path.name for path in store.directory.iterdir())
    many = {"weight": torch.ones(1000)} if num_bytes < 4_000 else tensors(2.0)
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, old[1]))
    try:
        with pytest.raises(CheckpointError, match=r"could not be written .*the last good one is"):
            store.save(many, {"value": "x" * 50_000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert sorted(path.name for path in store.directory.iterdir()) == before
    assert store.load().facts == {"value": 1}


def test_no_space_left_is_said(store, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(CheckpointError, match=r"No space left on device\), there is none before"):
        store.save(tensors(), {})
    assert not store.exists()


def test_an_interrupt_while_saving_leaves_the_last_good_one(store, monkeypatch):
    store.save(tensors(1.0), {"value": 1})
    replace = os.replace

    def interrupted(source, target):
        if str(target).endswith(".json"):
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.save(tensors(2.0), {"value": 2})
    assert store.load().facts == {"value": 1}
    store.save(tensors(3.0), {"value": 3})
    assert float(store.load().tensors["weight"][0, 0]) == 3.0


def test_what_a_killed_process_left_is_removed(store):
    store.save(tensors(), {})
    code = (
        "import sys, torch, safetensors.torch\n"
        "from torchkiln import CheckpointStore\n"
        "import torchkiln.checkpoints._files as files\n"
        "def killed(tensors, path):\n"
        "    path.with_name('.tmpAbc123').write_bytes(b'of safetensors itself')\n"
        "    import os; os._exit(9)\n"
        "files.save_file = killed\n"
        "CheckpointStore(sys.argv[1]).save({'a': torch.ones(3)}, {})"
    )
    command = [sys.executable, "-c", code, str(store.directory)]
    assert subprocess.run(command, check=False).returncode == 9
    orphan = store.directory / "checkpoint-000007.safetensors"
    orphan.write_bytes(b"without a header")
    code = "import sys, torch; from torchkiln import CheckpointStore\n" + (
        "CheckpointStore(sys.argv[1]).save({'a': torch.ones(3)}, {'value': 2})"
    )
    subprocess.run([sys.executable, "-c", code, str(store.directory)], check=True)
    assert len(list(store.directory.iterdir())) == 4  # two generations, two files each


def test_one_process_claims_a_directory_once(store):
    with store.claim():
        again = CheckpointStore(store.directory)
        with pytest.raises(CheckpointError, match=r"this process .* already"), again.claim():
            pass
        lock = store.directory / ".lock"
        code = f"import fcntl; fcntl.lockf(open({str(lock)!r}, 'a'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert "BlockingIOError" in other.stderr  # the outer claim still holds
    with store.claim():
        pass


def test_a_second_process_cannot_claim_the_same_directory(store):
    store.save(tensors(), {})
    lock = store.directory / ".lock"
    with store.claim():
        code = f"import fcntl; fcntl.lockf(open({str(lock)!r}, 'a'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert "BlockingIOError" in other.stderr
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_a_claimed_directory_is_refused(store):
    store.directory.mkdir(parents=True)
    code = (
        "import fcntl, sys; file = open(sys.argv[1], 'a');"
        "fcntl.lockf(file, fcntl.LOCK_EX); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(store.directory / ".lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(CheckpointError, match="another process is training"), store.claim():
            pass
        other.stdin.close()
    with store.claim():
        pass


def test_a_claim_under_which_nothing_was_saved_leaves_no_folder(store):
    with store.claim():
        assert store.directory.is_dir()
    assert not store.directory.parent.exists()


def test_a_place_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("no directory")
    store = CheckpointStore(tmp_path / "file" / "model")
    with pytest.raises(CheckpointError, match="cannot be written to"), store.claim():
        pass
    with pytest.raises(CheckpointError, match="could not be written"):
        store.save(tensors(), {})


def test_facts_come_back_as_json_gives_them(store):
    store.save(tensors(), {"tuple": (1, 2), 1: "one", "1": "uno", "nan": float("nan")})
    facts = store.load().facts
    assert facts["tuple"] == [1, 2]
    assert facts["1"] == "uno"
    assert facts["nan"] != facts["nan"]


def test_non_finite_tensors_are_found():
    good = {"a": torch.ones(2), "b": torch.tensor([1, 2])}
    assert find_non_finite(good) is None
    assert find_non_finite({**good, "c": torch.tensor([1.0, float("nan")])}) == "c"
    assert find_non_finite({**good, "d": torch.tensor(float("inf"))}) == "d"
