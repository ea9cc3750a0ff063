import csv
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from torchkiln.apps.schnet._trained import UnknownElement, load_trained
from torchkiln.checkpoints import CheckpointStore
from torchkiln.commands._predict import predict_files
from torchkiln.core import CheckpointError, OptionsError, StoreError
from torchkiln.datasets import TargetTransform, read_molecules
from torchkiln.models import SchNet

SIZES = {"hidden_channels": 8, "num_filters": 8, "num_interactions": 1, "num_gaussians": 5}
FRAMES = """3
name=water U0=-2076.5
O 0 0 0.1173
H 0 0.7572 -0.4692
H 0 -0.7572 -0.4692
1

C 1 2 3
"""
SDF = """[b]methylene
  program           3D

  3  0  0  0  0  0            999 V2000
    0.0000    0.0000    0.1000 C   0  0
    0.0000    0.9000   -0.4000 H   0  0
    0.0000   -0.9000   -0.4000 H   0  0
M  END
$$$$
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a model and two files, which is where we are."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    references = {1: -13.6, 6: -1030.0, 8: -2040.0}
    CheckpointStore(tmp_path / "checkpoints" / "small").save(
        {f"model/{name}": tensor for name, tensor in SchNet(**SIZES).state_dict().items()},
        {
            "model": SIZES,
            "transform": TargetTransform("U0", "eV", references).to_dict(),
            "dataset": {"k": None, "cutoff_angstrom": 10.0, "elements": [1, 6, 8]},
        },
    )
    (tmp_path / "a.xyz").write_text(FRAMES)
    (tmp_path / "b.sdf").write_text(SDF)
    return tmp_path


@pytest.fixture
def predict(place, capfd):
    """Run the command; return what it printed, blanks run together."""

    def predict(*files, output=None, rows=50, model_name="small"):
        predict_files(
            list(files),
            model_name,
            checkpoint_dir=place / "checkpoints",
            output=output,
            rows=rows,
            backend="eager",
        )
        return re.sub(r"[ │]+", " ", capfd.readouterr().out)

    return predict


def expected(place, name):
    return load_trained(place / "checkpoints" / "small").predict(read_molecules(place / name))


def test_the_table_has_predictions_references_and_errors(place, predict):
    out = predict("a.xyz")
    water, atom = expected(place, "a.xyz")
    assert "U0 (eV) by small" in out
    error = (water + 2076.5) * 1000
    assert f" water H2O 3 {water:,.4f} -2,076.5000 {error:+,.2f} \n" in out
    assert f" #2 C 1 {atom:,.4f} \n" in out
    assert "2 molecules in" in out
    assert re.search(r"mean absolute error [\d,.]+ meV \([\d.]+ kcal/mol\) of 1 with a ref", out)
    assert re.search(r"reference,\s+if\s+the\s+files\s+give\s+\w+\s+in\s+eV", out)


def test_without_references_there_are_no_errors(place, predict):
    out = predict("b.sdf")
    assert f" [b]methylene CH2 3 {expected(place, 'b.sdf')[0]:,.4f} \n" in out
    assert "error" not in out
    assert "reference" not in out


def test_several_files_are_told_apart(predict):
    out = predict("a.xyz", "b.sdf")
    for label in ("a.xyz: water", "a.xyz: #2", "b.sdf: [b]methylene"):
        assert label in out


def test_long_tables_are_cut_with_a_hint(predict):
    out = predict("a.xyz", rows=1)
    assert "#2" not in out
    assert "and 1 more; --rows 2 shows them, --output FILE.csv writes them" in out


def test_csv_has_everything_in_full_precision(place, predict):
    predict("a.xyz", "b.sdf", output=place / "new" / "out.csv")
    with (place / "new" / "out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["file"] for row in rows] == ["a.xyz", "a.xyz", "b.sdf"]
    assert [row["frame"] for row in rows] == ["1", "2", "1"]
    assert [row["formula"] for row in rows] == ["H2O", "C", "CH2"]
    assert [row["reference"] for row in rows] == ["-2076.5", "", ""]
    assert {row["unit"] for row in rows} == {"eV"}
    values = [float(row["predicted_U0"]) for row in rows]
    np.testing.assert_allclose(values[:2], expected(place, "a.xyz"), rtol=1e-12)
    assert float(rows[0]["error"]) == values[0] + 2076.5


def test_extended_xyz_gives_the_molecules_back(place, predict):
    predict("a.xyz", "b.sdf", output=place / "out.extxyz")
    got = read_molecules(place / "out.extxyz")
    assert got.names == ["water", "", "[b]methylene"]
    np.testing.assert_array_equal(got.pos[:4], read_molecules(place / "a.xyz").pos)
    np.testing.assert_allclose(
        got.targets["predicted_U0"][:2], expected(place, "a.xyz"), rtol=1e-12
    )
    np.testing.assert_array_equal(got.targets["U0"], [-2076.5, np.nan, np.nan])


def test_mistakes_are_named_before_anything_is_computed(place, predict):
    (place / "salt.xyz").write_text("2\nsalt\nNa 0 0 0\nCl 0 0 2.4\n")
    (place / "empty.xyz").write_text("")
    with pytest.raises(UnknownElement, match=r"molecule 1 \(salt\) of salt\.xyz contains Na"):
        predict("a.xyz", "salt.xyz")
    with pytest.raises(StoreError, match=r"empty\.xyz is empty"):
        predict("a.xyz", "empty.xyz")
    with pytest.raises(CheckpointError, match=r"no model 'large' in .*: there are small"):
        predict("a.xyz", model_name="large")
    with pytest.raises(OptionsError, match=r"must be one of \.csv, \.extxyz, \.xyz"):
        predict("a.xyz", output=place / "out.pdf")
    with pytest.raises(OptionsError, match=r"is one of the files to read"):
        predict("a.xyz", output=place / "a.xyz")
    with pytest.raises(OptionsError, match="the predictions cannot be written to /dev/null: "):
        predict("a.xyz", output=Path("/dev/null/out.csv"))
    (place / "folder.csv").mkdir()
    with pytest.raises(OptionsError, match=r"folder\.csv is a folder; choose another --output"):
        predict("a.xyz", output=place / "folder.csv")
    with pytest.raises(OptionsError, match="no files to predict"):
        predict()
    with pytest.raises(OptionsError, match="rows must be 0 or more, got -1"):
        predict("a.xyz", rows=-1)
    assert (place / "a.xyz").read_text() == FRAMES


def test_the_examples_of_the_documentation_run(place, capfd):
    page = Path(__file__).parents[2] / "docs" / "predict.md"
    (place / "checkpoints" / "small").rename(place / "checkpoints" / "schnet")
    (place / "a.xyz").rename(place / "molecules.xyz")
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    assert len(blocks) == 1
    exec(compile(blocks[0], str(page), "exec"), {})
    assert "predicted_U0" in (place / "predicted.extxyz").read_text()
    assert capfd.readouterr().out.startswith("U0 in eV: ")
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []
