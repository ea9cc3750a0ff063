"""All of "PyTorch Geometric at a glance" runs, straight from the text, on real Cora and MUTAG."""

import re
import shutil

import pytest
import torch
from _run_document import run_document
from _seed_document import shared_file

DOCUMENT = "001_0163a70115128137.txt"
# The document prints four decimals.
PRINTED = 1e-4


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    root = tmp_path_factory.mktemp("datasets")
    shutil.copytree(shared_file("data", "Cora"), root / "Cora" / "raw")
    for folder in (root, root / "self_loops"):
        shutil.copytree(shared_file("data", "MUTAG"), folder / "MUTAG" / "raw")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DATASETS_DIR", str(root))
        patch.setenv("TORCHKILN_BACKEND", "capture")
        # The document counts its filler graph in the loss.
        with pytest.warns(UserWarning, match=r"counts filler.*batch\.graphs_mask"):
            return run_document(DOCUMENT)


def shown(cell, start):
    """Return the lines of the document's output that begin so."""
    return [line for text in cell.outputs for line in text.splitlines() if line.startswith(start)]


def test_the_dataset_is_the_documents(notebook):
    cell = notebook.cell('TUDataset(dataset_directory, name="MUTAG")')
    assert cell.printed.splitlines() == shown(cell, "Data(")


def test_batches_have_the_printed_shapes(notebook):
    cell = notebook.cell("next(iter(ipu_dataloader)) = ")
    plain, fixed = cell.printed.splitlines()
    # Which ten molecules the shuffle draws is up to torch's version; attributes are not.
    sizes = re.compile(r"\d+")
    assert sizes.sub("n", plain) == sizes.sub("n", shown(cell, "next(iter(dataloader))")[0])
    assert [fixed] == shown(cell, "next(iter(ipu_dataloader))")


def test_the_model_gives_the_printed_numbers(notebook):
    cell = notebook.cell("in_data = next(iter(ipu_dataloader))")
    output, loss = cell.value
    numbers = [float(number) for number in re.findall(r"-?\d+\.\d+", cell.outputs[-1])]
    assert output.shape == (10, 2)
    assert output.flatten().tolist() == pytest.approx(numbers[:-1], abs=PRINTED)
    assert loss.item() == pytest.approx(numbers[-1], abs=PRINTED)


def test_the_filler_graph_comes_last_and_is_empty(notebook):
    batch = notebook.names["in_data"]
    output, _ = notebook.cell("in_data = next(iter(ipu_dataloader))").value
    assert batch.graphs_mask.tolist() == [True] * 9 + [False]
    assert torch.equal(
        batch.batch[~batch.nodes_mask], torch.full_like(batch.batch, 9)[~batch.nodes_mask]
    )
    assert output[-1].tolist() == [0.0, 0.0]


def test_self_loops_come_from_the_transform(notebook):
    cell = notebook.cell("/self_loops")
    assert str(cell.value) == "MUTAG(188)"
    assert shown(cell, "MUTAG") == ["MUTAG(188)"]
    assert all(graph.has_self_loops() for graph in cell.value[:5])


@pytest.mark.parametrize(
    "fragments",
    [
        ("conv = GCNConv(in_channels=10, out_channels=10)",),
        ("out_channels=10, add_self_loops=False",),
        ("transform = T.AddSelfLoops()",),
    ],
)
def test_objects_print_as_in_the_document(notebook, fragments):
    cell = notebook.cell(*fragments)
    assert [str(cell.value)] == cell.outputs
