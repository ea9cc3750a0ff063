"""Molecules as SVG inside the page, for the predictions that are farthest off.

Colours of the page (`--card`, `--ink`) make a drawing right on light and on dark backgrounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from torchkiln.drawing import Ball, Scene, Stick, common_size, element_colour, make_scene
from torchkiln.report._record import PredictedMolecule, RunResult
from torchkiln.report._units import format_short_error, with_unit

_PIXELS_PER_ANGSTROM = 40
_LEAST_SIDE = 4.5  # angstrom
_MARGIN = 0.2
_CARD = "var(--card, #ffffff)"
_EDGE = "#000000"


@dataclass(frozen=True, slots=True)
class MoleculeCard:
    """A drawing with what is written below it."""

    name: str
    svg: str
    rows: list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class WorstPredictions:
    """The cards of a page, and the split that they are from."""

    split: str
    cards: list[MoleculeCard]


def worst_cards(result: RunResult) -> WorstPredictions | None:
    """Return what the page shows of the worst predictions; None if the run has none."""
    if not result.worst:
        return None
    split = "validation" if result.test is None else "test"
    drawings = molecule_svgs([(molecule.z, molecule.pos) for molecule in result.worst])
    cards = [
        MoleculeCard(molecule.name, svg, _rows(molecule, result.unit))
        for molecule, svg in zip(result.worst, drawings, strict=True)
    ]
    return WorstPredictions(split, cards)


def _rows(molecule: PredictedMolecule, unit: str) -> list[tuple[str, str]]:
    error = molecule.predicted - molecule.true
    decimals = _decimals(error)
    sign = "+" if error > 0 else ""
    return [
        ("true", with_unit(f"{molecule.true:,.{decimals}f}", unit)),
        ("predicted", with_unit(f"{molecule.predicted:,.{decimals}f}", unit)),
        ("error", f"{sign}{format_short_error(error, unit)}"),
    ]


def _decimals(error: float) -> int:
    """Return how many decimals show that two values differ by `error`."""
    if not error or not math.isfinite(error):
        return 3
    return min(max(1 - math.floor(math.log10(abs(error))), 0), 6)


def molecule_svgs(molecules: Sequence[tuple[Any, Any]]) -> list[str]:
    """Return inline SVG of molecules, all at the same scale.

    Args:
        molecules: Of each, atomic numbers [num_atoms] and coordinates in angstrom [num_atoms, 3].
    """
    scenes = [make_scene(z, pos) for z, pos in molecules]
    if not scenes:
        return []
    size = common_size(scenes, least=_LEAST_SIDE, margin=_MARGIN)
    return [_svg(scene, size, f"m{number}") for number, scene in enumerate(scenes)]


def _svg(scene: Scene, size: tuple[float, float], prefix: str) -> str:
    """Return one drawing; `prefix` tells its gradients from those of others on the page."""
    left, _, _, top = scene.frame(*size)
    width, height = (_PIXELS_PER_ANGSTROM * length for length in size)

    def x(value: float) -> str:
        return f"{(value - left) * _PIXELS_PER_ANGSTROM:.1f}"

    def y(value: float) -> str:
        return f"{(top - value) * _PIXELS_PER_ANGSTROM:.1f}"

    elements = sorted({part.z for part in scene.parts})
    parts = [_gradient(prefix, z) for z in elements]
    for part in scene.parts:
        if isinstance(part, Ball):
            where = (
                f'cx="{x(part.x)}" cy="{y(part.y)}" r="{part.radius * _PIXELS_PER_ANGSTROM:.1f}"'
            )
            parts += _ball(part, where, f"{prefix}z{part.z}")
        else:
            where = f'x1="{x(part.x1)}" y1="{y(part.y1)}" x2="{x(part.x2)}" y2="{y(part.y2)}"'
            parts += _stick(part, where)
    count = sum(isinstance(part, Ball) for part in scene.parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'role="img" aria-label="{escape(f"a molecule of {count} atoms")}">{"".join(parts)}</svg>'
    )


def _gradient(prefix: str, z: int) -> str:
    colour = element_colour(z)
    return (
        f'<radialGradient id="{prefix}z{z}" cx=".36" cy=".34" r=".72">'
        f'<stop offset="0" stop-color="{_mixed(colour, 255, 0.75)}"/>'
        f'<stop offset=".32" stop-color="{_mixed(colour, 255, 0.12)}"/>'
        f'<stop offset="1" stop-color="{_mixed(colour, 0, 0.38)}"/></radialGradient>'
    )


def _ball(ball: Ball, where: str, gradient: str) -> list[str]:
    parts = [f'<circle {where} fill="url(#{gradient})" stroke="{_EDGE}" stroke-opacity=".45"/>']
    if ball.fading > 0.01:
        parts.append(f'<circle {where} fill="{_CARD}" fill-opacity="{ball.fading:.2f}"/>')
    return parts


def _stick(stick: Stick, where: str) -> list[str]:
    width = stick.width * _PIXELS_PER_ANGSTROM
    colour = element_colour(stick.z)
    parts = [
        f'<line {where} stroke="{_mixed(colour, 0, 0.5)}" stroke-width="{width:.1f}"/>',
        f'<line {where} stroke="{colour}" stroke-width="{width - 2:.1f}"/>',
    ]
    if stick.fading > 0.01:
        parts.append(
            f'<line {where} stroke="{_CARD}" stroke-opacity="{stick.fading:.2f}" '
            f'stroke-width="{width:.1f}"/>'
        )
    return parts


def _mixed(colour: str, other: int, share: float) -> str:
    """Return a colour mixed with a shade of grey, `other` from 0 to 255."""
    own = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round((1 - share) * part + share * other):02x}" for part in own)
