"""Inductor loads libraries from its folder, so that folder must be the user's own."""

import errno
import fcntl
import os
import stat
import subprocess
import sys

import pytest
from torch._inductor.runtime.cache_dir_utils import cache_dir, default_cache_dir

from torchkiln.core import CompileError, TrustError, _places
from torchkiln.runtime.compile._inductor_workspace import inductor_workspace, private_workspace

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    tmp_path.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    return tmp_path


def test_builds_work_in_a_private_folder(home):
    with private_workspace():
        folder = cache_dir()
    assert folder == str(home / "torchkiln" / "inductor")
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert VARIABLE not in os.environ


def test_a_folder_that_torch_chose_is_not_taken_for_the_users(home, monkeypatch):
    monkeypatch.setenv(VARIABLE, default_cache_dir())  # as any torch.compile leaves it
    assert inductor_workspace() == home / "torchkiln" / "inductor"
    with private_workspace():
        assert cache_dir() == str(home / "torchkiln" / "inductor")
    assert os.environ[VARIABLE] == default_cache_dir()


def test_the_users_choice_wins(home, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(home / "mine"))
    with private_workspace():
        assert cache_dir() == str(home / "mine")
    assert os.environ[VARIABLE] == str(home / "mine")


@pytest.mark.parametrize("named", [True, False])
def test_a_folder_that_others_may_write_is_refused(home, monkeypatch, named):
    if named:
        monkeypatch.setenv(VARIABLE, str(home / "shared" / "inductor"))
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", str(home / "shared"))
    (home / "shared").mkdir()
    (home / "shared").chmod(0o777)
    with pytest.raises(TrustError, match="shared can be written by everybody"), private_workspace():
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders to other users")
def test_a_folder_that_somebody_prepared_is_refused(home):
    prepared = home / "torchkiln" / "inductor"
    prepared.mkdir(parents=True)
    os.chown(prepared, 12345, -1)
    with pytest.raises(TrustError, match="with number 12345"), private_workspace():
        pass


OLD_NAMES = ["ab", "c" + "a2" * 25 + "b", "fxgraph", "locks"]
OLDEN = (1_000_000, 1_000_000)


def make_old(folder, names):
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "file").touch()
        os.utime(folder / name, OLDEN)


def folders_in(path):
    return sorted(entry.name for entry in path.iterdir() if entry.is_dir())


def test_old_builds_are_dropped_and_nothing_else(home):
    workspace = home / "torchkiln" / "inductor"
    make_old(workspace, [*OLD_NAMES, "precompiled_headers", "thesis", ".ssh"])
    (workspace / "cd").mkdir()
    with private_workspace():
        pass
    assert folders_in(workspace) == [".ssh", "cd", "precompiled_headers", "thesis"]


@pytest.mark.slow
def test_nothing_is_dropped_while_another_build_runs(home):
    workspace = home / "torchkiln" / "inductor"
    code = (
        "from torchkiln.runtime.compile._inductor_workspace import private_workspace\n"
        "with private_workspace(): pass"
    )
    other = [sys.executable, "-W", "ignore", "-c", code]
    environment = dict(os.environ)  # without the variable, which names the folder during a build
    with private_workspace():
        make_old(workspace, ["ab"])
        subprocess.run(other, check=True, env=environment)
        assert (workspace / "ab").is_dir()
    subprocess.run(other, check=True, env=environment)
    assert not (workspace / "ab").exists()


@pytest.mark.parametrize("spelling", ["{}", "{}/", "./mine", "mine/../mine"])
def test_a_folder_of_the_users_keeps_its_content_and_its_permissions(home, monkeypatch, spelling):
    mine = home / "mine"
    make_old(mine, [*OLD_NAMES, "thesis", ".ssh"])
    mine.chmod(0o755)
    monkeypatch.chdir(home)
    monkeypatch.setenv(VARIABLE, spelling.format(mine))
    with private_workspace():
        assert os.path.samefile(cache_dir(), mine)
    assert folders_in(mine) == sorted([*OLD_NAMES, "thesis", ".ssh"])
    assert stat.S_IMODE(mine.stat().st_mode) == 0o755
    assert os.environ[VARIABLE] == spelling.format(mine)


def test_a_folder_where_everybody_may_put_code_is_refused(home, monkeypatch):
    (home / "sticky").mkdir()
    (home / "sticky").chmod(0o1777)
    monkeypatch.setenv(VARIABLE, str(home / "sticky"))
    with pytest.raises(TrustError, match="may not be yours"), private_workspace():
        pass


@pytest.fixture
def no_fallback_yet(monkeypatch):
    monkeypatch.setattr(_places, "_instead", [])


def test_without_a_home_builds_work_in_a_private_temporary_folder(
    home, monkeypatch, no_fallback_yet
):
    (home / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "file"))
    with pytest.warns(UserWarning, match="cannot be used") as told, private_workspace():
        folder = cache_dir()
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert told[0].filename == __file__
    with private_workspace():  # said once
        assert cache_dir() == folder


def test_a_named_folder_that_cannot_be_written_is_told(home, monkeypatch):
    (home / "file").touch()
    monkeypatch.setenv(VARIABLE, str(home / "file" / "inductor"))
    with pytest.raises(CompileError, match=f"set {VARIABLE} to a folder"), private_workspace():
        pass


@pytest.mark.parametrize("named", [True, False])
def test_where_there_are_no_locks_builds_work_elsewhere(home, monkeypatch, named, no_fallback_yet):
    """Inductor would wait for them, for ten minutes each."""
    real = fcntl.flock

    def no_locks(descriptor, kind):
        if os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(home)):
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        real(descriptor, kind)

    if named:
        monkeypatch.setenv(VARIABLE, str(home / "mine"))
    make_old(home / "torchkiln" / "inductor", ["ab"])
    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.warns(UserWarning, match="has no locks"), private_workspace():
        assert not cache_dir().startswith(str(home))
    assert (home / "torchkiln" / "inductor" / "ab").is_dir()
