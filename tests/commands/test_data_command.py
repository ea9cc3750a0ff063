"""`torchkiln data` from the command line."""

import gzip
import importlib.util
import os
import struct
import subprocess
import sys

import h5py
import numpy as np
import pytest

from torchkiln import cli
from torchkiln.commands import _data as commands
from torchkiln.core import OptionsError, StoreError

needs_source = pytest.mark.skipif(
    importlib.util.find_spec("qm9pack") is None,
    reason="needs qm9pack, the source of QM9 (pip install qm9pack)",
)


@pytest.fixture
def tables(tmp_path):
    """The first rows of the tables of qm9pack."""
    from torchkiln.datasets.qm9._source import PARTS, find_source

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
    assert cli.main([*command, "--force", "false"]) == 1
    assert "not written by torchkiln" in capsys.readouterr().err
    assert cli.main([*command[:2], *flag, *command[2:]]) == 0
    assert "2 molecules are ready" in capsys.readouterr().err


def test_a_missing_source_is_one_line_with_the_remedy(tmp_path, capsys):
    assert cli.main(["data", "qm9", "--root", str(tmp_path), "--source", str(tmp_path)]) == 1
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


@needs_source
def test_qm9_without_a_root_is_parsed_and_kept(tables, tmp_path, capsys):
    commands.data_qm9(source=tables)
    printed = capsys.readouterr().out
    kept = list((tmp_path / "data_dir").glob("qm9-*.npz"))
    assert len(kept) == 1
    for words in ("molecules", "19", "U0_atom", "parsed and kept", "source"):
        assert words in printed
    commands.data_qm9(source=tables)
    assert "read from there" in capsys.readouterr().out
    kept[0].write_bytes(b"damaged")
    commands.data_qm9(source=tables, force=True)
    assert "parsed and kept" in capsys.readouterr().out
    assert kept[0].stat().st_size > 1000


def test_a_limit_belongs_to_files_of_pyg():
    with pytest.raises(OptionsError, match="--limit is for files of PyG"):
        commands.data_qm9(limit=3)


@pytest.fixture
def data_dir(tmp_path):
    """A data directory with what torchkiln keeps, and with what it does not."""
    folder = tmp_path / "data_dir"
    os.environ["TORCHKILN_DATA_DIR"] = str(folder)
    outside = tmp_path / "outside"
    for path in (
        folder / "qm9-0123.npz",
        folder / ".qm9-0123.npz.abc.tmp",
        folder / "water" / "clusters.npz",
        folder / "mine.npz",
        folder / "native" / "helper.so",
        folder / "water" / "notes.txt",
        outside / "qm9-precious.npz",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"0" * 1000)
    (folder / "qm9-link.npz").symlink_to(outside / "qm9-precious.npz")
    return folder


def files_below(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_dir())


def test_clear_deletes_what_torchkiln_keeps_and_nothing_else(data_dir, tmp_path, capsys):
    before = files_below(data_dir)
    commands.data_clear(dry_run=True)
    shown = capsys.readouterr()
    assert files_below(data_dir) == before
    assert "4 files would be deleted" in shown.err
    commands.data_clear()
    printed = capsys.readouterr()
    assert printed.out == shown.out
    assert "clusters.npz (0.0 MB)" in printed.out
    assert "4 files deleted" in printed.err
    assert files_below(data_dir) == ["mine.npz", "native/helper.so", "water/notes.txt"]
    assert (tmp_path / "outside" / "qm9-precious.npz").is_file()


def test_clear_does_not_leave_the_data_directory(data_dir, tmp_path, capsys):
    (tmp_path / "outside" / "clusters.npz").write_bytes(b"mine")
    (data_dir / "water").rename(data_dir / "elsewhere")
    (data_dir / "water").symlink_to(tmp_path / "outside")
    commands.data_clear()
    assert (tmp_path / "outside" / "clusters.npz").is_file()


def test_nothing_to_clear_is_no_error(tmp_path, capsys):
    os.environ["TORCHKILN_DATA_DIR"] = str(tmp_path / "none")
    commands.data_clear()
    assert "0 files deleted" in capsys.readouterr().err


def test_the_list_names_every_dataset(data_dir, capsys):
    commands.data_list()
    printed = capsys.readouterr().out
    for words in ("qm9", "water", "fashion_mnist", "cosmic", "2 files", "1 files"):
        assert words in printed


def write_fashion_mnist(folder, *, packed=True):
    from torchkiln.datasets.fashion_mnist._files import FILES

    folder.mkdir(parents=True)
    for name, (magic, sizes) in FILES.items():
        content = struct.pack(f">{1 + len(sizes)}I", magic, *sizes) + bytes(int(np.prod(sizes)))
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content, compresslevel=1))
        else:
            (folder / name).write_bytes(content)
    return folder


def test_fashion_mnist_is_found_as_torchvision_keeps_it(tmp_path, capsys):
    write_fashion_mnist(tmp_path / "FashionMNIST" / "raw")
    commands.data_fashion_mnist(tmp_path)
    printed = capsys.readouterr().out
    assert "60000 x 28 x 28" in printed
    assert "load_fashion_mnist" in printed


def test_damaged_images_are_named(tmp_path):
    folder = write_fashion_mnist(tmp_path / "images", packed=False)
    labels = folder / "t10k-labels-idx1-ubyte"
    labels.write_bytes(labels.read_bytes()[:-1])
    with pytest.raises(
        StoreError, match="ubyte is truncated: it holds 10007 bytes instead of 10008"
    ):
        commands.data_fashion_mnist(folder)
    labels.unlink()
    packed = folder / f"{labels.name}.gz"
    packed.write_bytes(gzip.compress(b"junk" * 100)[:-9])
    with pytest.raises(StoreError, match=r"ubyte\.gz is damaged"):
        commands.data_fashion_mnist(folder)
    packed.write_bytes(gzip.compress(b"junkjunk"))
    with pytest.raises(StoreError, match=r"begins with .* instead of \[2049, 10000\]"):
        commands.data_fashion_mnist(folder)
    packed.unlink()
    with pytest.raises(StoreError, match=r"holds no t10k-labels.*dataset-fashion-mnist"):
        commands.data_fashion_mnist(folder)


def write_events(path, *, num_events=2):
    from torchkiln.datasets.cosmic._files import GROUPS

    with h5py.File(path, "w") as file:
        file["Events/event_id"] = np.zeros(num_events)
        for group in GROUPS:
            for table in ("extents", "image_meta", "voxel_extents", "voxels"):
                rows = 2 if table == "extents" else 5000
                file[f"Data/{group}/{table}"] = np.zeros(rows, [("first", "u8"), ("N", "u8")])


def test_cosmic_events_are_counted(tmp_path, capsys):
    write_events(tmp_path / "light.h5")
    commands.data_cosmic(tmp_path)
    assert "2 events, 5,000 pixels" in capsys.readouterr().out


def test_damaged_events_are_named(tmp_path):
    path = tmp_path / "light.h5"
    with pytest.raises(OptionsError, match="--root FOLDER"):
        commands.data_cosmic()
    with pytest.raises(StoreError, match="holds no larcv3 events"):
        commands.data_cosmic(tmp_path)
    write_events(path, num_events=3)
    with pytest.raises(StoreError, match=r"light\.h5 has 3 events but 2 entries"):
        commands.data_cosmic(tmp_path)
    write_events(path)
    path.write_bytes(path.read_bytes()[:-20_000])
    with pytest.raises(StoreError, match=r"light\.h5 is damaged"):
        commands.data_cosmic(path)
    path.write_text("text")
    with pytest.raises(StoreError, match=r"light\.h5 is damaged"):
        commands.data_cosmic(tmp_path)


def test_the_commands_are_light_to_import():
    code = "import sys, torchkiln.commands._data; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_command_line_reaches_all_of_them(data_dir, tmp_path, capsys):
    assert cli.main(["data", "list"]) == 0
    assert "fashion_mnist" in capsys.readouterr().out
    assert cli.main(["data", "clear", "--dry_run", "true"]) == 0
    assert "4 files would be deleted" in capsys.readouterr().err
    write_events(tmp_path / "light.h5")
    assert cli.main(["data", "cosmic", "--root", str(tmp_path)]) == 0
    assert "light.h5" in capsys.readouterr().out
    for args, code, words in (
        (["cosmic"], 2, "--root FOLDER"),
        (["fashion_mnist", "--root", str(tmp_path)], 1, "dataset-fashion-mnist"),
        (["qm9", "--source", str(tmp_path)], 1, "it must contain the tables of qm9pack"),
        (["water", "--subset", "none"], 2, "none"),
    ):
        assert cli.main(["data", *args]) == code
        error = capsys.readouterr().err
        assert words in error
        assert "Traceback" not in error
