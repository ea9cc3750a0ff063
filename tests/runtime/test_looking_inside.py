"""The parts that a program is made of: abstract, with one final class on top of them."""

from __future__ import annotations

import inspect
import itertools

from torchkiln.runtime import Program
from torchkiln.runtime._looking_inside import OpenProgram
from torchkiln.runtime._together import JointProgram


def test_what_looks_inside_is_abstract_and_a_program_is_final():
    assert inspect.isabstract(OpenProgram)
    assert inspect.isabstract(JointProgram)
    assert not inspect.isabstract(Program)
    assert Program.__final__
    assert OpenProgram.__subclasses__() == [JointProgram]
    assert JointProgram.__subclasses__() == [Program]


def test_a_program_overrides_nothing_that_is_written_below_it():
    parts = [OpenProgram, JointProgram, Program]
    for below, above in itertools.combinations(parts, 2):
        own = {name for name in vars(above) if callable(getattr(above, name))}
        own -= {"__init__", "__abstractmethods__", "_abc_impl"}
        assert own & vars(below).keys() <= OpenProgram.__abstractmethods__
