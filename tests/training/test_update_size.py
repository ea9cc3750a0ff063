import pytest

from torchkiln import Options
from torchkiln.training._update_size import UpdateSize


def test_it_counts_what_all_processes_do():
    options = Options(gradient_accumulation=3, replication_factor=2, num_processes=4)
    size = UpdateSize.of(options)
    assert size.total == 24
    assert str(size) == "24 mini-batches in an update: 4 processes x 2 replicas x 3 accumulated"
    assert UpdateSize(**size.to_dict()) == size
    assert UpdateSize.of(options.replace(sync_gradients=False)).total == 6


@pytest.mark.parametrize(
    ("facts", "identity", "expected"),
    [
        ({"update": {"processes": 2, "replicas": 3, "accumulation": 1}}, {}, UpdateSize(2, 3, 1)),
        # Earlier versions: one process.
        (
            {},
            {"options.gradient_accumulation": 2, "options.replication_factor": 3},
            UpdateSize(1, 3, 2),
        ),
        ({}, {"mode.optimizer.gradient_accumulation": 4}, UpdateSize(1, 1, 4)),
    ],
)
def test_it_is_read_from_checkpoints(facts, identity, expected):
    assert UpdateSize.saved(facts, identity) == expected


@pytest.mark.parametrize(
    ("now", "total", "told"),
    [
        (
            UpdateSize(1, 1, 1),
            4,
            "with 1 process, replication_factor x gradient_accumulation must be 4; with the "
            "present settings, 4 processes would do",
        ),
        (
            UpdateSize(2, 3, 1),
            4,
            "with 2 processes, replication_factor x gradient_accumulation must be 2",
        ),
        (
            UpdateSize(3, 1, 2),
            4,
            "start 1, 2 or 4 processes; with the present settings, 2 processes would do",
        ),
        (UpdateSize(2, 1, 1), 1, "start 1 process; with the present settings, 1 process would do"),
    ],
)
def test_it_names_numbers_that_would_work(now, total, told):
    assert now.what_would_work(total) == told
