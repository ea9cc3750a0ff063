"""What can go wrong while loading data, one class a kind so that callers can tell them apart."""

from __future__ import annotations

from torchkiln.core import TorchkilnError


class LoaderError(TorchkilnError, ValueError):
    """Arguments of a loader contradict each other."""


class BatchSamplerError(LoaderError):
    """A batch sampler was combined with an argument that it already decides."""


class PartitionError(LoaderError):
    """A dataset cannot be divided among processes as asked."""


class RebatchError(LoaderError):
    """Pieces of batches cannot be joined or cut to the size asked for."""


class EmptyDatasetError(LoaderError):
    """A pass over the data ended before it gave a single batch."""


class DatasetError(TorchkilnError, RuntimeError):
    """A dataset, or what makes batches of it, did what no loader can pass on."""


class PrefetchError(TorchkilnError, RuntimeError):
    """A prefetcher is used in a way that it does not support."""


class TerminatedError(PrefetchError):
    """A loader is read after `terminate()`."""


class LoaderWarning(UserWarning):
    """Data is dropped, repeated or batched in a way that the user may not expect."""
