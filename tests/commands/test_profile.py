"""`torchkiln profile`: what was recorded, as tables."""

from __future__ import annotations

import json
import re

import pytest

from torchkiln.cli import main
from torchkiln.core import counter, span
from torchkiln.profiling import record


@pytest.fixture
def profile(tmp_path):
    with record(tmp_path / "profile"):
        for number in (1, 2):
            with span("training", f"epoch {number}"):
                with span("training", "wait for data"):
                    pass
                with span("training", "step"):
                    counter("training", "molecules/s", 1234.5)
    return tmp_path / "profile"


def test_show_prints_processes_work_numbers_and_epochs(profile, capsys):
    for path in (profile, profile / "trace.json"):
        assert main(["profile", "show", str(path)]) == 0
        out = capsys.readouterr().out
        for words in ("system profile in", "where its time went", "where the time of the epochs"):
            assert words in out
        assert re.search(r"training +step +2 ", out)
        assert re.search(r"molecules/s +2 +1,?23[45] ", out)
        assert re.search(r"epoch 1 ", out)
        assert "not ended in peace" not in out


def test_show_tells_of_a_run_that_was_killed(profile, capsys):
    (part,) = profile.glob("*.*.trace.json")
    content = part.read_bytes()
    part.write_bytes(content[: content.rindex(b'{"ph":"E"') + 20])
    assert main(["profile", "show", str(profile)]) == 0
    out = capsys.readouterr().out
    assert "not ended in peace" in out
    assert "epoch 2 (not over)" in out
    assert "1 stretch was still going on" in out


def test_merge_writes_one_file(profile, capsys):
    (profile / "trace.json").unlink()
    assert main(["profile", "merge", str(profile)]) == 0
    assert f"wrote {profile / 'trace.json'}" in capsys.readouterr().out
    assert json.loads((profile / "trace.json").read_text())


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["show"], 2, "torchkiln profile show PATH"),
        (["merge"], 2, "torchkiln profile merge DIRECTORY"),
        (["show", "missing"], 2, "there is no missing"),
        (["show", "."], 2, "there is no profile in ."),
        (["merge", "."], 1, "there is no recording in ."),
    ],
)
def test_what_is_not_there_is_one_line(args, code, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["profile", *args]) == code
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err
    assert err.partition("\nMore: ")[0].strip().count("\n") == 0
