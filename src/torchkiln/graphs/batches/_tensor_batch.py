"""`TensorBatch`: the tensors of a fixed-size batch, without PyG."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import final

from torch import Tensor


@final
class TensorBatch(Mapping[str, Tensor]):
    """The tensors of a batch by name, as items and as attributes.

    What a program needs of a batch. A PyG `Batch` has much more, and making the first one imports
    PyG, which takes longer than importing torch.
    """

    __slots__ = ("_tensors",)

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self._tensors = tensors

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __getattr__(self, name: str) -> Tensor:
        # Copying and unpickling ask before there are tensors; those names begin with "_".
        if name.startswith("_") or name not in self._tensors:
            raise AttributeError(f"the batch has no tensor {name!r}")
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def clone(self) -> TensorBatch:
        """Return a copy in memory of its own."""
        return TensorBatch({name: tensor.clone() for name, tensor in self._tensors.items()})

    def __repr__(self) -> str:
        shapes = (f"{name}={list(tensor.shape)}" for name, tensor in self._tensors.items())
        return f"TensorBatch({', '.join(shapes)})"
