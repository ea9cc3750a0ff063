import pickle

import pytest

import poptorch
from poptorch._errors import translated
from torchkiln import core
from torchkiln.runtime.call._signature import BadArguments


def test_error_has_message_type_and_location():
    error = poptorch.createPoptorchError("it broke")
    assert isinstance(error, poptorch.Error)
    assert not isinstance(error, RuntimeError)
    assert (error.message, error.type, error.location) == ("it broke", "poptorch_py_error", "")
    assert str(error) == "'poptorch_py_error': it broke"


def test_errors_are_reachable_as_in_the_original():
    assert poptorch.poptorch_core.Error is poptorch.Error
    assert issubclass(poptorch.RecoverableError, poptorch.Error)
    assert issubclass(poptorch.UnrecoverableError, poptorch.Error)


def test_recovery_action_is_checked_and_survives_pickling():
    error = pickle.loads(pickle.dumps(poptorch.RecoverableError("x", "IPU_RESET")))
    assert (error.message, error.recovery_action) == ("x", "IPU_RESET")
    with pytest.raises(ValueError, match="FULL_RESET"):
        poptorch.RecoverableError("x", "REBOOT")


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (core.BatchSizeError("b"), AssertionError),
        (BadArguments("too_many", "b"), AssertionError),
        (BadArguments("unknown", "b"), AssertionError),
        (BadArguments("duplicate", "b"), AssertionError),
        (BadArguments("missing", "Mandatory parameter b missing"), poptorch.Error),
        (BadArguments("missing", "python says b"), TypeError),
        (BadArguments("empty", "b"), poptorch.Error),
        (core.ShapeChanged("b"), poptorch.Error),
        (core.DynamicShapeError("b"), poptorch.Error),
        (core.NoLossError("b"), poptorch.Error),
        (core.NonFiniteError("b"), poptorch.Error),
        (core.OptionsError("b"), poptorch.Error),
        (core.WorkerError("b"), poptorch.Error),
    ],
)
def test_engine_errors_become_what_programs_expect(raised, expected):
    with pytest.raises(expected, match="b") as caught, translated():
        raise raised
    assert raised in (caught.value, caught.value.__cause__)


def test_other_exceptions_pass_through():
    with pytest.raises(KeyError), translated():
        raise KeyError("mine")


def test_messages_use_the_originals_names():
    with pytest.raises(poptorch.Error, match=r"see getTensorNames\(\)") as caught, translated():
        raise core.CaptureError("see tensor_names() or ungradient_accumulation")
    assert "ungradient_accumulation" in caught.value.message
    with pytest.raises(AssertionError, match="2 deviceIterations x 3"), translated():
        raise core.BatchSizeError("2 device_iterations x 3")


def test_remedies_name_no_option_that_there_is_not(tmp_path):
    path = tmp_path / "model.poptorch"
    path.touch()
    path.chmod(0o666)
    with pytest.raises(poptorch.Error, match="set TORCHKILN_TRUSTED_DIRS=") as told, translated():
        core.check_trusted(path, ())
    assert "trusted_dirs=(" in str(told.value.__cause__)
    assert "trusted_dirs=(" not in str(told.value)
    assert "Options" not in str(told.value)
