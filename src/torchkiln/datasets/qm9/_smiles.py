"""Reading SMILES of the kind that QM9 is written in: Kekulé form, elements H, C, N, O and F."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torchkiln.core import StoreError

ATOMIC_NUMBERS = {"H": 1, "C": 6, "N": 7, "O": 8, "F": 9}
# The smallest valence that holds an atom's bonds counts; QM9 writes nitro groups as O=N(=O).
_VALENCES = {"C": (4,), "N": (3, 5), "O": (2,), "F": (1,)}
_BOND_ORDERS = {"-": 1, "=": 2, "#": 3}
_TOKEN = re.compile(r"\[[^\]]*\]|%\d\d|.")
_BRACKET = re.compile(r"\[(?P<symbol>[A-Z])(?:H(?P<hydrogens>\d?))?(?P<charge>[+-]\d?)?\]")


@dataclass(frozen=True, slots=True)
class HeavyAtoms:
    """The heavy atoms of a molecule in the order of its SMILES.

    Attributes:
        numbers: Atomic numbers.
        charges: Formal charges.
        hydrogens: How many hydrogens each atom carries.
        bonds: Pairs of positions, the smaller first, with the order of the bond (1, 2, 3).
    """

    numbers: tuple[int, ...]
    charges: tuple[int, ...]
    hydrogens: tuple[int, ...]
    bonds: tuple[tuple[int, int, int], ...]


def read_smiles(smiles: str) -> HeavyAtoms:
    """Return the heavy atoms of `smiles`, their bonds, and the hydrogens that valence leaves.

    Aromatic (lower-case) atoms, isotopes and stereo marks do not occur in QM9 and are refused
    rather than guessed at.

    Raises:
        StoreError: if the text is no SMILES of this kind.
    """
    symbols: list[str] = []
    charges: list[int] = []
    explicit: list[int | None] = []  # hydrogens that a bracket states; None: up to the valence
    bonds: list[tuple[int, int, int]] = []
    rings: dict[str, tuple[int, int | None]] = {}
    branches: list[int | None] = []
    previous: int | None = None
    order: int | None = None
    for token in _TOKEN.findall(smiles):
        if token in _BOND_ORDERS:
            order = _BOND_ORDERS[token]
        elif token == "(":
            branches.append(previous)
        elif token == ")" and branches:
            previous = branches.pop()
        elif (token.isdigit() or token[0] == "%") and previous is not None:
            if token not in rings:
                rings[token] = (previous, order)
            else:
                start, opened = rings.pop(token)
                bonds.append((start, previous, order or opened or 1))
            order = None
        else:
            symbol, charge, hydrogens = _read_atom(token, smiles)
            symbols.append(symbol)
            charges.append(charge)
            explicit.append(hydrogens)
            if previous is not None:
                bonds.append((previous, len(symbols) - 1, order or 1))
            previous, order = len(symbols) - 1, None
    if rings or branches or order is not None or not symbols:
        raise StoreError(
            f"SMILES {smiles!r} is incomplete: a ring, a branch or a bond is left open"
        )
    used = [0] * len(symbols)
    for first, second, bond_order in bonds:
        used[first] += bond_order
        used[second] += bond_order
    hydrogens_of = []
    for atom, (symbol, stated) in enumerate(zip(symbols, explicit, strict=True)):
        free = [valence - used[atom] for valence in _VALENCES[symbol] if valence >= used[atom]]
        if stated is None and not free:
            raise StoreError(f"atom {atom} ({symbol}) of SMILES {smiles!r} has {used[atom]} bonds")
        hydrogens_of.append(free[0] if stated is None else stated)
    return HeavyAtoms(
        numbers=tuple(ATOMIC_NUMBERS[symbol] for symbol in symbols),
        charges=tuple(charges),
        hydrogens=tuple(hydrogens_of),
        bonds=tuple(sorted((min(a, b), max(a, b), bond_order) for a, b, bond_order in bonds)),
    )


def _read_atom(token: str, smiles: str) -> tuple[str, int, int | None]:
    """Return symbol, charge and, for an atom in brackets, its hydrogens."""
    if token in _VALENCES:
        return token, 0, None
    match = _BRACKET.fullmatch(token)
    if match is None or match["symbol"] not in _VALENCES:
        raise StoreError(
            f"cannot read {token!r} in SMILES {smiles!r}; known are the atoms C, N, O and F in "
            f"Kekulé form (no lower-case aromatic atoms), charged ones as in [NH3+]"
        )
    sign = match["charge"] or "+0"
    charge = int(sign if len(sign) > 1 else sign + "1")
    hydrogens = 0 if match["hydrogens"] is None else int(match["hydrogens"] or 1)
    return match["symbol"], charge, hydrogens
