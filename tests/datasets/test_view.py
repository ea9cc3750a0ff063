"""Molecules to look at: what can be shown, as a picture and in a notebook."""

from __future__ import annotations

import html
import json
import re
import sys
from types import SimpleNamespace

import pytest
import torch
from _random_molecules import random_molecules
from torch_geometric.data import Data

from torchkiln.core import ArgumentError, OptionsError
from torchkiln.datasets import _view, make_molecule_set, view
from torchkiln.datasets._viewer import MoleculeViewer

MOLECULES = random_molecules(10)


def titles(figure) -> list[str]:
    return [axes.get_title() for axes in figure.axes if axes.get_title()]


def test_scripts_get_a_figure_of_the_first_molecules(tmp_path):
    figure = view(MOLECULES)
    assert titles(figure) == [f"molecule {number}" for number in range(6)]
    figure.savefig(tmp_path / "molecules.png", dpi=20)
    assert (tmp_path / "molecules.png").read_bytes().startswith(b"\x89PNG")


def test_molecules_are_chosen_by_number():
    assert titles(view(MOLECULES, 3)) == ["molecule 3"]
    assert titles(view(MOLECULES, [7, -1])) == ["molecule 7", "molecule 9"]
    assert titles(view(MOLECULES, range(9), limit=2)) == ["molecule 0", "molecule 1"]


def test_a_dataset_tells_its_target():
    dataset = make_molecule_set(
        MOLECULES, name="random", target="energy", unit="eV", progress=False
    )
    (title,) = titles(view(dataset, 2))
    value = MOLECULES.targets["energy"][2]
    assert title == f"molecule 2\nenergy {value:,.6g} eV"


def test_graphs_of_pyg_are_shown_without_filler():
    graph = Data(z=torch.tensor([8, 1, 1, 0]), pos=torch.eye(4)[:, :3], name="water")
    figure = view(graph, labels=True)
    assert titles(figure) == ["water"]
    symbols = sorted(text.get_text() for axes in figure.axes for text in axes.texts)
    assert symbols == ["H", "H", "O"]
    assert titles(view([graph, graph])) == ["water", "water"]


def test_labels_are_written_on_demand_only():
    assert not any(axes.texts for axes in view(MOLECULES).axes)


def test_what_cannot_be_shown_is_refused_with_the_reason():
    with pytest.raises(OptionsError, match="there is no molecule 10; choose numbers from 0 to 9"):
        view(MOLECULES, 10)
    with pytest.raises(ArgumentError, match="has no z"):
        view(Data(x=torch.zeros(2, 1)))
    with pytest.raises(ArgumentError, match="cannot show a int"):
        view(3)
    with pytest.raises(ArgumentError, match="there is no molecule to show"):
        view([])
    with pytest.raises(OptionsError, match="mode"):
        view(MOLECULES, mode="3d")
    with pytest.raises(OptionsError, match="limit"):
        view(MOLECULES, limit=0)


@pytest.fixture
def notebook(monkeypatch):
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))


def test_notebooks_get_a_viewer(notebook, monkeypatch):
    monkeypatch.setattr(_view, "_has_py3dmol", lambda: True)
    viewer = view(MOLECULES)
    assert isinstance(viewer, MoleculeViewer)
    assert len(viewer) == 10


def test_a_notebook_without_py3dmol_gets_a_picture_and_a_hint(notebook, monkeypatch):
    monkeypatch.setattr(_view, "_has_py3dmol", lambda: False)
    with pytest.warns(UserWarning, match=r"pip install 'torchkiln\[viz\]'"):
        figure = view(MOLECULES, 0)
    assert titles(figure) == ["molecule 0"]
    with pytest.raises(OptionsError, match=r"needs py3Dmol; pip install 'torchkiln\[viz\]'"):
        view(MOLECULES, 0, mode="interactive")


def test_ipython_in_a_terminal_gets_a_figure(monkeypatch):
    shell = SimpleNamespace(kernel=None)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert titles(view(MOLECULES, 0)) == ["molecule 0"]


class _Recorded:
    """Stands for `py3Dmol.view`."""

    uniqueid = "17"

    def __init__(self, **size):
        self.calls = []

    def __getattr__(self, name):
        return lambda *args: self.calls.append((name, args))

    def write_html(self):
        return f"<p>{len(self.calls)} calls</p>"


def test_the_viewer_has_a_slider_with_every_molecule(monkeypatch):
    monkeypatch.setitem(sys.modules, "py3Dmol", SimpleNamespace(view=_Recorded))
    z, pos = [8, 1], [[0.0, 0.0, 0.0], [0.0, 0.0, 0.96]]
    shown = MoleculeViewer([(z, pos, 'a "b"\n<1>'), (z, pos, "c")], labels=True)._repr_html_()
    (script,) = re.findall(r'oninput="([^"]*)"', shown)
    script = html.unescape(script)
    frames = json.loads(re.search(r"const frames = (\[.*?\]);", script)[1])
    assert frames == ["2\n\nO 0.00000 0.00000 0.00000\nH 0.00000 0.00000 0.96000\n"] * 2
    assert script.startswith("const v = viewer_17;")
    assert "1 of 2: a &quot;b&quot;, &lt;1&gt;" in shown
    assert 'max="1"' in shown


def test_one_molecule_needs_no_slider(monkeypatch):
    monkeypatch.setitem(sys.modules, "py3Dmol", SimpleNamespace(view=_Recorded))
    shown = MoleculeViewer([([1], [[0.0, 0.0, 0.0]], "hydrogen")], labels=False)._repr_html_()
    assert "<input" not in shown
    assert "hydrogen" in shown
