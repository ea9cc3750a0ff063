"""Loading data for programs: nested structures, combined batches, asynchronous prefetch."""

from torchkiln.data._structure import (
    Container,
    concatenate,
    container_of,
    flatten,
    map_tensors,
    rebuild,
    register_container,
)

__all__ = [
    "Container",
    "concatenate",
    "container_of",
    "flatten",
    "map_tensors",
    "rebuild",
    "register_container",
]
