import pytest

from torchkiln.training import warmup_cosine


def test_the_learning_rate_rises_and_falls():
    rates = [warmup_cosine(update, 100, 2.0, 0.1) for update in range(100)]
    assert rates[0] == pytest.approx(0.2)
    assert max(rates) == rates[9] == pytest.approx(2.0)
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert 0 < rates[-1] < 0.01


def test_without_warmup_it_begins_at_the_top():
    assert warmup_cosine(0, 10, 2.0, 0.0) == 2.0
