"""`FixedSizeLoader`: epochs of fixed-size batches, gathered from a store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, final

from torchkiln.core import Options, OptionsError, to_choice
from torchkiln.data import LoaderError, LoaderMode
from torchkiln.graphs._spec import BatchSpec, PadValues, to_count
from torchkiln.graphs.batches._collate import Collator
from torchkiln.graphs.batches._layout import read_limits
from torchkiln.graphs.loaders._epoch_plan import (
    EpochPlanner,
    Oversize,
    Strategy,
    padded_slots,
)
from torchkiln.graphs.loaders._group_reader import GroupMaker, GroupReader, group_size_for
from torchkiln.graphs.loaders._position import Bookmark, Position
from torchkiln.graphs.store._schema import StoreSchema, edge_axis, node_axis
from torchkiln.graphs.store._store import GraphStore
from torchkiln.packing import PackPlan, choose_slots


@final
class FixedSizeLoader:
    """Iterates over a dataset of graphs in batches whose shapes never change.

    Every graph comes exactly once in an epoch, over all processes together; batches that are left
    over at the end are all filler. Items are PyG `Batch` objects with `node_mask`, `edge_mask` and
    `graph_mask`; for options that consume several mini-batches a call, they are combined along
    dim 0 (see `collate_combined`).

    Each new iterator begins the next epoch. The order is a function of (seed, epoch, process,
    number of processes), whatever the workers; torch's global generator is not touched.
    `state_dict` counts the batches that you were given, so a run resumes in the middle of an epoch.

    Processes that add up their gradients see, in each update, the mini-batches that one process
    with all replicas would see. They compare their data and position when an epoch begins.

    Args:
        dataset: A `GraphStore`, or anything that `GraphStore.from_dataset` takes.
        spec: Sizes of a mini-batch. "auto" chooses those that waste least for `num_nodes` or
            `batch_size`.
        options: The options of the program that consumes the batches.
        strategy: "packed" puts as many graphs into a mini-batch as fit; "padded" always
            `batch_size`.
        batch_size: Real graphs in a mini-batch; on average, if packed with spec "auto".
        num_nodes: About how many nodes a mini-batch should have, for spec "auto".
        shuffle: Draw another order, and other packs, for each epoch.
        seed: Decides the order and what is trimmed; None takes `options.random_seed`, or 0.
        oversize: What to do with a graph larger than a batch: "error", "skip" it with a warning,
            or "trim" it to a random induced sub-graph (another one each epoch).
        algorithm: How to pack; see `torchkiln.packing.pack`.
        masks: Add the masks.
        pad: What filler holds.
        defaults: Values of filler graphs for attributes that are not tensors.
        exclude_keys: Attributes to leave out.
        as_tensors: Items are `TensorBatch`: only the tensors, by name. Nothing of PyG is imported
            then. Graphs of one kind only.
        num_workers: Child processes that make batches ahead, while the program runs.
        mode: "sync", or "async", which is one worker if `num_workers` says nothing else.
        async_options: Arguments of `torchkiln.data.AsyncPrefetcher`, which each worker is.

    Raises:
        BatchTooLarge: A graph does not fit, and `oversize` is "error".
        StoreError: The graphs cannot be kept in a store.
        OptionsError: Arguments contradict each other.
    """

    def __init__(
        self,
        dataset: GraphStore | Iterable[Any],
        spec: BatchSpec | Literal["auto"] = "auto",
        *,
        options: Options | None = None,
        strategy: Strategy | str = Strategy.PACKED,
        batch_size: int | None = None,
        num_nodes: int | None = None,
        shuffle: bool = False,
        seed: int | None = None,
        oversize: Oversize | str = Oversize.ERROR,
        algorithm: str = "best_fit",
        masks: bool = True,
        pad: PadValues | None = None,
        defaults: Mapping[str, Any] | None = None,
        exclude_keys: Iterable[str] = (),
        as_tensors: bool = False,
        num_workers: int = 0,
        mode: LoaderMode | str = LoaderMode.SYNC,
        async_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._options = options or Options()
        self._store = (
            dataset if isinstance(dataset, GraphStore) else GraphStore.from_dataset(dataset)
        )
        if not len(self._store):
            raise OptionsError("there is no graph to load: the dataset or its selection is empty")
        chosen = to_choice(Strategy, strategy, "strategy")
        if batch_size is not None:
            batch_size = to_count("batch_size", batch_size, least=1)
        if num_nodes is not None:
            num_nodes = to_count("num_nodes", num_nodes, least=1)
        _check_target(spec, chosen, batch_size, num_nodes)
        self._spec = _to_spec(self._store, spec, chosen, batch_size, num_nodes)
        if chosen is Strategy.PADDED and batch_size is None:
            batch_size = self._spec.num_graphs - 1
        if seed is None:
            seed = self._options.random_seed or 0
        seed = to_count("seed", seed, least=0)
        factor = self._options.combined_factor
        self._planner = EpochPlanner(
            self._store.sizes,
            {**read_limits(self._store.schema, self._spec), "graphs": self._spec.num_graphs},
            strategy=chosen,
            batch_size=batch_size if chosen is Strategy.PADDED else None,
            seed=seed if shuffle else None,
            oversize=to_choice(Oversize, oversize, "oversize"),
            algorithm=algorithm,
            options=self._options,
        )
        self._collator = Collator(
            self._store,
            self._spec,
            num_packs=None if factor == 1 else factor,
            masks=masks,
            pad=pad,
            defaults=defaults,
            exclude_keys=exclude_keys,
        )
        if as_tensors and self._store.schema.is_hetero:
            raise OptionsError(
                "as_tensors=True needs graphs of one kind: names of tensors repeat among the types "
                "of these; leave it out"
            )
        self._wrap = self._collator.tensors if as_tensors else self._collator.wrap
        trim = self._planner.oversize is Oversize.TRIM
        is_async = _is_async(mode)
        num_processes = to_count("num_workers", num_workers, least=0) or int(is_async)
        if async_options and not num_processes:
            raise LoaderError(
                f"async_options {dict(async_options)!r} have no meaning without other processes; "
                "pass mode='async' or num_workers"
            )
        self._group_size = group_size_for(self._collator)
        self._reader = GroupReader(
            self._planner,
            GroupMaker(self._collator, seed if trim else None),
            num_processes=num_processes,
            group_size=self._group_size,
            async_options=async_options,
        )
        self._bookmark = Bookmark(
            {**self._planner.identity(), "trim_seed": seed if trim else None},
            self._planner.num_batches,
            self._options,
        )

    @property
    def store(self) -> GraphStore:
        return self._store

    @property
    def spec(self) -> BatchSpec:
        """The sizes of every mini-batch."""
        return self._spec

    @property
    def options(self) -> Options:
        return self._options

    @property
    def epoch(self) -> int:
        """The epoch that is being iterated over, or else the one that comes next."""
        running = self._bookmark.running_epoch
        return self._bookmark.next_epoch if running is None else running

    @property
    def plan(self) -> PackPlan:
        """The packs of this process in `epoch`; print it to see how full batches are."""
        return self._planner.plan(self.epoch)

    def num_batches(self, epoch: int) -> int:
        """Return how many items an epoch has; equal in all processes."""
        return self._planner.num_batches(epoch)

    def __len__(self) -> int:
        """Return the number of items in `epoch`, exactly; a shuffle may change it by a few."""
        return self.num_batches(self.epoch)

    def __iter__(self) -> Iterator[Any]:
        return self._bookmark.follow(self._read)

    def _read(self, start: Position) -> Iterator[Any]:
        first_group, num_done = divmod(start.done, self._group_size)
        for group in self._reader.read(Position(start.epoch, first_group)):
            for number in range(num_done, group.num_batches):
                yield self._wrap(group, number)
            num_done = 0  # only the first group was begun before

    def set_epoch(self, epoch: int) -> None:
        """Let the next iterator begin `epoch`."""
        self._bookmark.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return where the loader is, in plain JSON types; the same in every process.

        Another number of processes can go on from there, if an update has as many mini-batches in
        all.
        """
        return self._bookmark.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iterator begin with the batch that followed when `state` was taken.

        Raises:
            LoaderError: It was taken from a loader with other data, sizes or seed, or an update had
                another number of mini-batches over all processes.
        """
        self._bookmark.load_state_dict(state)

    def terminate(self) -> None:
        """End all processes of the loader; a new iterator starts them again."""
        self._reader.terminate()

    def __repr__(self) -> str:
        return (
            f"FixedSizeLoader({len(self._store):,} graphs in {len(self):,} batches of "
            f"{self._options.combined_factor} x {self._spec})"
        )


def _is_async(mode: LoaderMode | str) -> bool:
    allowed = (LoaderMode.SYNC, LoaderMode.ASYNC)
    return to_choice(allowed, mode, "mode", LoaderError) is LoaderMode.ASYNC


def _check_target(
    spec: Any, strategy: Strategy, batch_size: int | None, num_nodes: int | None
) -> None:
    if isinstance(spec, BatchSpec):
        if num_nodes is not None or (batch_size is not None and strategy is Strategy.PACKED):
            raise OptionsError(
                "spec already says how large a batch is; leave out num_nodes and batch_size, or "
                "pass spec='auto'"
            )
        if batch_size is not None and batch_size >= spec.num_graphs:
            raise OptionsError(
                f"batch_size {batch_size} leaves no filler graph in num_graphs="
                f"{spec.num_graphs}; lower it, or raise num_graphs"
            )
        return
    if spec != "auto":
        raise OptionsError(f"spec must be a BatchSpec or 'auto', got {spec!r}")
    if strategy is Strategy.PADDED and (batch_size is None or num_nodes is not None):
        raise OptionsError("padded batches are chosen by batch_size=, the graphs in each")
    if (batch_size is None) == (num_nodes is None):
        raise OptionsError(
            "spec='auto' needs to know how large a batch should be: pass num_nodes= or batch_size="
        )


def _to_spec(
    store: GraphStore,
    spec: BatchSpec | Literal["auto"],
    strategy: Strategy,
    batch_size: int | None,
    num_nodes: int | None,
) -> BatchSpec:
    if isinstance(spec, BatchSpec):
        return spec
    if strategy is Strategy.PADDED:
        assert batch_size is not None
        return spec_of(store.schema, padded_slots(store.sizes, batch_size))
    return spec_of(
        store.schema, choose_slots(store.sizes, graphs=batch_size, nodes=num_nodes, reserve=1)
    )


def spec_of(schema: StoreSchema, slots: Mapping[str, int]) -> BatchSpec:
    """Return slots by axis as a spec."""
    if not schema.is_hetero:
        return BatchSpec(max(slots["nodes"], 2), slots["edges"], slots["graphs"])
    keys = [storage.key for storage in schema.storages]
    return BatchSpec(
        {key: max(slots[node_axis(key)], 2) for key in keys if isinstance(key, str)},
        {key: slots[edge_axis(key)] for key in keys if isinstance(key, tuple)},
        slots["graphs"],
    )
