"""PopTorch Geometric's names on Torchkiln: fixed-size batches of PyG graphs for `poptorch` models.

Translation only: what a name does is described in docs/poptorch_geometric.md, where it is done is
torchkiln.graphs.
"""

from poptorch import __version__
from poptorch_geometric import _own_poptorch  # noqa: F401 - refuses to work on a foreign poptorch
from poptorch_geometric import override as _override  # noqa: F401 - imported for what it switches on
from poptorch_geometric._aggregation import set_aggregation_dim_size
from poptorch_geometric._stepper import TrainingStepper
from poptorch_geometric.collate import make_exclude_keys
from poptorch_geometric.dataloader import (
    FixedSizeDataLoader,
    FixedSizeStrategy,
    OverSizeStrategy,
)
from poptorch_geometric.fixed_size_options import FixedSizeOptions
from poptorch_geometric.types import PyGArgsParser, registerCustomArgParsers
from torchkiln.graphs.sampling._provide_sampling import provide_partition, provide_sampler

registerCustomArgParsers()
# PyG's own cluster and neighbour loaders work without its compiled packages from here on.
provide_partition()
provide_sampler()

__all__ = [
    "__version__",
    # loading
    "FixedSizeDataLoader",
    "FixedSizeOptions",
    "FixedSizeStrategy",
    "OverSizeStrategy",
    "make_exclude_keys",
    # models
    "PyGArgsParser",
    "TrainingStepper",
    "registerCustomArgParsers",
    "set_aggregation_dim_size",
]
