"""How figures are written: errors in the units people compare, times, rates."""

from __future__ import annotations

import math
from typing import NamedTuple

# CODATA 2018: 1 eV in kcal/mol (thermochemical calorie), in kJ/mol, and 1 hartree in eV.
_KCAL_PER_EV = 23.060547830619
_KJ_PER_EV = 96.48533212331
_EV_PER_HARTREE = 27.211386245988

_IN_EV = {
    "eV": 1.0,
    "meV": 1e-3,
    "kcal/mol": 1 / _KCAL_PER_EV,
    "kJ/mol": 1 / _KJ_PER_EV,
    "Ha": _EV_PER_HARTREE,
    "hartree": _EV_PER_HARTREE,
}


class Scale(NamedTuple):
    """The unit in which errors of a target are shown, and the factor that leads there."""

    factor: float
    unit: str


def error_scale(unit: str) -> Scale:
    """Return meV for energies in eV or hartree, the unit itself for everything else."""
    if unit in ("eV", "Ha", "hartree"):
        return Scale(1e3 * _IN_EV[unit], "meV")
    return Scale(1.0, unit)


def format_error(value: float, unit: str) -> str:
    """Write an error of a target; energies in meV and in kcal/mol, the unit of the target first."""
    if unit not in _IN_EV:
        return with_unit(significant(value), unit)
    both = {"meV": 1e3 * _IN_EV[unit] * value, "kcal/mol": _KCAL_PER_EV * _IN_EV[unit] * value}
    first = "kcal/mol" if unit == "kcal/mol" else "meV"
    second = next(name for name in both if name != first)
    return (
        f"{with_unit(significant(both[first]), first)} "
        f"({with_unit(significant(both[second]), second)})"
    )


def format_short_error(value: float, unit: str) -> str:
    """Write an error in one unit, for lines with little room."""
    scale = error_scale(unit)
    return with_unit(significant(scale.factor * value), scale.unit)


def with_unit(number: str, unit: str) -> str:
    return f"{number} {unit}" if unit else number


def significant(value: float, digits: int = 3) -> str:
    """Write a number with `digits` significant ones and thousands separated."""
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])  # of the rounded number
    if exponent < -4 or exponent >= 9:
        return f"{value:.{digits - 1}e}"
    return f"{value:,.{max(digits - 1 - exponent, 0)}f}"


def format_loss(value: float) -> str:
    return f"{value:.4g}"


def format_rate(value: float, counted: str) -> str:
    """Write how many there are in a second; `counted` says of what."""
    return f"{significant(value, 4)} {counted}/s"


def format_seconds(value: float) -> str:
    """Write a duration as a person says it."""
    if not math.isfinite(value):
        return str(value)
    if value < 60:
        return f"{significant(value)} s"
    minutes, seconds = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {seconds:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes:02d} min"


def format_count(number: int, plural: str) -> str:
    """Write how many there are: "1 epoch", "3 epochs"; `plural` is an English noun."""
    return f"{number:,} {plural if number != 1 else _singular(plural)}"


def _singular(plural: str) -> str:
    if plural.endswith("ies") and len(plural) > 4:
        return f"{plural.removesuffix('ies')}y"
    if plural.endswith(("ches", "shes", "sses", "xes")):
        return plural.removesuffix("es")
    return plural if plural.endswith("ss") else plural.removesuffix("s")


def short_name(name: object, longest: int = 24) -> str:
    """Return a name that fits into a picture: of a long one the middle is left out."""
    text = str(name)
    if len(text) <= longest:
        return text
    kept = longest - 1
    return f"{text[: kept - kept // 2]}\N{HORIZONTAL ELLIPSIS}{text[-(kept // 2) :]}"
