import pytest

from torchkiln.apps.cosmic._data import PaddedOrder, ShuffledOrder
from torchkiln.core import OptionsError


def test_an_epoch_visits_no_event_twice_and_leaves_out_less_than_a_batch():
    order = ShuffledOrder(11, 4, seed=0)
    visited = list(order)
    assert len(visited) == len(order) == 8
    assert len(set(visited)) == 8


def test_the_order_depends_on_seed_and_epoch_alone():
    order, same, other = (ShuffledOrder(32, 4, seed=seed) for seed in (1, 1, 2))
    first = list(order)
    assert first == list(order) == list(same)
    assert first != list(other)
    order.set_position(1, 0)
    assert first != list(order)


def test_an_epoch_goes_on_in_the_middle():
    order = ShuffledOrder(10, 3, seed=0)
    order.set_position(2, 0)
    whole = list(order)
    order.set_position(2, 2)
    assert list(order) == whole[6:]


def test_too_few_events_for_an_update_are_an_error():
    with pytest.raises(OptionsError, match=r"takes 8 events.*only 5"):
        ShuffledOrder(5, 8, seed=0)


def test_judging_fills_the_last_batch_with_its_last_event():
    assert list(PaddedOrder(5, 3)) == [0, 1, 2, 3, 4, 4]
    assert list(PaddedOrder(4, 2)) == [0, 1, 2, 3]
