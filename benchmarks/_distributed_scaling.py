"""What many ranks would reach: a formula, from an update's time and the size of its gradients.

Every rank works for `step_s` on its own, and then all add up their gradients. Both orders of
`Options.reduction_order` move the same data: each rank sends and receives 2 (W - 1) / W of the
gradients' bytes. So an update of W ranks takes

    step_s + 2 (W - 1) / W * bytes / bandwidth + 2 (W - 1) * latency

if no two ranks share a network card, and if the network has its full bandwidth between any pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

GIGABIT = 1e9 / 8
NETWORKS = {"1 Gbit/s": GIGABIT, "10 Gbit/s": 10 * GIGABIT, "100 Gbit/s": 100 * GIGABIT}
RANKS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
# Of a message between two hosts in one hall: TCP on common Ethernet cards.
LATENCY_S = 20e-6


@dataclass(frozen=True)
class Update:
    """What one rank does between two collectives."""

    step_s: float
    gradient_bytes: int

    def collective_s(self, ranks: int, bandwidth: float, latency_s: float = LATENCY_S) -> float:
        """Return how long all ranks add up their gradients."""
        moved = 2 * (ranks - 1) / ranks * self.gradient_bytes
        return moved / bandwidth + 2 * (ranks - 1) * latency_s

    def efficiency(self, ranks: int, bandwidth: float) -> float:
        """Return the throughput of a rank among so many, relative to one alone."""
        return self.step_s / (self.step_s + self.collective_s(ranks, bandwidth))


def scaling_table(update: Update) -> dict[str, dict[int, float]]:
    """Return the speed-up over one rank, by network and number of ranks."""
    return {
        name: {ranks: ranks * update.efficiency(ranks, bandwidth) for ranks in RANKS}
        for name, bandwidth in NETWORKS.items()
    }
