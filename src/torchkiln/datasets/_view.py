"""`view`: molecules to look at, in a notebook or as a picture."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from torchkiln.core import ArgumentError, OptionsError, to_choice, warn_user
from torchkiln.datasets._viewer import MoleculeViewer
from torchkiln.datasets.files._elements import symbol_of
from torchkiln.datasets.molecules._molecule_set import MoleculeSet
from torchkiln.datasets.molecules._molecules import Molecules
from torchkiln.drawing import Ball, Scene, common_size, element_colour, make_scene

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Mode = Literal["auto", "interactive", "static"]

_MODES = ("auto", "interactive", "static")
_LIMITS = {"interactive": 50, "static": 6}
_HINT = "pip install 'torchkiln[viz]'"
_INCHES = 2.6
_LEAST_SIDE = 4.5  # angstrom


@dataclass(frozen=True, slots=True)
class Shown:
    """One molecule: atomic numbers, coordinates in angstrom, and the text beside it."""

    z: list[int]
    pos: list[list[float]]
    caption: str


def view(
    molecules: Molecules | MoleculeSet | Any,
    index: int | Iterable[int] | None = None,
    *,
    labels: bool = False,
    limit: int | None = None,
    columns: int | None = None,
    mode: Mode = "auto",
) -> Any:
    """Show molecules: in a notebook to turn and zoom, with a slider; as a picture elsewhere.

    Bonds are guessed from distances. Elements have their usual colours, and what lies farther away
    is paler.

    Args:
        molecules: `Molecules`, a `MoleculeSet`, or PyG's `Data` with `z` and `pos`, one or several.
        index: Which of them, by number; None shows the first ones.
        labels: Write the symbol of its element on each atom.
        limit: Show so many at most; None: 50 in a notebook, 6 in a picture.
        columns: Molecules in a row of the picture.
        mode: "interactive" needs py3Dmol, "static" draws with matplotlib; "auto" chooses.

    Returns:
        In a notebook, an object that shows itself; otherwise a figure of matplotlib, which
        `savefig` writes to a file.

    Raises:
        OptionsError: There is no such molecule or mode, or py3Dmol is missing.
        ArgumentError: The object holds no molecules.
    """
    wanted = to_choice(_MODES, mode, "mode")
    if wanted == "auto":
        wanted = _choose_mode()
    elif wanted == "interactive" and not _has_py3dmol():
        raise OptionsError(f"mode='interactive' needs py3Dmol; {_HINT}, or pass mode='static'")
    count = _LIMITS[wanted] if limit is None else limit
    if count < 1:
        raise OptionsError(f"limit must be at least 1, got {limit}")
    chosen = _choose(molecules, index, count)
    if wanted == "interactive":
        return MoleculeViewer([(s.z, s.pos, s.caption) for s in chosen], labels=labels)
    return draw_molecules(chosen, labels=labels, columns=columns)


def _choose_mode() -> str:
    if not _in_notebook():
        return "static"
    if _has_py3dmol():
        return "interactive"
    warn_user(f"molecules are drawn as a picture; to turn them, {_HINT}")
    return "static"


def _in_notebook() -> bool:
    """Whether results are shown by a kernel: IPython in a terminal has none."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def _has_py3dmol() -> bool:
    return importlib.util.find_spec("py3Dmol") is not None


def _choose(given: Any, index: int | Iterable[int] | None, limit: int) -> list[Shown]:
    total = _count(given)
    if not total:
        raise ArgumentError("there is no molecule to show: the dataset or the list is empty")
    if index is None:
        numbers = list(range(min(total, limit)))
    elif isinstance(index, int | np.integer):
        numbers = [int(index)]
    else:
        numbers = [int(number) for number in index]
    for number in numbers:
        if not -total <= number < total:
            raise OptionsError(
                f"there is no molecule {number}; choose numbers from 0 to {total - 1}"
            )
    return [_get(given, number % total) for number in numbers[:limit]]


def _count(given: Any) -> int:
    if isinstance(given, Molecules | MoleculeSet):
        return len(given)
    if _is_graph(given):
        return 1
    if isinstance(given, Sequence) or (hasattr(given, "__getitem__") and hasattr(given, "__len__")):
        return len(given)
    raise ArgumentError(
        f"cannot show a {type(given).__name__}; pass Molecules, a MoleculeSet, or PyG's Data with "
        "z and pos"
    )


def _is_graph(given: Any) -> bool:
    return hasattr(given, "stores") or (hasattr(given, "z") and hasattr(given, "pos"))


def _get(given: Any, number: int) -> Shown:
    if isinstance(given, MoleculeSet):
        value, unit = given.values[number], f" {given.unit}" if given.unit else ""
        plain = _get(given.molecules, number)
        return Shown(plain.z, plain.pos, f"{plain.caption}\n{given.target} {value:,.6g}{unit}")
    if isinstance(given, Molecules):
        atoms = slice(int(given.offsets[number]), int(given.offsets[number + 1]))
        title = str(number) if given.names is None else given.names[number]
        return Shown(given.z[atoms].tolist(), given.pos[atoms].tolist(), title)
    graph = given if _is_graph(given) else given[number]
    z, pos = getattr(graph, "z", None), getattr(graph, "pos", None)
    if z is None or pos is None:
        missing = "z (atomic numbers)" if z is None else "pos (coordinates)"
        raise ArgumentError(f"cannot show {graph!r:.80}: it has no {missing}")
    name = getattr(graph, "name", None)
    # Filler of a padded batch has atomic number 0.
    real = [i for i, atom in enumerate(z.reshape(-1).tolist()) if atom > 0]
    numbers, places = z.reshape(-1).tolist(), pos.tolist()
    caption = name if isinstance(name, str) else str(number)
    return Shown([numbers[i] for i in real], [places[i] for i in real], caption)


def draw_molecules(
    shown: Sequence[Shown], *, labels: bool = False, columns: int | None = None
) -> Figure:
    """Return a figure with one panel for each molecule.

    Figures are made without pyplot: no window system is touched.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    columns = min(len(shown), columns or 3)
    rows = -(-len(shown) // columns)
    lines = max(molecule.caption.count("\n") for molecule in shown) + 1
    scenes = [make_scene(molecule.z, molecule.pos) for molecule in shown]
    size = common_size(scenes, least=_LEAST_SIDE, margin=0.2)
    height = _INCHES * size[1] / size[0] + 0.25 * lines
    figure = Figure(
        figsize=(_INCHES * columns, height * rows), layout=ConstrainedLayoutEngine(h_pad=0.08)
    )
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel, molecule, scene in zip(panels, shown, scenes, strict=False):
        _draw(panel, scene, labels)
        left, bottom, right, top = scene.frame(*size)
        panel.set(xlim=(left, right), ylim=(bottom, top), aspect="equal")
        panel.set_title(molecule.caption, fontsize=9)
    for panel in panels:
        panel.set_axis_off()
    return figure


def _draw(panel: Any, scene: Scene, labels: bool) -> None:
    from matplotlib.colors import to_hex, to_rgb
    from matplotlib.patches import Circle, Polygon

    def mixed(colour: str, other: str, share: float) -> str:
        pairs = zip(to_rgb(colour), to_rgb(other), strict=True)
        return to_hex([(1 - share) * own + share * its for own, its in pairs])

    for order, part in enumerate(scene.parts):
        colour = element_colour(part.z)
        face = mixed(colour, "white", part.fading)
        edge = mixed(mixed(colour, "black", 0.55), "white", part.fading)
        if isinstance(part, Ball):
            center = (part.x, part.y)
            panel.add_patch(Circle(center, part.radius, fc=face, ec=edge, lw=0.8, zorder=order))
            shine = (part.x - 0.32 * part.radius, part.y + 0.34 * part.radius)
            light = {"fc": mixed(face, "white", 0.65), "ec": "none", "zorder": order}
            panel.add_patch(Circle(shine, 0.26 * part.radius, **light))
            if labels:
                ink = "white" if sum(to_rgb(face)) < 1.5 else "black"
                panel.annotate(
                    symbol_of(part.z),
                    center,
                    ha="center",
                    va="center",
                    fontsize=7,
                    color=ink,
                    zorder=order,
                )
            continue
        way = np.array([part.x2 - part.x1, part.y2 - part.y1])
        length = float(np.hypot(*way)) or 1.0
        aside = np.array([-way[1], way[0]]) / length * part.width / 2
        begin, end = np.array([part.x1, part.y1]), np.array([part.x2, part.y2])
        corners = [begin + aside, end + aside, end - aside, begin - aside]
        panel.add_patch(Polygon(corners, fc=face, ec="none", zorder=order))
        for side in (aside, -aside):
            ends = np.array([begin + side, end + side])
            panel.plot(ends[:, 0], ends[:, 1], color=edge, lw=0.8, zorder=order)
