"""Both programs of examples/fashion_mnist run, learn the same, and differ by a port only."""

import ast
import difflib
import importlib
import re
import sys
from pathlib import Path
from unittest import mock

import matplotlib.image
import pytest
import torch

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "fashion_mnist"
PROGRAMS = ("pytorch_gpu", "pytorch_ipu")
PAGES = (ROOT / "docs" / "fashion_mnist.md", FOLDER / "README.md")
# Fifty steps in one order; compiled and eager arithmetic round differently.
TOLERANCE = 1e-3


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Return a function that runs a program as from a shell, in this process."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHKILN_BACKEND", "capture")
    torch.set_num_threads(1)
    names = (*PROGRAMS, "settings", "view")

    def run_program(name, *args):
        for module in names:
            sys.modules.pop(module, None)
        monkeypatch.setattr(sys, "argv", [name, *args])
        program = importlib.import_module(name)
        with mock.patch.object(program, "draw_pictures", wraps=program.draw_pictures) as draw:
            program.main()
        return draw.call_args.args[1:]

    yield run_program
    for module in names:
        sys.modules.pop(module, None)


@pytest.mark.parametrize("model", ["tutorial", "sensible"])
def test_the_ported_program_learns_the_same(run, model, capfd):
    arguments = ("--shapes", "800", "--epochs", "1", "--model", model)
    losses, confusion = run("pytorch_gpu", *arguments)
    ported_losses, ported_confusion = run("pytorch_ipu", *arguments)
    assert len(losses) == 50
    assert ported_losses == pytest.approx(losses, rel=TOLERANCE)
    assert ported_confusion.num_images == confusion.num_images == 400
    assert ported_confusion.accuracy == pytest.approx(confusion.accuracy, abs=0.02)
    printed = capfd.readouterr()
    # As under nohup: a line an epoch, and nothing of any bar.
    assert len(re.findall(r"^\[Epoch 01\] loss .* 50 steps .* images/s\)$", printed.out, re.M)) == 2
    assert printed.out.count("Eval accuracy: ") == 2
    assert "\r" not in printed.out + printed.err
    assert "%|" not in printed.err


def test_pictures_of_loss_and_confusion_are_drawn(run, tmp_path):
    run("pytorch_gpu", "--shapes", "400", "--epochs", "1", "--pictures", "here")
    for name in ("loss", "confusion"):
        picture = matplotlib.image.imread(tmp_path / "here" / f"fashion_mnist_tutorial_{name}.png")
        assert min(picture.shape[:2]) > 400
        assert picture[..., :3].std() > 0.05


def test_without_images_the_program_says_what_to_do(run, tmp_path):
    with pytest.raises(SystemExit, match=r"dataset-fashion-mnist.*--shapes 8000"):
        run("pytorch_ipu", "--root", str(tmp_path))


@pytest.mark.slow
@pytest.mark.inductor
def test_a_second_start_compiles_nothing(run, monkeypatch, tmp_path):
    from torchkiln.runtime.compile import _tracing

    monkeypatch.setenv("TORCHKILN_BACKEND", "inductor")
    monkeypatch.setenv("POPTORCH_CACHE_DIR", str(tmp_path / "cache"))
    arguments = ("--shapes", "800", "--epochs", "1")
    with mock.patch.object(_tracing, "build_package", wraps=_tracing.build_package) as build:
        losses, _ = run("pytorch_ipu", *arguments)
        assert build.call_count == 2  # training and evaluation
        again, _ = run("pytorch_ipu", *arguments)
        assert build.call_count == 2
    assert again == losses


def classes_of(name):
    tree = ast.parse((FOLDER / f"{name}.py").read_text())
    return {node.name: ast.dump(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def test_both_programs_define_the_same_models():
    plain, ported = (classes_of(name) for name in PROGRAMS)
    assert set(plain) == {"ClassificationModel", "SensibleModel"}
    assert {name: ported[name] for name in plain} == plain
    assert set(ported) - set(plain) == {"ModelwithLoss"}


def changed_lines():
    """Return lines that the port takes away and lines that it adds, without empty ones."""
    plain, ported = ((FOLDER / f"{name}.py").read_text().splitlines() for name in PROGRAMS)
    changes = [line for line in difflib.ndiff(plain, ported) if line[2:].strip()]
    return [[line[2:].strip() for line in changes if line[0] == sign] for sign in "-+"]


def test_the_port_is_a_small_diff():
    removed, added = changed_lines()
    assert len(removed) <= 20
    assert len(added) <= 35


def test_the_diff_that_is_shown_is_the_real_one():
    blocks = re.findall(r"```diff\n(.*?)```", PAGES[0].read_text(), flags=re.DOTALL)
    shown = [line for block in blocks for line in block.splitlines() if line[1:].strip()]
    removed, added = changed_lines()
    assert len([line for line in shown if line[0] == "+"]) > 10
    for line in shown:
        assert line[0] == " " or line[1:].strip() in (added if line[0] == "+" else removed)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_pictures_of_the_page_exist(page):
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text())
    assert links
    assert [link for link in links if not (page.parent / link).exists()] == []
