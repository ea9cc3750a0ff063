"""Two runs want one name; runs that fail or are refused leave nothing behind."""

import multiprocessing

import pytest
from _tiny_bench import make_tiny_bench

from torchkiln.apps.cosmic import main as cosmic
from torchkiln.core._claims import claimed_folder


@pytest.fixture
def bench(tmp_path, monkeypatch, capsys):
    return make_tiny_bench(tmp_path, monkeypatch, capsys)


def test_a_second_run_of_a_name_does_not_overwrite_the_first(bench, tmp_path):
    assert bench.start("--run_name", "first")[0] == 0
    before = (tmp_path / "runs/first/results.json").read_bytes()
    code, err = bench.start("--run_name", "first")
    assert code == 1
    assert err == (
        "bench.py: runs/first holds the results of another run; choose another --run_name, or "
        "remove that folder\n"
    )
    assert (tmp_path / "runs/first/results.json").read_bytes() == before


def hold(folder, ready, end):
    with claimed_folder(folder):
        ready.set()
        end.wait(60)


def test_a_second_run_of_a_name_at_the_same_time_is_refused(bench, tmp_path):
    context = multiprocessing.get_context("fork")
    ready, end = context.Event(), context.Event()
    other = context.Process(target=hold, args=(tmp_path / "runs/first", ready, end))
    other.start()
    assert ready.wait(60)
    code, err = bench.start("--run_name", "first")
    end.set()
    other.join()
    assert code == 1
    assert err == (
        "bench.py: another run named 'first' is writing to runs/first now; wait for it, or choose "
        "another --run_name\n"
    )


def test_a_file_in_the_place_of_a_run_asks_for_another_name(bench, tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/first").touch()
    code, err = bench.start("--run_name", "first")
    assert code == 2
    assert "choose another --run_name or --output_dir" in err


def test_another_checkpoint_does_not_take_the_folder_of_a_run(bench):
    bench.start("--checkpoint", "--model_name", "mine")
    bench.start("--run_name", "other")
    code, err = bench(
        *("--resume", "--model_name", "mine", "--num_epochs", "3", "--run_name", "other")
    )
    assert code == 1
    assert "runs/other holds the results of another run" in err


def test_the_second_run_of_cosmic_tagger_is_refused_too(tmp_path, capsys, monkeypatch):
    (tmp_path / "output/first").mkdir(parents=True)
    (tmp_path / "output/first/results.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert cosmic(["mode=train", "run.id=first", "data.num_events=2"]) == 1
    assert "output/first holds the results of another run; choose another run.id" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "flags",
    [
        ["--target", "gab"],
        ["--root", "nowhere"],
        ["--max_num_atoms", "2"],
        ["--checkpoint_dir", "data/molecules.xyz"],
        ["--profile_dir", "data/molecules.xyz/profile"],
    ],
    ids=lambda flags: flags[0],
)
def test_a_start_that_fails_leaves_no_folder(bench, tmp_path, flags):
    before = set(tmp_path.iterdir())
    code, err = bench.start("--checkpoint", "--run_name", "first", "--profile_dir", "prof", *flags)
    assert code in (1, 2)
    assert "bench.py: " in err
    assert set(tmp_path.iterdir()) == before


def test_a_refused_resume_leaves_no_folder(bench, tmp_path):
    assert bench.start("--resume", "--model_name", "none")[0] == 1
    assert not (tmp_path / "checkpoints").exists()
    assert not (tmp_path / "runs").exists()


def test_a_folder_that_others_use_is_never_removed(bench, tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/notes.txt").write_text("mine")
    bench.start("--run_name", "first", "--target", "gab")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["notes.txt"]


def test_a_name_is_free_again_when_its_run_was_killed(bench, tmp_path):
    """A lock ends with its process: nothing goes stale."""
    context = multiprocessing.get_context("fork")
    ready, end = context.Event(), context.Event()
    other = context.Process(target=hold, args=(tmp_path / "runs/first", ready, end))
    other.start()
    assert ready.wait(60)
    other.kill()
    other.join()
    assert (tmp_path / "runs/first/.lock").exists()
    assert bench.start("--run_name", "first")[0] == 0
    assert (tmp_path / "runs/first/results.json").is_file()
    assert not (tmp_path / "runs/first/.lock").exists()
