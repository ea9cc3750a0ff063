"""`MemoryReport`: how much memory a program will need, told before it runs."""

from __future__ import annotations

from dataclasses import dataclass

from torchkiln.core import Backend


@dataclass(frozen=True, slots=True)
class ModuleMemory:
    """The share of one module, without the modules inside it."""

    parameter_bytes: int = 0
    gradient_sum_bytes: int = 0
    optimizer_bytes: int = 0
    saved_bytes: int = 0


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Memory that a program adds to its process, by what it is for; the parts add up.

    Predicted from the captured step. Not counted: Python and its libraries, the native code itself
    (some MB), what a data loader prefetches, and what compiling takes before the first step.

    Args:
        parameter_bytes: Weights and buffers of the module, and plain tensor attributes.
        optimizer_bytes: State of the optimiser.
        gradient_bytes: Gradients alive at the peak, and sums of accumulated ones.
        batch_bytes: The combined batch of a call.
        saved_bytes: Activations of forward that wait for backward, at the peak.
        temporary_bytes: Everything else that is alive at the peak, with what libraries need.
        output_bytes: Outputs that a call keeps beside those of the micro-batch under way.
        peak_phase: When the peak is reached: forward, backward or update.
        peak_module: In which module ("" if that is not known).
        modules: Shares of the modules, by name.
        recomputed: Names of the modules that are recomputed.
        recomputable_bytes: What `recompute="auto"` would save, about.
        micro_batch_size: Rows of a micro-batch, the size of the first dimension of its tensors.
        backend: The backend that the figures are for.
        training: Whether the program trains.
    """

    parameter_bytes: int
    optimizer_bytes: int
    gradient_bytes: int
    batch_bytes: int
    saved_bytes: int
    temporary_bytes: int
    output_bytes: int
    peak_phase: str
    peak_module: str
    modules: dict[str, ModuleMemory]
    recomputed: tuple[str, ...]
    recomputable_bytes: int
    micro_batch_size: int
    backend: Backend
    training: bool

    @property
    def parts(self) -> dict[str, int]:
        """The parts of the total, by a name that a person can read."""
        return {
            "parameters and buffers": self.parameter_bytes,
            "optimiser state": self.optimizer_bytes,
            "gradients": self.gradient_bytes,
            "batch": self.batch_bytes,
            "activations kept for backward": self.saved_bytes,
            "temporaries": self.temporary_bytes,
            "outputs": self.output_bytes,
        }

    @property
    def gradient_sum_bytes(self) -> int:
        """What sums of gradients would take if the program accumulated them."""
        return sum(module.gradient_sum_bytes for module in self.modules.values())

    @property
    def total_bytes(self) -> int:
        """The peak."""
        return sum(self.parts.values())

    @property
    def step_bytes(self) -> int:
        """The part that grows with the micro-batch."""
        return self.saved_bytes + self.temporary_bytes

    def __str__(self) -> str:
        lines = [f"{self.total_bytes / 2**20:10,.0f} MB at the peak, in {self.peak_phase}"]
        lines += [f"{size / 2**20:10,.0f} MB {name}" for name, size in self.parts.items() if size]
        return "\n".join(lines)
