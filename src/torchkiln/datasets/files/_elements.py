"""Chemical elements by symbol and number, and formulas."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable

_BY_NUMBER = """
H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se Br Kr
Rb Sr Y Zr Nb Mo Tc Ru Rh Pd Ag Cd In Sn Sb Te I Xe Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb Dy Ho Er Tm Yb
Lu Hf Ta W Re Os Ir Pt Au Hg Tl Pb Bi Po At Rn Fr Ra Ac Th Pa U Np Pu Am Cm Bk Cf Es Fm Md No Lr
Rf Db Sg Bh Hs Mt Ds Rg Cn Nh Fl Mc Lv Ts Og
"""
SYMBOLS = tuple(_BY_NUMBER.split())
_NUMBERS = {symbol: number for number, symbol in enumerate(SYMBOLS, start=1)}
_NUMBERS |= {"D": 1, "T": 1}  # isotopes: a model sees hydrogen
# Force fields and protein files label atoms of these elements with a second letter: CA is calcium
# or an alpha carbon, ca an aromatic one. In the wrong case only these are plain symbols.
_LABELLED = frozenset("HCNOSP")
_PLAIN_IN_ANY_CASE = frozenset({"Cl", "Si", "Se"})


def symbol_of(number: int) -> str:
    """Return the symbol of an element."""
    return SYMBOLS[number - 1]


@functools.lru_cache(maxsize=4096)
def atomic_number(text: str) -> int:
    """Return the atomic number that a symbol, a label such as C12, or a number stands for.

    `c`, `CL` and `ZN` are taken for C, Cl and Zn; what has two readings is refused.

    Raises:
        ValueError: if it stands for no element, or perhaps for two. The message begins with the
            text and is meant to be completed with where it stands.
    """
    if text.isdecimal():
        if 1 <= int(text) <= len(SYMBOLS):
            return int(text)
        raise ValueError(f"{text} is no atomic number; elements have 1 to {len(SYMBOLS)}")
    label = text.rstrip("0123456789")
    if label in _NUMBERS:
        return _NUMBERS[label]
    symbol = label.capitalize()
    if symbol not in _NUMBERS:
        raise ValueError(f"{text!r} is no element; write its symbol (C, Cl) or its atomic number")
    if len(symbol) > 1 and symbol[0] in _LABELLED and symbol not in _PLAIN_IN_ANY_CASE:
        raise ValueError(
            f"{text!r} may be {symbol} or a label of {symbol[0]}; write {symbol} or {symbol[0]}"
        )
    return _NUMBERS[symbol]


def formula(numbers: Iterable[int]) -> str:
    """Return the formula of a molecule in Hill's order: carbon, hydrogen, then by symbol."""
    counts = Counter(symbol_of(number) for number in numbers)
    first = [symbol for symbol in ("C", "H") if "C" in counts and symbol in counts]
    order = first + sorted(set(counts) - set(first))
    return "".join(f"{symbol}{counts[symbol] if counts[symbol] > 1 else ''}" for symbol in order)
