"""`StageRun`: one stage runs its turns, and exchanges what they need and make with the others."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, final

from torch import Tensor

from torchkiln.distributed._packed import packed, unpacked
from torchkiln.distributed._transfers import Transfer
from torchkiln.runtime.execute._clocked import Run
from torchkiln.runtime.pipeline._parts import (
    Argument,
    Bound,
    Kept,
    PartEntry,
    Received,
    Scalars,
    StagePart,
    Sum,
)
from torchkiln.runtime.pipeline._routes import OutputForm, Routes
from torchkiln.runtime.pipeline._schedule import BACKWARD, FORWARD, INFER, Turn

# Finds what is the same for all micro-batches of a run.
Lookup = Callable[[Bound | Sum | Scalars], Tensor]
# Micro-batches of inference that a stage may be ahead of those behind it.
_MOST_AHEAD = 2


class _Sent(NamedTuple):
    """Something on its way to a later or earlier stage."""

    turn: Turn
    to: int
    transfer: Transfer


@final
class StageRun:
    """Runs the entries of a stage.

    What a turn needs of others is asked for one turn ahead, so that it travels while this process
    computes. What a turn makes is sent without waiting until it has arrived.

    Args:
        part: What the stage runs.
        runs: Its entries, ready to run.
        routes: To the other stages.
        outputs: Of the program, by their flat position.
    """

    def __init__(
        self,
        part: StagePart,
        runs: Mapping[str, Run],
        routes: Routes,
        outputs: Mapping[int, OutputForm],
    ) -> None:
        self._part = part
        self._runs = runs
        self._routes = routes
        self._outputs = dict(outputs)
        self._sent: list[_Sent] = []

    def run(
        self,
        turns: Sequence[Turn],
        batches: Sequence[Sequence[Tensor]],
        lookup: Lookup,
        wanted: Collection[int],
    ) -> list[list[Tensor]]:
        """Run the turns, and return the outputs of the wanted micro-batches, as all stages do.

        Args:
            turns: Entries and micro-batches, in order.
            batches: The arguments of each micro-batch.
            lookup: Finds the module's tensors, gradient sums and scalars.
            wanted: Numbers of micro-batches; others have no outputs in the result.
        """
        inputs = {turn.entry: _Inputs(self._part.entries[turn.entry], lookup) for turn in turns}
        # By micro-batch: what it still needs, and its outputs that this stage made.
        values: dict[int, dict[str, Tensor]] = {}
        made: dict[int, dict[str, Tensor]] = {}
        coming: deque[dict[str, Transfer]] = deque()
        own_outputs = set(self._part.outputs.values())
        written = self._written_memory(lookup)
        self._sent = []
        for place, turn in enumerate(turns):
            for ahead in turns[place + len(coming) : place + 2]:
                coming.append(self._routes.receive(ahead.entry))
            own = values.setdefault(turn.micro_batch, {})
            own.update({name: transfer.wait() for name, transfer in coming.popleft().items()})
            gathered = inputs[turn.entry].gather(batches[turn.micro_batch], own)
            results = self._runs[turn.entry](gathered)
            del gathered
            names = self._part.entries[turn.entry].results
            own.update(zip(names, _apart(results, written), strict=True))
            del results
            sent = self._routes.send(turn.entry, own)
            self._sent += [_Sent(turn, to, transfer) for to, transfer in sent]
            if turn.micro_batch in wanted:
                found = {name: own[name] for name in names if name in own_outputs}
                made.setdefault(turn.micro_batch, {}).update(found)
            if turn.entry == FORWARD:
                kept = set(self._part.kept)
                values[turn.micro_batch] = {n: t for n, t in own.items() if n in kept}
            else:
                del values[turn.micro_batch]
            del own
            self._let_go(turn)
        for one in self._sent:
            one.transfer.wait()
        self._sent = []
        return self._exchange_outputs(len(batches), made, sorted(wanted))

    def _let_go(self, turn: Turn) -> None:
        """Give up memory of what must have arrived by now, so that waiting for it takes no time.

        In inference a stage does wait here, so that it is never far ahead of the others.
        """
        still = []
        for one in self._sent:
            if self._must_have_arrived(one, turn):
                one.transfer.wait()
            else:
                still.append(one)
        self._sent = still

    def _must_have_arrived(self, one: _Sent, turn: Turn) -> bool:
        if turn.entry == INFER:
            return turn.micro_batch - one.turn.micro_batch >= _MOST_AHEAD
        if one.turn.entry == FORWARD:
            # Backward of this micro-batch needed what the later stages made of it.
            return turn.entry == BACKWARD and one.turn.micro_batch <= turn.micro_batch
        # Forward of this one came from an earlier stage, which had done these backwards before.
        behind = self._routes.num_stages - one.to
        return turn.entry == FORWARD and one.turn.micro_batch <= turn.micro_batch - behind

    def _written_memory(self, lookup: Lookup) -> set[int]:
        """Return where the tensors lie that forward changes, and so the next micro-batch."""
        written = (lookup(Bound(index)) for index in self._part.written_buffers)
        return {tensor.untyped_storage().data_ptr() for tensor in written}

    def _exchange_outputs(
        self, num_batches: int, made: Mapping[int, Mapping[str, Tensor]], wanted: Sequence[int]
    ) -> list[list[Tensor]]:
        """Return all outputs of the wanted micro-batches, those of other stages included."""
        routes, found = self._routes, dict[tuple[int, int], Tensor]()
        told, heard = [], []
        for stage in sorted({form.stage for form in self._outputs.values()}):
            forms = {p: form for p, form in self._outputs.items() if form.stage == stage}
            keys = [(number, position) for number in wanted for position in sorted(forms)]
            if stage == routes.stage:
                tensors = [made[number][forms[position].name] for number, position in keys]
            else:
                tensors = [routes.room_for(forms[position]) for _, position in keys]
            found.update(zip(keys, tensors, strict=True))
            for some, row in packed(tensors):
                if stage == routes.stage:
                    others = [other for other in range(routes.num_stages) if other != stage]
                    told += [routes.tell(row, other) for other in others]
                else:
                    heard.append((some, routes.hear(row, stage)))
        for some, transfer in heard:
            unpacked(transfer.wait(), some)
        for transfer in told:
            transfer.wait()
        positions = sorted(self._outputs)
        return [
            [found[number, position] for position in positions] if number in set(wanted) else []
            for number in range(num_batches)
        ]


class _Inputs:
    """Puts the inputs of an entry together; what micro-batches have in common is found once."""

    def __init__(self, entry: PartEntry, lookup: Lookup) -> None:
        self._common: list[Tensor | None] = []
        self._own: list[tuple[int, Argument | Kept | Received]] = []
        for position, source in enumerate(entry.inputs):
            if isinstance(source, Argument | Kept | Received):
                self._own.append((position, source))
                self._common.append(None)
            else:
                self._common.append(lookup(source))

    def gather(self, batch: Sequence[Tensor], values: Mapping[str, Tensor]) -> list[Tensor]:
        inputs = list(self._common)
        for position, source in self._own:
            found = batch[source.index] if isinstance(source, Argument) else values[source.name]
            inputs[position] = found
        return inputs  # type: ignore[return-value]  # no gap is left


def _apart(results: Sequence[Tensor], written: set[int]) -> list[Tensor]:
    """Return results that the next micro-batch does not change."""
    if not written:
        return list(results)
    return [
        tensor.clone() if tensor.untyped_storage().data_ptr() in written else tensor
        for tensor in results
    ]
