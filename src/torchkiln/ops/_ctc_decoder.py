"""Beam search over CTC outputs, with result sizes that do not depend on values."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
import torch
from torch import Tensor


def ctc_beam_search(
    log_probs: Tensor,
    lengths: Tensor,
    blank: int = 0,
    beam_width: int = 100,
    top_paths: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the most probable label sequences of each example.

    Args:
        log_probs: Log-probabilities, [num_steps, batch, num_classes].
        lengths: Valid steps of each example, [batch].
        blank: The class that separates labels.
        beam_width: Prefixes kept after each step.
        top_paths: Sequences to return.

    Returns:
        Log-probabilities [batch, top_paths], best first; their lengths [batch, top_paths] and
        labels [batch, top_paths, num_steps], int64, filled up with `blank`. Where fewer sequences
        exist, the rest has log-probability -inf and length 0.

    Raises:
        ValueError: if shapes or numbers do not fit.
    """
    if log_probs.dim() != 3:
        raise ValueError(f"log_probs must be [T, B, C], got shape {list(log_probs.shape)}")
    if lengths.dim() != 1 or lengths.shape[0] != log_probs.shape[1]:
        raise ValueError(
            f"lengths must be [{log_probs.shape[1]}] (batch), got shape {list(lengths.shape)}"
        )
    if not 0 <= blank < log_probs.shape[2]:
        raise ValueError(f"blank must be a class in 0..{log_probs.shape[2] - 1}, got {blank}")
    if not 1 <= top_paths <= beam_width:
        raise ValueError(
            f"top_paths must be 1 to beam_width, got top_paths {top_paths}, beam_width {beam_width}"
        )
    return _beam_search(log_probs, lengths, blank, beam_width, top_paths)


@torch.library.custom_op("torchkiln::ctc_beam_search", mutates_args=())
def _beam_search(
    log_probs: Tensor, lengths: Tensor, blank: int, beam_width: int, top_paths: int
) -> tuple[Tensor, Tensor, Tensor]:
    num_steps, batch, _ = log_probs.shape
    values = log_probs.detach().cpu().double().numpy()
    scores = np.full((batch, top_paths), -math.inf)
    sizes = np.zeros((batch, top_paths), dtype=np.int64)
    paths = np.full((batch, top_paths, num_steps), blank, dtype=np.int64)
    for example, length in enumerate(lengths.tolist()):
        beams = _search_one(values[:length, example], blank, beam_width)
        for rank, (labels, score) in enumerate(beams[:top_paths]):
            scores[example, rank] = score
            sizes[example, rank] = len(labels)
            paths[example, rank, : len(labels)] = labels
    device = log_probs.device
    return (
        torch.from_numpy(scores).to(device, log_probs.dtype),
        torch.from_numpy(sizes).to(device),
        torch.from_numpy(paths).to(device),
    )


@_beam_search.register_fake
def _(
    log_probs: Tensor, lengths: Tensor, blank: int, beam_width: int, top_paths: int
) -> tuple[Tensor, Tensor, Tensor]:
    num_steps, batch, _ = log_probs.shape
    return (
        log_probs.new_empty(batch, top_paths),
        log_probs.new_empty(batch, top_paths, dtype=torch.long),
        log_probs.new_empty(batch, top_paths, num_steps, dtype=torch.long),
    )


def _search_one(
    log_probs: np.ndarray, blank: int, beam_width: int
) -> list[tuple[tuple[int, ...], float]]:
    """Return prefixes with the log of their total probability, best first.

    Each prefix carries two sums: over alignments that end in a blank, and over those that end in
    its last label; only after a blank can the same label count again.
    """
    beams: dict[tuple[int, ...], tuple[float, float]] = {(): (0.0, -math.inf)}
    for step in log_probs:
        ends_blank: dict[tuple[int, ...], float] = defaultdict(lambda: -math.inf)
        ends_label: dict[tuple[int, ...], float] = defaultdict(lambda: -math.inf)
        for prefix, (after_blank, after_label) in beams.items():
            total = _add(after_blank, after_label)
            ends_blank[prefix] = _add(ends_blank[prefix], total + step[blank])
            for label in range(len(step)):
                if label == blank:
                    continue
                longer = (*prefix, label)
                if prefix and prefix[-1] == label:
                    repeated = after_label + step[label]
                    ends_label[prefix] = _add(ends_label[prefix], repeated)
                    ends_label[longer] = _add(ends_label[longer], after_blank + step[label])
                else:
                    ends_label[longer] = _add(ends_label[longer], total + step[label])
        sums = {p: (ends_blank[p], ends_label[p]) for p in {*ends_blank, *ends_label}}
        beams = dict(sorted(sums.items(), key=_by_score)[:beam_width])
    ranked = sorted(beams.items(), key=_by_score)
    return [(p, _add(*both)) for p, both in ranked if _add(*both) > -math.inf]


def _by_score(entry: tuple[tuple[int, ...], tuple[float, float]]) -> tuple[float, tuple[int, ...]]:
    # Ties are broken by the labels, so that the result does not depend on the order of a set.
    return (-_add(*entry[1]), entry[0])


def _add(a: float, b: float) -> float:
    """Return log(exp(a) + exp(b))."""
    if a < b:
        a, b = b, a
    return a if b == -math.inf else a + math.log1p(math.exp(b - a))
