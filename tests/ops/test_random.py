import pytest
import torch

from torchkiln.ops import _random
from torchkiln.ops._random import bernoulli_is_exact, draw, fill_bernoulli


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9, 1.0, 1 / 3])
@pytest.mark.parametrize("drawn_before", [0, 1, 623, 624, 1000])
def test_the_same_samples_and_the_same_generator_state_as_torch(p, drawn_before):
    if not bernoulli_is_exact():
        pytest.skip("this torch draws Bernoulli samples with another algorithm")
    torch.manual_seed(7)
    torch.empty(drawn_before, dtype=torch.int32).random_()  # one 32-bit draw each
    start = torch.get_rng_state()
    expected = torch.empty(9, 1111).bernoulli_(p)
    state = torch.get_rng_state()
    torch.set_rng_state(start)
    samples = fill_bernoulli(torch.empty(9, 1111), p)
    assert torch.equal(samples, expected)
    assert torch.equal(torch.get_rng_state(), state)


def test_checking_leaves_the_generator_alone():
    bernoulli_is_exact.cache_clear()
    before = torch.get_rng_state()
    bernoulli_is_exact()
    assert torch.equal(torch.get_rng_state(), before)


def test_without_a_compiler_torch_draws(monkeypatch):
    monkeypatch.setattr(_random, "_function", lambda: None)
    torch.manual_seed(3)
    expected = torch.empty(5000).bernoulli_(0.25)
    torch.manual_seed(3)
    assert torch.equal(fill_bernoulli(torch.empty(5000), 0.25), expected)


def test_a_missing_compiler_is_not_an_error(monkeypatch, tmp_path):
    from torchkiln.ops import _native

    monkeypatch.setenv("TORCHKILN_NATIVE_DIR", str(tmp_path / "native"))
    monkeypatch.setenv("CC", str(tmp_path / "no-such-compiler"))
    _native.load_native.cache_clear()
    assert _native.load_native("_mt19937") is None
    _native.load_native.cache_clear()


@pytest.mark.parametrize(
    ("kind", "params", "eager"),
    [
        ("bernoulli", [0.3], lambda out: out.bernoulli_(0.3)),
        ("uniform", [-1.0, 2.0], lambda out: out.uniform_(-1, 2)),
        ("normal", [1.0, 3.0], lambda out: out.normal_(1, 3)),
        ("exponential", [2.0], lambda out: out.exponential_(2)),
        ("randint", [-5.0, 100.0], lambda out: out.random_(-5, 100)),
    ],
)
@pytest.mark.parametrize("transposed", [False, True])
def test_draws_fill_memory_as_eager_does(kind, params, eager, transposed):
    def empty():
        return torch.empty(70, 30).t() if transposed else torch.empty(30, 70)

    torch.manual_seed(5)
    expected = eager(empty())
    torch.manual_seed(5)
    stride = list(empty().stride())
    drawn, _ = draw(None, kind, None, [30, 70], stride, torch.float32, params)
    assert torch.equal(drawn, expected)
    assert drawn.stride() == expected.stride()
