"""A job that torchrun starts again goes on from what it saved itself, and from nothing else."""

import pytest
import torch

from torchkiln import CheckpointStore
from torchkiln.training._restarts import goes_on, is_restarted, job_name


@pytest.fixture
def attempt(monkeypatch):
    def begin(number, run="abc"):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(number))
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", run)

    return begin


def save(folder, **facts):
    CheckpointStore(folder).save({"x": torch.zeros(1)}, facts)


def test_without_a_launcher_there_is_no_job(tmp_path):
    save(tmp_path, job=None)
    assert job_name() is None
    assert not is_restarted()
    assert not goes_on(tmp_path)


@pytest.mark.parametrize("run", ["abc", "none"])
def test_only_the_second_attempt_of_the_same_job_goes_on(run, attempt, tmp_path):
    attempt(0, run)
    save(tmp_path, job=job_name())
    assert not goes_on(tmp_path)
    attempt(1, run)
    assert goes_on(tmp_path)
    attempt(1, "another")
    assert not goes_on(tmp_path)


def test_a_checkpoint_from_before_the_job_is_not_continued_unasked(attempt, tmp_path):
    save(tmp_path)
    attempt(1)
    assert not goes_on(tmp_path)
    assert not goes_on(tmp_path / "missing")
