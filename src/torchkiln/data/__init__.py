"""Loading data for programs: nested structures, combined batches, asynchronous prefetch."""

from torchkiln.data._errors import (
    BatchSamplerError,
    DatasetError,
    EmptyDatasetError,
    LoaderError,
    LoaderWarning,
    PartitionError,
    PrefetchError,
    RebatchError,
    TerminatedError,
)
from torchkiln.data._loader import CombinedLoading, DataLoader, LoaderMode
from torchkiln.data._partition import PartitionSampler
from torchkiln.data._prefetch import AsyncPrefetcher
from torchkiln.data._prefetch_handle import StartMethod
from torchkiln.data._regroup import rebatch
from torchkiln.data._structure import (
    Container,
    DescribedContainer,
    concatenate,
    container_of,
    flatten,
    map_tensors,
    rebuild,
    register_container,
)
from torchkiln.data._unpicklable import find_unpicklable

__all__ = [
    # loading
    "AsyncPrefetcher",
    "CombinedLoading",
    "DataLoader",
    "LoaderMode",
    "PartitionSampler",
    "StartMethod",
    "find_unpicklable",
    "rebatch",
    # errors
    "BatchSamplerError",
    "DatasetError",
    "EmptyDatasetError",
    "LoaderError",
    "LoaderWarning",
    "PartitionError",
    "PrefetchError",
    "RebatchError",
    "TerminatedError",
    # nested structures
    "Container",
    "DescribedContainer",
    "concatenate",
    "container_of",
    "flatten",
    "map_tensors",
    "rebuild",
    "register_container",
]
