"""The first hour with a file of one's own: what is forgotten, mistyped, or cannot be learnt."""

from __future__ import annotations

import pytest
from _tiny_bench import make_tiny_bench
from _tiny_files import QUICK

from torchkiln.apps.schnet._main import main

FRAME = """2
Properties=species:S:1:pos:R:3:forces:R:3 energy={energy} charge=0
O 0 0 0 0.1 0.2 0.3
H 0 0 {distance} 0.1 0.2 0.3
"""


@pytest.fixture
def bench(tmp_path, monkeypatch, capsys):
    return make_tiny_bench(tmp_path, monkeypatch, capsys)


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """Start a run on my.extxyz with flags that cannot work; return the one line that is said."""
    monkeypatch.chdir(tmp_path)
    _write("my.extxyz", "-76.4")

    def refuse(*flags):
        assert main([*QUICK, "--root", "my.extxyz", *flags]) == 2
        return capsys.readouterr().err.splitlines()[0]

    return refuse


def _write(name, *energies, count=20):
    with open(name, "w") as file:
        for number in range(count):
            energy = energies[number % len(energies)]
            file.write(FRAME.format(energy=energy, distance=0.9 + 0.01 * number))


def test_a_mistyped_target_gets_what_was_meant(refused):
    assert "no target 'enregy'; choose from" in (line := refused("--target", "enregy"))
    assert line.endswith("did you mean energy?")


def test_a_forgotten_target_is_asked_for_instead_of_naming_one_of_qm9s(refused):
    line = refused()
    assert "say with --target what to learn of my.extxyz; it has charge, energy" in line
    assert "U0" not in line


def test_forces_are_not_said_to_be_missing(refused):
    assert "'forces' is not one number for each molecule" in refused("--target", "forces")


@pytest.mark.parametrize("energy", ["0.0", "-76.4"])
def test_a_label_that_never_changes_ends_with_what_is_wrong_and_no_traceback(bench, energy):
    _write("same.extxyz", energy)
    flags = [*QUICK, "--root", "same.extxyz", "--target", "energy", "--num_epochs", "1"]
    code, err = bench(*flags)
    assert code == 0
    assert "nothing is left for a network to learn" in err.splitlines()[-2]
    assert "exact: nothing is left to learn" in bench.out
    assert "times worse" not in bench.out


@pytest.mark.parametrize("unit", ["ev", "EV", "Hartree", "ha", "kJ/mol", "KCAL/MOL"])
def test_units_of_energies_may_be_written_in_small_or_large_letters(bench, unit):
    _write("my.extxyz", "-76.4", "-76.1", "-76.3")
    flags = [*QUICK, "--root", "my.extxyz", "--target", "energy", "--num_epochs", "1"]
    bench(*flags, "--unit", unit)
    assert "meV" in bench.out
