import pytest

from torchkiln.apps.cosmic._data import PaddedOrder, Share, ShuffledOrder
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
    assert list(PaddedOrder(5, Share(3))) == [0, 1, 2, 3, 4, 4]
    assert list(PaddedOrder(4, Share(2))) == [0, 1, 2, 3]


def test_processes_share_the_updates_that_one_would_make():
    """Two processes with one mini-batch each, and one that accumulates two."""
    alone = ShuffledOrder(22, 2 * 2 * 2, seed=3)
    shares = [ShuffledOrder(22, 2 * 2 * 2, seed=3, share=Share(2, rank, 2)) for rank in (0, 1)]
    for order in (alone, *shares):
        order.set_position(1, 1)
    whole, (first, second) = list(alone), map(list, shares)
    assert len(first) == len(shares[0]) == len(second) == 4
    assert [whole[0:2], whole[4:6]] == [first[:2], first[2:]]
    assert [whole[2:4], whole[6:8]] == [second[:2], second[2:]]


def test_processes_judge_each_event_once():
    shares = [PaddedOrder(7, Share(2, rank, 3)) for rank in range(3)]
    assert {len(order) for order in shares} == {4}
    assert [list(order) for order in shares] == [[0, 1, 6, 6], [2, 3, 6, 6], [4, 5, 6, 6]]
    seen = [number for order in shares for batch in range(2) for number in order.numbers(batch)]
    assert sorted(seen) == list(range(7))
