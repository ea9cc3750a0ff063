"""Collation: graphs are gathered from a store straight into the memory of a fixed-size batch."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final

from torchkiln.core import OptionsError
from torchkiln.graphs._padding_seen import note_padding
from torchkiln.graphs._spec import BatchSpec, PadValues
from torchkiln.graphs.batches._gather import Gathered, Gatherer, Pack
from torchkiln.graphs.batches._induced import TrimKey
from torchkiln.graphs.batches._layout import plan_layout
from torchkiln.graphs.batches._tensor_batch import TensorBatch
from torchkiln.graphs.batches._wrap import Wrapper
from torchkiln.graphs.store._schema import check_exclude_keys
from torchkiln.graphs.store._store import GraphStore


def collate(
    store: GraphStore,
    indices: Pack,
    spec: BatchSpec,
    *,
    masks: bool = True,
    pad: PadValues | None = None,
    defaults: Mapping[str, Any] | None = None,
    exclude_keys: Iterable[str] = (),
    trim: TrimKey | None = None,
) -> Any:
    """Return a PyG `Batch` of exactly `spec`: the graphs in their order, then filler graphs.

    What `pad_batch` makes of the same graphs, many times faster. All tensors are views of one piece
    of memory: keeping one keeps all. To make many batches, use a `Collator`.

    Args:
        store: Where the graphs are.
        indices: Which of them; none at all gives a batch of filler.
        spec: Sizes of the batch, filler included.
        masks: Add `node_mask`, `edge_mask` and `graph_mask`; True is real.
        pad: What filler holds; `train_mask`, `val_mask` and `test_mask` are False there anyway.
        defaults: Values of filler graphs for attributes that are not tensors; without one, filler
            repeats the value of the first graph.
        exclude_keys: Attributes to leave out.
        trim: A key `(seed, epoch)`: graphs too large for the spec on their own lose random nodes
            and edges, the same ones for the same key. None: they are an error.

    Raises:
        BatchTooLarge: Graphs, nodes or edges do not fit.
        GraphError: An attribute has no fixed size; leave it out.
        OptionsError: The spec lacks a type, or a pad value does not fit a dtype.
    """
    collator = Collator(
        store, spec, masks=masks, pad=pad, defaults=defaults, exclude_keys=exclude_keys
    )
    return collator([indices], trim=trim)


def collate_combined(
    store: GraphStore,
    packs: Sequence[Pack],
    spec: BatchSpec,
    *,
    masks: bool = True,
    pad: PadValues | None = None,
    defaults: Mapping[str, Any] | None = None,
    exclude_keys: Iterable[str] = (),
    trim: TrimKey | None = None,
) -> Any:
    """Return several mini-batches joined along dim 0, as one call of a program consumes them.

    Indices begin anew in each mini-batch: `edge_index` of c mini-batches is [2 * c, num_edges],
    `ptr` [c * (num_graphs + 1)]. `num_nodes`, `num_edges` and `num_graphs` are those of one.
    Texts are left out. Arguments are those of `collate`.
    """
    collator = Collator(
        store,
        spec,
        num_packs=len(packs),
        masks=masks,
        pad=pad,
        defaults=defaults,
        exclude_keys=exclude_keys,
    )
    return collator(packs, trim=trim)


@final
class Collator:
    """Makes batches of one shape from one store.

    Args:
        store: Where the graphs are.
        spec: Sizes of a mini-batch.
        num_packs: Mini-batches joined into one combined batch; None makes single batches in
            PyG's own form: with texts, and `to_data_list` gets the graphs back.
        masks: See `collate`.
        pad: See `collate`.
        defaults: See `collate`.
        exclude_keys: See `collate`.
    """

    def __init__(
        self,
        store: GraphStore,
        spec: BatchSpec,
        *,
        num_packs: int | None = None,
        masks: bool = True,
        pad: PadValues | None = None,
        defaults: Mapping[str, Any] | None = None,
        exclude_keys: Iterable[str] = (),
    ) -> None:
        note_padding()
        self._store = store
        self._combined = num_packs is not None
        self._num_packs = 1 if num_packs is None else num_packs
        if self._num_packs < 1:
            raise OptionsError("a combined batch needs at least one pack, got none; [[]] is filler")
        self._defaults = dict(defaults or {})
        excluded = check_exclude_keys(exclude_keys)
        self._plan = functools.partial(
            plan_layout,
            store.schema,
            spec,
            combined=self._combined,
            masks=masks,
            pad=pad or PadValues(),
            exclude_keys=excluded,
        )
        self._remake = functools.partial(
            Collator,
            store,
            spec,
            num_packs=num_packs,
            masks=masks,
            pad=pad,
            defaults=self._defaults,
            exclude_keys=excluded,
        )
        self._tools: dict[int, tuple[Gatherer, Wrapper]] = {}
        self._num_bytes = self._plan(num_packs=self._num_packs).num_bytes

    def __reduce__(self) -> Any:
        return self._remake, ()

    def __call__(self, packs: Sequence[Pack], *, trim: TrimKey | None = None) -> Any:
        """Return the batch of these packs of graphs."""
        return self.wrap(self.gather([packs], trim=trim), 0)

    @property
    def num_bytes(self) -> int:
        """Memory that a batch takes."""
        return self._num_bytes

    def gather(self, batches: Sequence[Sequence[Pack]], *, trim: TrimKey | None = None) -> Gathered:
        """Return batches in the form that a process sends to the one that calls `wrap`.

        Several at once are faster: what Python does is done once for all of them.

        Args:
            batches: Of each, its packs of graphs.
            trim: See `collate`.
        """
        gatherer, _ = self._tools_for(len(batches))
        packs = [pack for batch in batches for pack in batch]
        return Gathered(len(batches), *gatherer.gather(packs, trim))

    def wrap(self, gathered: Gathered, number: int) -> Any:
        """Return one of the batches that `gathered` holds."""
        _, wrapper = self._tools_for(gathered.num_batches)
        return wrapper.wrap(gathered, number)

    def tensors(self, gathered: Gathered, number: int) -> TensorBatch:
        """Return the tensors of one of the batches that `gathered` holds."""
        _, wrapper = self._tools_for(gathered.num_batches)
        return wrapper.tensors(gathered, number)

    def _tools_for(self, num_batches: int) -> tuple[Gatherer, Wrapper]:
        if num_batches not in self._tools:
            layout = self._plan(num_packs=num_batches * self._num_packs)
            self._tools[num_batches] = (
                Gatherer(self._store, layout, self._defaults),
                Wrapper(
                    self._store.schema, layout, num_batches=num_batches, combined=self._combined
                ),
            )
        return self._tools[num_batches]
