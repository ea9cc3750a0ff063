import multiprocessing

import pytest

from torchkiln.core._claims import LOCK_NAME, Claimed, claimed_folder, is_claimed, made_folder


def test_a_folder_that_stays_empty_goes_with_all_that_was_made_for_it(tmp_path):
    with made_folder(tmp_path / "a/b/c"):
        assert (tmp_path / "a/b/c").is_dir()
    assert list(tmp_path.iterdir()) == []


def test_what_was_there_or_is_used_stays(tmp_path):
    (tmp_path / "a").mkdir()
    with made_folder(tmp_path / "a"):
        pass
    with made_folder(tmp_path / "a/b/c"):
        (tmp_path / "a/b/other").write_text("of somebody else")
    assert (tmp_path / "a/b/other").is_file()
    assert not (tmp_path / "a/b/c").exists()


def test_a_folder_goes_after_an_error_too(tmp_path):
    with pytest.raises(KeyboardInterrupt), made_folder(tmp_path / "a"):
        raise KeyboardInterrupt
    assert not (tmp_path / "a").exists()


def test_a_new_folder_must_be_new(tmp_path):
    with pytest.raises(FileExistsError), made_folder(tmp_path, is_new=True):
        pass
    assert tmp_path.is_dir()


def test_a_claim_keeps_the_same_process_out(tmp_path):
    folder = tmp_path / "run"
    with claimed_folder(folder):
        assert is_claimed(folder)
        with pytest.raises(Claimed) as found, claimed_folder(folder):
            pass
        assert found.value.by_this_process
        assert is_claimed(folder)
    assert not is_claimed(folder)
    assert not folder.exists()


def look(folder, answers):
    try:
        with claimed_folder(folder):
            answers.put("claimed")
    except Claimed as found:
        answers.put((is_claimed(folder), found.by_this_process))


def test_a_claim_keeps_other_processes_out(tmp_path):
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    with claimed_folder(tmp_path / "run"):
        other = context.Process(target=look, args=(tmp_path / "run", answers))
        other.start()
        other.join()
        assert answers.get() == (True, False)
        assert is_claimed(tmp_path / "run")  # looking at it did not end it
    other = context.Process(target=look, args=(tmp_path / "run", answers))
    other.start()
    other.join()
    assert answers.get() == "claimed"
    answers.close()


@pytest.mark.parametrize("is_lock_kept", [True, False])
def test_the_lock_stays_beside_content_if_it_should(tmp_path, is_lock_kept):
    with claimed_folder(tmp_path, is_lock_kept=is_lock_kept):
        (tmp_path / "results").write_text("")
    assert (tmp_path / LOCK_NAME).exists() == is_lock_kept
