"""`torchkiln data` from the command line."""

import importlib.util
import os
import subprocess
import sys

import pytest

from torchkiln import cli

needs_source = pytest.mark.skipif(
    importlib.util.find_spec("qm9pack") is None,
    reason="needs qm9pack, the source of QM9 (pip install qm9pack)",
)


@pytest.fixture
def tables(tmp_path):
    """The first rows of the tables of qm9pack."""
    from torchkiln.datasets._qm9_source import PARTS, find_source

    folder = tmp_path / "tables"
    folder.mkdir()
    for number, name in enumerate(PARTS):
        with (find_source() / name).open() as whole:
            rows = [next(whole) for _ in range(20 if number == 0 else 1)]
        (folder / name).write_text("".join(rows))
    os.environ["TORCHKILN_DATA_DIR"] = str(tmp_path / "data_dir")
    return folder


@needs_source
def test_data_qm9_writes_the_folder_and_names_it(tables, tmp_path, capsys):
    root = tmp_path / "QM9"
    command = ["data", "qm9", "--root", str(root), "--source", str(tables), "--limit", "12"]
    assert cli.main(command) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{root}\n"
    assert "12 molecules are ready" in printed.err
    assert (root / "processed" / "data_v3.pt").is_file()
    assert cli.main(command) == 0
    assert "everything is in place" in capsys.readouterr().err


@needs_source
@pytest.mark.parametrize("flag", [["--force"], ["--force", "true"]])
def test_force_needs_no_value(tables, tmp_path, capsys, flag):
    root = tmp_path / "QM9"
    (root / "raw").mkdir(parents=True)
    (root / "raw" / "gdb9.sdf").write_text("downloaded")
    command = ["data", "qm9", "--root", str(root), "--source", str(tables), "--limit", "2"]
    assert cli.main([*command, "--force", "false"]) == 2
    assert "not written by torchkiln" in capsys.readouterr().err
    assert cli.main([*command[:2], *flag, *command[2:]]) == 0
    assert "2 molecules are ready" in capsys.readouterr().err


def test_a_missing_source_is_one_line_with_the_remedy(tmp_path, capsys):
    assert cli.main(["data", "qm9", "--root", str(tmp_path), "--source", str(tmp_path)]) == 2
    assert "it must contain the tables of qm9pack" in capsys.readouterr().err


def test_help_states_the_space_and_loads_no_torch():
    code = (
        "import sys; from torchkiln.cli import main\n"
        "try: main(['data', 'qm9', '--help'])\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    for words in ("0.9 GB", "TORCHKILN_DATA_DIR", "--source", "--force"):
        assert words in done.stdout
