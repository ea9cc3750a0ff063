"""Spans: nothing without a listener, everything with one."""

from __future__ import annotations

import pytest

from torchkiln.core import Span, add_listener, span


@pytest.fixture
def spans():
    found: list[Span] = []
    remove = add_listener(found.append)
    yield found
    remove()


def test_listener_gets_nested_spans_innermost_first(spans):
    with span("outer", "a"), span("inner", "b"):
        pass
    assert [(s.channel, s.label) for s in spans] == [("inner", "b"), ("outer", "a")]
    inner, outer = spans
    assert outer.start_s <= inner.start_s <= inner.end_s <= outer.end_s


def test_span_that_fails_is_still_reported(spans):
    with pytest.raises(KeyError), span("channel", "label"):
        raise KeyError
    assert len(spans) == 1


def test_removed_listener_gets_nothing():
    found: list[Span] = []
    add_listener(found.append)()
    with span("channel", "label"):
        pass
    assert found == []
