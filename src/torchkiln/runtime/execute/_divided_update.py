"""`DividedUpdate`: each of several processes changes its part of all parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from torchkiln.core import Options, Reduction
from torchkiln.runtime.execute._block_sums import BlockSums
from torchkiln.runtime.execute._clocked import Run
from torchkiln.runtime.execute._exchange import Exchange
from torchkiln.runtime.optim._binding import OptimizerBinding
from torchkiln.runtime.optim._division import Division, Piece, flat_memory
from torchkiln.runtime.optim._state_dtypes import HALVES, widened
from torchkiln.runtime.optim._tables import inverse_scale, scalars_of
from torchkiln.runtime.optim._update_rules import LAMBRule

# Elements that are squared at once, in double precision: no copy of a whole part is made.
_STRETCH = 2**18


@final
class DividedUpdate:
    """Adds up gradients where they are used, and puts parameters together.

    Args:
        optimizer: Whose state is divided.
        division: How.
        options: Of the program.
        exchange: With the other processes.
        device: Where the parameters are.
    """

    def __init__(
        self,
        optimizer: OptimizerBinding,
        division: Division,
        options: Options,
        exchange: Exchange,
        device: torch.device,
    ) -> None:
        self._optimizer = optimizer
        self._division = division
        self._exchange = exchange
        self._rank = exchange.group.world.rank
        self._mean = (
            1.0 / options.total_micro_batches_per_update
            if options.reduction is Reduction.MEAN
            else 1.0
        )
        self.sums = BlockSums(division, optimizer.sum_forms(), self._rank, device)
        # Of all gradients together, before the scale of the loss is undone.
        self._square = 0.0

    def share(self, digest: int, told: Sequence[float]) -> Tensor:
        """Replace this process' parts of the sums by those of all processes.

        Args:
            digest: See `Exchange.sum_`.
            told: Numbers for all others.

        Returns:
            What each process told, a row for each.

        Raises:
            DistributedError: A process is missing, or is at another update.
        """
        sums = self.sums
        rows = self._exchange.sum_parts_(sums.buffers, digest, lambda: [self._own_square(), *told])
        self._square = sum(rows[:, 0].tolist())
        return rows[:, 1:].float()

    def measure_alone(self) -> None:
        """Go on as if the parts of the others had no gradients; for steps that are undone."""
        self._square = self._own_square()

    def update(self, run: Run, tables: list[Tensor], *, is_apart: bool) -> None:
        """Change the parameters by the sums, which are zero afterwards.

        Args:
            run: Changes this process' parts.
            tables: The numbers of the update.
            is_apart: Whether nobody else takes part; then parameters of others stay as they are.
        """
        state, sums = self._optimizer.state_tensors, self.sums
        flats = [flat_memory(param) for param in self._optimizer.params]
        values = sums.spare_parts()
        with torch.no_grad():
            for value, pieces in zip(values, self._own_pieces(), strict=True):
                for piece in pieces:
                    value[piece.place].copy_(flats[piece.member][piece.begin : piece.end])
            norm = math.sqrt(self._square) * inverse_scale(tables[-1])
            directions = run([*values, *sums.parts, *state, *tables, norm])
            if directions:
                self._follow(directions, values, tables, is_apart=is_apart)
            self._put_together(values, flats, is_apart=is_apart)
            sums.clear_()

    def _own_pieces(self) -> list[tuple[Piece, ...]]:
        """Return what is in this process' part of each block."""
        return [of_ranks[self._rank] for of_ranks in self._division.pieces]

    def _own_square(self) -> float:
        """Return the sum of squares of this process' parts, of means if the update is by means."""
        if not self._optimizer.recipe.clips:
            return 0.0
        # Sums in half precision are means already, see `Entries.accumulate`.
        return sum(
            _square(part) * (1.0 if part.dtype in HALVES else self._mean**2)
            for part in self.sums.parts
        )

    def _follow(
        self,
        directions: list[Tensor],
        values: list[Tensor],
        tables: list[Tensor],
        *,
        is_apart: bool,
    ) -> None:
        """Change parameters that change as a whole: by norms that need all of their parts."""
        division, group = self._division, self._exchange.group
        size = group.world.size
        num_members = -(-len(self._optimizer.params) // size) * size
        squares = torch.zeros((2, num_members), dtype=torch.float64)
        for value, direction, pieces in zip(values, directions, self._own_pieces(), strict=True):
            for piece in pieces:
                squares[0, piece.member] += _square(value[piece.place])
                squares[1, piece.member] += _square(direction[piece.place])
        if not is_apart:
            with self._exchange.timed("norms"):
                group.sum_(squares.view(-1))
        norms = squares.sqrt().to(values[0].device)
        of_parts, own = division.of_parts, self._own_pieces()
        for row, scalars in zip(of_parts.rows, scalars_of(of_parts, tables), strict=True):
            rule = of_parts.recipe.rules[row.group]
            assert isinstance(rule, LAMBRule)
            for index in row.members:
                for piece in own[index]:
                    weight, update = norms[:, piece.member].to(row.dtype)
                    rate = rule.rate(weight, update, scalars[: rule.num_hyper])
                    value = values[index][piece.place]
                    value.copy_(widened(value) - rate * directions[index][piece.place])

    def _put_together(self, values: list[Tensor], flats: list[Tensor], *, is_apart: bool) -> None:
        """Give the parameters what all processes made of their parts."""
        if is_apart:
            for value, pieces in zip(values, self._own_pieces(), strict=True):
                for piece in pieces:
                    flats[piece.member][piece.begin : piece.end].copy_(value[piece.place])
            return
        by_member = dict(enumerate(flats))
        with self._exchange.timed("parameters"):
            for index, value in enumerate(values):
                for begin, rows in self._exchange.group.gather_parts(value):
                    self._division.put_together(index, begin, rows, by_member)


def _square(part: Tensor) -> float:
    """Return the sum of squares of numbers in one dimension."""
    real = torch.view_as_real(part).view(-1) if part.is_complex() else part
    total = 0.0
    for stretch in real.split(_STRETCH):
        wide = stretch.double()
        total += float(torch.dot(wide, wide))
    return total
