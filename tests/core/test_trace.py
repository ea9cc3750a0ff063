"""Spans: nothing without a listener, everything with one."""

from __future__ import annotations

import os

import pytest

from torchkiln.core import (
    Span,
    _trace,
    add_listener,
    add_tracer,
    counter,
    hand_over,
    instant,
    is_traced,
    name_process,
    span,
    take_over,
)

HANDED = _trace.HANDED_OVER


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


class Notes:
    """A tracer that keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[object, ...]] = []

    def begin(self, channel, label, time_ns):
        self.heard.append(("begin", channel, label))
        return label

    def end(self, begun, time_ns):
        self.heard.append(("end", begun))

    def instant(self, channel, label, time_ns):
        self.heard.append(("instant", channel, label))

    def counter(self, channel, name, value, time_ns):
        self.heard.append(("counter", channel, name, value))

    def name_process(self, name):
        self.heard.append(("name", name))


@pytest.fixture
def notes():
    tracer = Notes()
    remove = add_tracer(tracer)
    yield tracer.heard
    remove()


def test_tracers_hear_everything_when_it_happens(notes):
    with span("a", "b"):
        instant("c", "d")
        counter("e", "f", 2.5)
    name_process("mine")
    assert notes == [
        ("begin", "a", "b"),
        ("instant", "c", "d"),
        ("counter", "e", "f", 2.5),
        ("end", "b"),
        ("name", "mine"),
    ]


def test_who_missed_the_beginning_does_not_hear_of_the_end():
    early, late = Notes(), Notes()
    remove_early = add_tracer(early)
    with span("a", "b"):
        remove_late = add_tracer(late)
        remove_early()
    remove_late()
    assert early.heard == [("begin", "a", "b"), ("end", "b")]
    assert late.heard == []


def test_with_a_listener_every_mark_is_its_own(spans):
    assert span("a", "b") is not span("a", "b")
    assert is_traced()


def test_nobody_listens_by_default():
    assert not is_traced()
    assert span("a", "b") is span("c", "d")
    assert hand_over() is None
    instant("a", "b")
    counter("a", "b", 1)
    name_process("nobody")


def test_what_is_handed_over_is_looked_at_once_more(monkeypatch):
    looked = []
    monkeypatch.setattr(_trace, "load_recorder", lambda: looked.append(os.environ[HANDED]))
    monkeypatch.delenv(HANDED, raising=False)
    take_over(None)
    assert not is_traced()
    take_over("a session")
    assert not is_traced()
    assert not is_traced()
    assert looked == ["a session"]
