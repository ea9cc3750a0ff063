import subprocess
import sys

import pytest
from _sample_profiles import (
    big_profile,
    hostile,
    make_profile,
    never_run,
    one_call,
    small_profile,
    too_large,
)

from torchkiln import cli
from torchkiln.profiling.graph._file import save_profile
from torchkiln.profiling.views._totals import VIEWS


@pytest.fixture
def folder(tmp_path):
    save_profile(small_profile(), tmp_path / "before" / "training")
    slower = make_profile(num_blocks=2, rows_per_call=2, training=True, seed=0, slower=2.0)
    save_profile(slower, tmp_path / "after" / "training")
    return tmp_path


def call(capsys, *args):
    code = cli.main(["profile", *map(str, args)])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_profile_is_shown(folder, capsys):
    code, out, _ = call(capsys, "show", folder / "before")
    assert code == 0
    for text in (
        *("training: Transformer", "executable", "outside", "waiting", "3.52 ms", "~ estimate"),
        *("examples/transformer.py:44", "blocks.0.attention.qkv", "aten.addmm", "backward"),
        *("Memory at the peak, 85.27 MB", "optimiser state", "What to change", "recompute=True"),
    ):
        assert text in out, text


@pytest.mark.parametrize("by", VIEWS)
def test_one_view_is_shown(by, folder, capsys):
    code, out, _ = call(capsys, "show", folder / "before", "--by", by, "--top", 3)
    assert code == 0
    assert ("others" in out) is (by != "phase")
    assert "What to change" not in out


@pytest.mark.parametrize("make", [big_profile, never_run, too_large, one_call, hostile])
@pytest.mark.parametrize("columns", ["60", "200"])
def test_all_profiles_fit_into_all_widths(make, columns, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("NO_COLOR", "1")
    save_profile(make(), tmp_path)
    code, out, _ = call(capsys, "show", tmp_path)
    assert code == 0
    assert max(map(len, out.splitlines())) <= int(columns)
    assert "\x1b" not in out
    code, out, _ = call(capsys, "show", tmp_path, "--by", "line")
    assert code == 0
    assert ("nothing was run" in out) is (make in (never_run, too_large))


def test_what_does_not_fit_is_shown_with_its_remedies(tmp_path, capsys):
    save_profile(too_large(), tmp_path)
    _, out, _ = call(capsys, "show", tmp_path)
    assert "does not fit into" in out
    assert "what helps: Use batches of 32" in out


def test_all_programs_of_a_folder_are_shown(folder, capsys):
    save_profile(small_profile(training=False), folder / "before" / "inference")
    _, out, _ = call(capsys, "show", folder / "before")
    assert out.index("inference: Transformer") < out.index("training: Transformer")


def test_two_profiles_are_compared(folder, capsys):
    code, out, _ = call(capsys, "diff", folder / "before", folder / "after", "--by", "line")
    assert code == 0
    for text in ("before", "after", "examples/transformer.py:41", "total", "outside", "waiting"):
        assert text in out, text


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_rows_that_are_compared_can_be_told_apart(columns, folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    code, out, _ = call(capsys, "diff", folder / "before", folder / "after", "--by", "row")
    assert code == 0
    assert max(map(len, out.splitlines())) <= columns
    heads = [line for line in out.splitlines() if "change" in line]
    assert len(heads) == 2
    assert all("what" in head for head in heads)
    assert "forwa" in out
    assert "without: what" not in out


def test_of_several_programs_the_common_one_is_compared(folder, capsys):
    save_profile(small_profile(training=False), folder / "before" / "inference")
    code, _, _ = call(capsys, "diff", folder / "before", folder / "after")
    assert code == 0
    save_profile(small_profile(training=False), folder / "after" / "inference")
    code, _, err = call(capsys, "diff", folder / "before", folder / "after")
    assert code == 2
    assert "name one on each side" in err


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["show"], "say which profile"),
        (["show", "nowhere"], "there is no nowhere"),
        (["show", "{}", "--top", "0"], "use at least 1"),
        (["show", "{}", "--by", "lines"], "line"),
        (["diff", "{}"], "comparing needs two profiles, got 1"),
        (["diff", "{}", "nowhere"], "there is no nowhere"),
    ],
)
def test_mistakes_are_one_line_that_names_the_fix(args, told, folder, capsys):
    code, out, err = call(capsys, *(arg.format(folder / "before") for arg in args))
    assert code != 0
    assert told in err
    assert "Traceback" not in err
    assert out == ""


def test_profiles_are_shown_without_torch(folder):
    code = (
        "import sys; from torchkiln.cli import main; "
        f"main(['profile', 'show', {str(folder / 'before')!r}]); "
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
