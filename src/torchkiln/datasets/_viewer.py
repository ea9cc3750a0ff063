"""Molecules in a notebook: one viewer of py3Dmol and a slider."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from typing import Any, final

from torchkiln.datasets.files._elements import symbol_of

_SIZE = (560, 400)
# The colours of `torchkiln.drawing`.
_STYLE = {
    "stick": {"radius": 0.12, "colorscheme": "Jmol"},
    "sphere": {"scale": 0.27, "colorscheme": "Jmol"},
}


@final
class MoleculeViewer:
    """Shows itself at the end of a cell, or with `display(viewer)`.

    Everything is in the page of the notebook, so that the slider works without a kernel, too.

    Args:
        molecules: Of each, atomic numbers, coordinates in angstrom and a caption.
        labels: Write the symbol of its element on each atom.
    """

    def __init__(
        self, molecules: Sequence[tuple[list[int], list[list[float]], str]], *, labels: bool
    ) -> None:
        self._frames = [to_xyz(z, pos) for z, pos, _ in molecules]
        count = len(molecules)
        self._captions = [
            (f"{number} of {count}: " if count > 1 else "") + caption.replace("\n", ", ")
            for number, (*_, caption) in enumerate(molecules, start=1)
        ]
        self._labels = labels

    def __len__(self) -> int:
        return len(self._frames)

    def _repr_html_(self) -> str:
        import py3Dmol  # type: ignore[import-untyped]

        viewer: Any = py3Dmol.view(width=_SIZE[0], height=_SIZE[1])
        viewer.addModel(self._frames[0], "xyz")
        viewer.setStyle({}, _STYLE)
        if self._labels:
            viewer.addPropertyLabels("elem", {}, _label_style())
        viewer.zoomTo()
        drawn: str = viewer.write_html()
        return drawn + self._controls(f"viewer_{viewer.uniqueid}")

    def _controls(self, name: str) -> str:
        """Return the slider and the caption; `name` is the viewer's in JavaScript."""
        caption = f"<span>{html.escape(self._captions[0])}</span>"
        if len(self) == 1:
            return f"<div>{caption}</div>"
        labels = "v.removeAllLabels(); "
        if self._labels:
            labels += f"v.addPropertyLabels('elem', {{}}, {json.dumps(_label_style())}); "
        script = (
            f"const v = {name}; if (!v) return; const i = +this.value; "
            f"const frames = {json.dumps(self._frames)}; "
            f"const captions = {json.dumps(self._captions)}; "
            "v.removeAllModels(); v.addModel(frames[i], 'xyz'); "
            f"v.setStyle({{}}, {json.dumps(_STYLE)}); {labels}v.zoomTo(); v.render(); "
            "this.nextElementSibling.textContent = captions[i];"
        )
        return (
            '<div style="display: flex; gap: 1em; align-items: center">'
            f'<input type="range" min="0" max="{len(self) - 1}" value="0" aria-label="molecule" '
            f'style="width: 16em" oninput="{html.escape(script)}">{caption}</div>'
        )

    def __repr__(self) -> str:
        return f"MoleculeViewer({len(self)} molecules; shown by notebooks)"


def to_xyz(z: Sequence[int], pos: Sequence[Sequence[float]]) -> str:
    """Return a molecule as the text of an xyz file."""
    lines = [
        f"{symbol_of(number)} {x:.5f} {y:.5f} {depth:.5f}"
        for number, (x, y, depth) in zip(z, pos, strict=True)
    ]
    return "\n".join([str(len(lines)), "", *lines, ""])


def _label_style() -> dict[str, Any]:
    return {
        "fontSize": 12,
        "fontColor": "black",
        "backgroundOpacity": 0.0,
        "alignment": "center",
    }
