"""The system profile as tables: processes, where their time went, numbers, and epochs."""

from __future__ import annotations

import sys
from pathlib import Path

from torchkiln.profiling.system._merge import merge
from torchkiln.profiling.system._summary import EpochSplit, Summary, summarize
from torchkiln.profiling.system._timeline import ProcessTrace
from torchkiln.report._tables import print_table

# Kinds of work that are listed for each process; the rest is summed up.
_MAX_ROWS = 15


def show_system_profile(path: Path) -> None:
    """Print the summary of a recording: a folder, or a file."""
    summary = summarize(path)
    print_table(
        f"system profile in {path}: {_seconds(summary.wall_us)} s",
        ("process", "pid", "threads", "events", "from s", "to s", "ended"),
        [
            [
                process.name,
                str(process.pid),
                str(len(process.threads)),
                f"{process.num_events:,}",
                _seconds(process.first_us - summary.first_us) if process.num_events else "",
                _seconds(process.last_us - summary.first_us) if process.num_events else "",
                "yes" if process.has_ended else "no",
            ]
            for process in summary.processes
        ],
        right=("pid", "threads", "events", "from s", "to s"),
    )
    for process in summary.processes:
        _print_work(summary, process)
    _print_counters(summary)
    _print_epochs(summary)
    for remark in _remarks(summary):
        sys.stdout.write(f"{remark}\n")


def merge_system_profile(directory: Path) -> None:
    """Merge the newest run in a folder, and say where to open it."""
    sys.stdout.write(f"wrote {merge(directory)}; open it at https://ui.perfetto.dev\n")


def _print_work(summary: Summary, process: ProcessTrace) -> None:
    rows = [row for row in summary.rows if row.process is process]
    if not rows:
        return
    # Of the whole recording, so that processes can be compared.
    wall_us = summary.wall_us
    cells = [
        [
            row.channel,
            row.label,
            f"{row.count:,}",
            _seconds(row.total_us),
            _seconds(row.self_us),
            f"{row.total_us / wall_us:.1%}" if wall_us else "",
        ]
        for row in rows[:_MAX_ROWS]
    ]
    left_out = rows[_MAX_ROWS:]
    if left_out:
        own_us = sum(row.self_us for row in left_out)
        count = sum(row.count for row in left_out)
        cells.append(["", f"{len(left_out)} more", f"{count:,}", "", _seconds(own_us), ""])
    print_table(
        f"{process.name} ({process.pid}): where its time went",
        ("channel", "label", "count", "total s", "self s", "of the run"),
        cells,
        right=("count", "total s", "self s", "of the run"),
    )


def _print_counters(summary: Summary) -> None:
    if not summary.counters:
        return
    print_table(
        "numbers that changed",
        ("process", "channel", "number", "told", "least", "mean", "most", "last"),
        [
            [
                row.process.name,
                row.channel,
                row.name,
                f"{row.count:,}",
                *(f"{value:,.4g}" for value in (row.least, row.mean, row.most, row.last)),
            ]
            for row in summary.counters
        ],
        right=("told", "least", "mean", "most", "last"),
    )


def _print_epochs(summary: Summary) -> None:
    if not summary.epochs:
        return
    names = {split.process.name for split in summary.epochs}
    print_table(
        "where the time of the epochs went",
        ("process", "epoch", "seconds", "step", "data wait", "other", "unmarked"),
        [_epoch_cells(split) for split in summary.epochs],
        right=("seconds", "step", "data wait", "other", "unmarked"),
        may_be_left_out=("process",) if len(names) == 1 else (),
    )


def _epoch_cells(split: EpochSplit) -> list[str]:
    parts = (split.step_us, split.wait_us, split.other_us, split.unmarked_us)
    shares = [f"{part / split.total_us:.1%}" if split.total_us else "" for part in parts]
    label = f"{split.label} (not over)" if split.is_cut else split.label
    return [split.process.name, label, _seconds(split.total_us), *shares]


def _remarks(summary: Summary) -> list[str]:
    told = []
    unfinished = [
        f"{process.name} ({process.pid})" for process in summary.processes if not process.has_ended
    ]
    if unfinished:
        told.append(
            f"not ended in peace (killed, still running, or the disk was full): "
            f"{', '.join(unfinished)}; what they were doing is counted up to their last event"
        )
    num_cut = sum(row.num_cut for row in summary.rows)
    if num_cut:
        are = "stretch was" if num_cut == 1 else "stretches were"
        told.append(f"{num_cut} {are} still going on when recording ended")
    if summary.num_misnested:
        told.append(
            f"{summary.num_misnested} events do not nest, so some times above are wrong; please "
            "report this with the file"
        )
    return told


def _seconds(microseconds: float) -> str:
    return f"{microseconds / 1e6:,.3f}"
