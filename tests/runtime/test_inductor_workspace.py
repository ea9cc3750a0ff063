"""Inductor loads libraries from its folder, so that folder must be the user's own."""

import os
import stat
import time

import pytest
from torch._inductor.runtime.cache_dir_utils import cache_dir, default_cache_dir

from torchkiln.core import TrustError
from torchkiln.runtime._inductor_workspace import inductor_workspace, private_workspace

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


def test_old_builds_are_dropped(home):
    workspace = home / "torchkiln" / "inductor"
    for name in ("old", "new", "precompiled_headers"):
        (workspace / name).mkdir(parents=True)
    for name in ("old", "precompiled_headers"):
        os.utime(workspace / name, (time.time() - 30 * 86_400,) * 2)
    with private_workspace():
        pass
    assert sorted(path.name for path in workspace.iterdir()) == ["new", "precompiled_headers"]
