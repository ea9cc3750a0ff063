"""What a wrapped model tells about its program: names, anchors, counters, times."""

from __future__ import annotations

import datetime
from typing import Self

import torch
from torch import Tensor

from poptorch import _latency
from poptorch._errors import Error, translated
from poptorch._option_store import require
from poptorch.options import Options
from torchkiln import runtime

NOT_COMPILED = "Model has not been compiled or has been destroyed. Call it or compile() it first"


class Inspection:
    """The part of `PoplarExecutor` that looks and changes nothing."""

    _options: Options
    _program: runtime.Program
    _has_run: bool

    def isCompiled(self) -> bool:
        """Return whether there is an executable."""
        return self._program.is_compiled

    @property
    def _executable(self) -> runtime.Program | None:
        """What runs the compiled model; None before. Programs ask whether there is one."""
        return self._program if self.isCompiled() else None

    @property
    def _poplar_executor(self) -> Self:
        """The executor, which the module that it trains has by this name, too."""
        return self

    @property
    def rng_state(self) -> list[int]:
        """The seed and state of torch's generator; set it to continue the same stream."""
        self._require_compiled()
        return [torch.initial_seed(), *self._program.rng_state.tolist()]

    @rng_state.setter
    def rng_state(self, state: list[int]) -> None:
        self._require_compiled()
        self._program.rng_state = torch.tensor(state[1:], dtype=torch.uint8)

    def getTensorNames(self) -> list[str]:
        """Return names of tensors, among them those that `Options.anchorTensor` accepts."""
        if not self.isCompiled():
            raise AssertionError(NOT_COMPILED)
        return self._program.tensor_names()

    def getAnchoredTensor(self, short_name: str) -> Tensor:
        """Return the value that an anchored tensor had in the latest call."""
        anchors = self._options.anchored_tensors
        require(short_name in anchors, "Unknown anchor", short_name, f"one of {sorted(anchors)}")
        if not self._has_run:
            raise Error(f"Please run the model at least once before asking for {short_name!r}")
        with translated():
            return self._program.anchored(short_name)

    def getPerfCounters(self) -> dict[str, list[list[float]]]:
        """Return seconds at which each micro-batch of the latest call entered and left."""
        if not self.isCompiled():
            return _latency.empty_counters()
        return self._program.perf_counters()

    def getLatency(self) -> tuple[float, float, float]:
        """Return the (min, max, average) time from input to output."""
        return _latency.between(self.getPerfCounters(), "input", "output_complete")

    def getHostIpuLatency(self) -> tuple[float, float, float]:
        """Return the (min, max, average) time that inputs took."""
        return _latency.between(self.getPerfCounters(), "input", "input_complete")

    def getComputeLatency(self) -> tuple[float, float, float]:
        """Return the (min, max, average) time from complete inputs to the first output."""
        return _latency.between(self.getPerfCounters(), "input_complete", "output")

    def getIpuHostLatency(self) -> tuple[float, float, float]:
        """Return the (min, max, average) time that outputs took."""
        return _latency.between(self.getPerfCounters(), "output", "output_complete")

    def cycleCount(self) -> int:
        """Refuse: the device has no cycle counter."""
        if not self._options._Popart.options["instrumentWithHardwareCycleCounter"]:
            raise Error("Cycle count logging is disabled; call Options.logCycleCount(True)")
        if not self._has_run:
            raise Error("Please run the model at least once before asking for its cycle count")
        raise Error("This device has no cycle counter; use getComputeLatency() for seconds")

    def compilationTime(self) -> datetime.timedelta:
        """Return how long the compilation took."""
        self._require_compiled()
        if not self._options.show_compilation_progress_bar:
            raise Error("compilationTime needs Options.showCompilationProgressBar(True)")
        return datetime.timedelta(seconds=self._program.compilation_time)

    def _require_compiled(self) -> None:
        if not self.isCompiled():
            raise Error(NOT_COMPILED)
