import pytest
import torch

from torchkiln.ops import PrintFormat, print_tensor


def test_value_and_gradient_are_written_to_stderr(capsys):
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    (print_tensor(x, "x") * 3).sum().backward()
    assert capsys.readouterr().err == "x: (1.0000, 2.0000)\nx_gradient: (3.0000, 3.0000)\n"
    assert x.grad is not None
    assert x.grad.tolist() == [3, 3]


def test_gradient_can_be_left_out(capsys):
    x = torch.ones(1, requires_grad=True)
    print_tensor(x, "x", with_gradient=False).sum().backward()
    assert "gradient" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("mode", "text"),
    [("fixed", "(1.50, 0.25)"), ("scientific", "(1.50e+00, 2.50e-01)"), ("none", "(1.5, 0.25)")],
)
def test_float_formats(capsys, mode, text):
    print_tensor(torch.tensor([1.5, 0.25]), "", style=PrintFormat(digits=2, mode=mode))
    assert capsys.readouterr().err == f"{text}\n"


def test_brackets_separator_and_summary(capsys):
    style = PrintFormat(threshold=5, edge_items=1, separator=";", opening="<", closing=">")
    print_tensor(torch.arange(9), "t", style=style)
    assert capsys.readouterr().err == "t: <0;...;8>\n"


def test_unknown_float_format_is_refused():
    with pytest.raises(ValueError, match="'auto', 'fixed', 'scientific', 'none'"):
        PrintFormat(mode="hex")
