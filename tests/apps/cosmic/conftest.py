"""Runs of CosmicTagger that take a second."""

import pytest
from _tiny_events import NETWORK

from torchkiln.apps.cosmic import read_settings


@pytest.fixture
def tiny_args(tmp_path):
    return [
        f"run.output_dir={tmp_path}",
        f"run.cache_dir={tmp_path}/executables",
        "run.backend=capture",
        "run.minibatch_size=2",
        "data.num_events=6",
        "data.num_aux_events=3",
        "data.downsample=64",
        *NETWORK,
    ]


@pytest.fixture
def tiny(tiny_args):
    def make(*more):
        return read_settings([*tiny_args, *more])

    return make
