import pytest

from torchkiln.datasets.files._elements import SYMBOLS, atomic_number, formula, symbol_of


def test_all_elements_go_both_ways():
    assert len(SYMBOLS) == len(set(SYMBOLS)) == 118
    assert [atomic_number(symbol_of(number)) for number in range(1, 119)] == list(range(1, 119))
    assert (symbol_of(26), symbol_of(79), symbol_of(118)) == ("Fe", "Au", "Og")


@pytest.mark.parametrize(
    ("text", "number"),
    [("c", 6), ("CL", 17), ("cl", 17), ("ZN", 30), ("BR", 35), ("C12", 6), ("D", 1), ("8", 8)],
)
def test_other_spellings_are_understood(text, number):
    assert atomic_number(text) == number


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("CA", "may be Ca or a label of C; write Ca or C"),
        ("ne", "may be Ne or a label of N"),
        ("Xx", "is no element"),
        ("*", "is no element"),
        ("0", "elements have 1 to 118"),
        ("119", "elements have 1 to 118"),
    ],
)
def test_what_has_no_or_two_readings_is_refused(text, reason):
    with pytest.raises(ValueError, match=reason):
        atomic_number(text)


def test_formulas_are_in_hills_order():
    assert formula([8, 1, 6, 1, 1, 1]) == "CH4O"
    assert formula([8, 1, 1]) == "H2O"
    assert formula([17, 35, 6]) == "CBrCl"
    assert formula([11, 17]) == "ClNa"
