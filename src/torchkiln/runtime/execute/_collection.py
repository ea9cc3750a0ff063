"""What one call keeps: its outputs by output mode, and the anchored tensors by theirs."""

from __future__ import annotations

from torch import Tensor

from torchkiln.core import Anchor, Options
from torchkiln.runtime.execute._anchors import (
    input_anchors,
    micro_batch_anchors,
    own_anchors,
    update_anchors,
)
from torchkiln.runtime.execute._outputs import OutputCollector


class Collection:
    """Gathers the results of one call, micro-batch by micro-batch."""

    def __init__(self, options: Options, training: bool, constant_outputs: list[int]) -> None:
        self._constant_outputs = constant_outputs
        self._outputs = OutputCollector(
            options, options.output_mode, options.output_period, training
        )
        self._per_micro_batch: dict[str, OutputCollector] = {}
        self._per_update: dict[str, OutputCollector] = {}
        self._per_iteration: dict[str, OutputCollector] = {}
        self._inputs: dict[str, OutputCollector] = {}
        if options.anchors:
            self._add_anchors(options, training)

    def _add_anchors(self, options: Options, training: bool) -> None:
        self._per_micro_batch = {
            name: _anchor_collector(options, options.anchors[name], training)
            for name in micro_batch_anchors(options)
        }
        self._inputs = {
            name: _anchor_collector(options, options.anchors[name], training)
            for name in input_anchors(options)
        }
        # A parameter has one value an update, whatever the number of micro-batches.
        alone = options.replace(gradient_accumulation=1, replication_factor=1, input_group_size=1)
        self._per_update = {
            name: _anchor_collector(alone, options.anchors[name], training)
            for name in update_anchors(options)
        }
        self._per_iteration = {
            name: _anchor_collector(alone, options.anchors[name], training)
            for name in own_anchors(options)
        }

    def add_micro_batch(self, values: list[Tensor]) -> None:
        """Take the outputs of a micro-batch, anchored tensors last."""
        count = len(values) - len(self._per_micro_batch)
        self._outputs.add(values[:count])
        for collector, value in zip(self._per_micro_batch.values(), values[count:], strict=True):
            collector.add([value])

    def add_inputs(self, values: list[Tensor]) -> None:
        """Take the anchored arguments of a micro-batch."""
        for collector, value in zip(self._inputs.values(), values, strict=True):
            collector.add([value])

    def add_iteration(self, values: list[Tensor]) -> None:
        """Take the anchored tensors of the module before a weight update, or a batch."""
        for collector, value in zip(self._per_iteration.values(), values, strict=True):
            collector.add([value])

    def add_update(self, values: list[Tensor]) -> None:
        """Take the anchored parameters after a weight update."""
        for collector, value in zip(self._per_update.values(), values, strict=True):
            collector.add([value])

    @property
    def num_kept(self) -> int:
        """How many micro-batches' outputs the result is made of."""
        return self._outputs.num_kept

    def outputs(self) -> list[Tensor]:
        """Return the outputs; one that depends on nothing is returned as it is."""
        results = self._outputs.result()
        for index in self._constant_outputs:
            results[index] = self._outputs.last[index]
        return results

    def anchored(self) -> dict[str, Tensor]:
        of_module = {**self._per_update, **self._per_iteration}
        collectors = {**self._per_micro_batch, **self._inputs, **of_module}
        return {name: collector.result()[0] for name, collector in collectors.items()}


def _anchor_collector(options: Options, anchor: Anchor, training: bool) -> OutputCollector:
    if anchor.output_mode is None:
        return OutputCollector(options, options.output_mode, options.output_period, training)
    return OutputCollector(options, anchor.output_mode, anchor.output_period, training)
