import itertools
import math

import pytest
import torch

from torchkiln.ops import ctc_beam_search


def _exhaustive(log_probs, blank):
    """Sum the probability of every alignment, by the labels that it collapses to."""
    num_steps, num_classes = log_probs.shape
    totals = {}
    for path in itertools.product(range(num_classes), repeat=num_steps):
        labels = tuple(k for k, _ in itertools.groupby(path) if k != blank)
        score = sum(log_probs[t, k].item() for t, k in enumerate(path))
        totals[labels] = totals.get(labels, 0.0) + math.exp(score)
    return sorted(totals.items(), key=lambda entry: -entry[1])


@pytest.mark.parametrize("blank", [0, 2])
def test_wide_beam_equals_exhaustive_search(blank):
    torch.manual_seed(1)
    log_probs = torch.randn(4, 1, 3, dtype=torch.float64).log_softmax(-1)
    scores, lengths, paths = ctc_beam_search(log_probs, torch.tensor([4]), blank, 1000, 5)
    expected = _exhaustive(log_probs[:, 0], blank)[:5]
    for rank, (labels, probability) in enumerate(expected):
        assert scores[0, rank].exp().item() == pytest.approx(probability)
        assert tuple(paths[0, rank, : lengths[0, rank]].tolist()) == labels


def test_steps_past_the_length_do_not_count():
    log_probs = torch.randn(6, 2, 4).log_softmax(-1)
    short = ctc_beam_search(log_probs[:3], torch.tensor([3, 3]))
    padded = ctc_beam_search(log_probs, torch.tensor([3, 3]))
    torch.testing.assert_close(short[0], padded[0])
    assert torch.equal(short[1], padded[1])
    assert padded[2].shape == (2, 1, 6)


def test_missing_paths_are_empty_and_impossible():
    log_probs = torch.tensor([[[0.0, -math.inf]]])
    scores, lengths, _ = ctc_beam_search(log_probs, torch.tensor([1]), top_paths=3)
    assert scores[0].tolist() == [0.0, -math.inf, -math.inf]
    assert lengths[0].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("shape", "lengths", "kwargs", "fragment"),
    [
        ((3, 4), [3], {}, r"\[T, B, C\]"),
        ((3, 2, 4), [3], {}, "lengths must be"),
        ((3, 1, 4), [3], {"blank": 4}, "blank"),
        ((3, 1, 4), [3], {"beam_width": 2, "top_paths": 3}, "top_paths"),
    ],
)
def test_bad_arguments_name_the_problem(shape, lengths, kwargs, fragment):
    with pytest.raises(ValueError, match=fragment):
        ctc_beam_search(torch.zeros(shape), torch.tensor(lengths), **kwargs)
