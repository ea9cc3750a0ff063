"""What several processes did, as `results.json` names it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchkiln.report._record import RankRecord, WorldRecord


def world_figures(world: WorldRecord, counted: str) -> dict[str, Any]:
    """Return the figures in JSON types.

    Args:
        world: The processes.
        counted: What a sample is, in the plural.
    """
    return {
        "size": world.size,
        f"{counted}_per_s": world.samples_per_s,
        "collective_share": world.collective_share,
        "ranks": [
            {
                "rank": number,
                "host": rank.host,
                "threads": rank.threads,
                counted: rank.samples,
                "seconds": rank.seconds,
                f"{counted}_per_s": rank.samples_per_s,
                "collective_seconds": rank.collective_seconds,
                "collective_share": rank.collective_share,
            }
            for number, rank in enumerate(world.ranks)
        ],
    }


def read_world(figures: Mapping[str, Any] | None, counted: str) -> WorldRecord | None:
    """Return what `world_figures` was given; None for a run of one process."""
    if figures is None:
        return None
    return WorldRecord(
        tuple(
            RankRecord(
                host=str(rank["host"]),
                threads=int(rank["threads"]),
                samples=int(rank[counted]),
                seconds=float(rank["seconds"]),
                collective_seconds=float(rank["collective_seconds"]),
            )
            for rank in figures["ranks"]
        )
    )
