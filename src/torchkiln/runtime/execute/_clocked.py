"""Entry points that tell how long each of their calls took."""

from __future__ import annotations

import abc
import copy
import time
from collections.abc import Callable

import numpy as np
from torch import Tensor, fx

from torchkiln.runtime.execute._marks import Marks

Run = Callable[[list[Tensor]], list[Tensor]]


class ClockedRun(abc.ABC):
    """Runs an entry point like the original, and remembers the times of its calls."""

    @abc.abstractmethod
    def __call__(self, inputs: list[Tensor]) -> list[Tensor]:
        """Run the entry."""

    @abc.abstractmethod
    def durations_ns(self) -> np.ndarray:
        """Return the nanoseconds of each call of the latest run, in the order of the plan."""


class ClockedNative(ClockedRun):
    """Native code with its clock reads switched on."""

    def __init__(self, run: Run, marks: Marks) -> None:
        self._run = run
        self.marks = marks

    def __call__(self, inputs: list[Tensor]) -> list[Tensor]:
        with self.marks.on():
            return self._run(inputs)

    def durations_ns(self) -> np.ndarray:
        return self.marks.take()[1:]


class ClockedGraph(ClockedRun):
    """A recorded graph, with a clock read behind each of its nodes."""

    def __init__(self, graph: fx.GraphModule, run_graph: Callable[[fx.GraphModule], Run]) -> None:
        self._times: list[int] = []
        stamped = fx.Graph()
        copied: dict[fx.Node, fx.Node] = {}
        times = self._times

        def stamp() -> None:
            times.append(time.perf_counter_ns())

        for node in graph.graph.nodes:
            if node.op == "output":
                results = copy.copy(node.args[0])
                stamped.output(fx.node.map_arg(results, copied.__getitem__))
                continue
            copied[node] = stamped.node_copy(node, copied.__getitem__)
            if node.op != "placeholder":
                stamped.call_function(stamp)
        stamped.set_codegen(fx.graph.CodeGen())
        self._run = run_graph(fx.GraphModule(graph, stamped))
        self._begin = 0

    def __call__(self, inputs: list[Tensor]) -> list[Tensor]:
        self._times.clear()
        self._begin = time.perf_counter_ns()
        return self._run(inputs)

    def durations_ns(self) -> np.ndarray:
        return np.diff(np.array([self._begin, *self._times], dtype=np.int64))
