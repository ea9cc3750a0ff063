"""Memory over the course of one entry point: what is allocated, freed, and alive at the peak."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchkiln.runtime.passes._origins import Phase


@dataclass(slots=True)
class Block:
    """A piece of memory: its size, who made it, when, and who used it last."""

    size_bytes: int
    module: str
    phase: Phase
    born: int
    last_phase: Phase
    last_use: int


@dataclass(slots=True)
class Timeline:
    """Follows allocations in the order of execution; `peak` is what was alive at the worst time."""

    live_bytes: int = 0
    peak_bytes: int = 0
    peak: list[Block] = field(default_factory=list)
    peak_module: str = ""
    peak_phase: Phase = Phase.FORWARD
    _live: dict[str, Block] = field(default_factory=dict)
    _now: int = 0
    _turn: int | None = None

    def allocate(self, name: str, size_bytes: int, module: str, phase: Phase) -> None:
        # Memory is there for the call that comes next.
        self._live[name] = Block(size_bytes, module, phase, self._now + 1, phase, self._now + 1)
        self.live_bytes += size_bytes

    def free(self, name: str) -> None:
        """Free a block; names that are not blocks (inputs, views) are passed over."""
        block = self._live.pop(name, None)
        if block is not None:
            self.live_bytes -= block.size_bytes

    def reuse(self, name: str, as_name: str, module: str, phase: Phase) -> None:
        """Let another tensor take over the memory of one that is not needed any more."""
        block = self._live.get(name)
        if block is not None:
            self.free(name)
            self.allocate(as_name, block.size_bytes, module, phase)

    def turn(self) -> None:
        """Say that backward has begun, if it is the first time."""
        if self._turn is None:
            self._turn = self._now + 1

    def use(self, names: list[str], module: str, phase: Phase, scratch_bytes: int = 0) -> None:
        """Run something that reads or writes blocks, with memory of its own for the while."""
        self._now += 1
        for name in names:
            if name in self._live:
                self._live[name].last_phase, self._live[name].last_use = phase, self._now
        if self.live_bytes + scratch_bytes > self.peak_bytes:
            self.peak_bytes = self.live_bytes + scratch_bytes
            self.peak = list(self._live.values())
            self.peak_module, self.peak_phase = module, phase

    def is_saved(self, block: Block) -> bool:
        """Whether it was made before forward ended, and is read afterwards.

        By the time and not by the origin: a kernel of forward may prepare something for backward.
        """
        return self._turn is not None and block.born < self._turn <= block.last_use

    def is_gradient(self, block: Block) -> bool:
        """Whether backward made it and the update (or the sum of gradients) reads it."""
        return block.phase is Phase.BACKWARD and block.last_phase is Phase.UPDATE
