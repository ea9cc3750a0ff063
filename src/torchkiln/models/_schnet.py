"""SchNet on fixed-size batches: the parameters and the maths of PyG's, other arithmetic."""

from __future__ import annotations

from itertools import zip_longest
from typing import Literal, cast, final

import torch
from torch import Tensor, nn

from torchkiln.core import ArgumentError, OptionsError
from torchkiln.models._baked import BakedSchNet, TabulatedModel
from torchkiln.models._elements import NUM_ELEMENTS, atomic_masses, element_rows
from torchkiln.models._filters import GaussianSmearing, cosine_cutoff
from torchkiln.models._grid import FilterGrid, knots_for
from torchkiln.models._interaction import Convolve, Interaction, as_layer, reset_linear
from torchkiln.ops import cfconv, cfconv_table, segment_sum, softplus_mlp
from torchkiln.ops._needs import uses_natives

FilterForm = Literal["exact", "table", "auto"]
# A table costs some evaluations of the filter network, exact filters one for each edge, and splines
# are not free either: with fewer edges than this for each evaluation, exact is faster.
_EDGES_PER_EVALUATION = 4


@final
@uses_natives("_cfconv", "_refine", "_segment_sum", "_softplus_mlp")
class SchNet(TabulatedModel):
    """SchNet with pre-computed edges and static shapes.

    Arguments, results and `state_dict` are those of `torch_geometric.nn.models.SchNet`: weights
    load both ways, and the same seed gives the same initial weights. Edges come with the batch, so
    `interaction_graph` and `max_num_neighbors` do not exist here.

    Args:
        hidden_channels: How many numbers describe an atom.
        num_filters: How many numbers a message between atoms has.
        num_interactions: Number of interaction blocks.
        num_gaussians: Number of Gaussian functions by which a distance is described, at least 2.
        cutoff: The distance at which filters become zero, in the unit of the distances.
        readout: "add" or "mean" over the atoms of a molecule.
        dipole: Predict the magnitude of a dipole moment; forward then needs `pos`.
        mean: Is added to the output of each atom, after it was multiplied by `std`.
        std: See `mean`; they have an effect only together.
        atomref: Values of single atoms by atomic number, [100, 1]; added to each atom, and trained.
        filter: "exact" evaluates filter networks at the distance of each edge; "table" on a grid,
            and lays splines through the values: the result is the same up to rounding in float32,
            and large batches are much faster. Edges beyond the cutoff then carry no message, where
            the exact cosine would rise again. "auto" takes a table if a batch has clearly more edge
            slots than the grid has distances.
        num_knots: Number of points of the splines; None: 21 for each Gaussian but one, which is
            1,024 for 50. See `choose_knots` and `table_error`.

    Raises:
        OptionsError: if a size or a choice makes no sense.
    """

    atomic_mass: Tensor
    initial_atomref: Tensor | None

    def __init__(
        self,
        hidden_channels: int = 128,
        num_filters: int = 128,
        num_interactions: int = 6,
        num_gaussians: int = 50,
        cutoff: float = 10.0,
        readout: str = "add",
        dipole: bool = False,
        mean: float | None = None,
        std: float | None = None,
        atomref: Tensor | None = None,
        filter: FilterForm = "exact",
        *,
        num_knots: int | None = None,
    ) -> None:
        super().__init__()
        _check_sizes(hidden_channels, num_filters, num_interactions, num_gaussians, cutoff)
        if readout not in ("add", "sum", "mean"):
            raise OptionsError(f"readout must be 'add' or 'mean', got {readout!r}")
        if filter not in ("exact", "table", "auto"):
            raise OptionsError(f"filter must be 'exact', 'table' or 'auto', got {filter!r}")
        self.hidden_channels = hidden_channels
        self.num_filters = num_filters
        self.num_interactions = num_interactions
        self.num_gaussians = num_gaussians
        self.cutoff = cutoff
        self.readout = "add" if dipole else readout
        self.dipole = dipole
        self.mean = mean
        self.std = std
        self.filter: FilterForm = filter

        # From here on in PyG's order: the same random numbers go to the same weights.
        if dipole:
            self.register_buffer("atomic_mass", atomic_masses())
        self.embedding = nn.Embedding(NUM_ELEMENTS, hidden_channels, padding_idx=0)
        self.distance_expansion = GaussianSmearing(0.0, cutoff, num_gaussians)
        self.interactions = nn.ModuleList(
            Interaction(hidden_channels, num_gaussians, num_filters)
            for _ in range(num_interactions)
        )
        self.lin1 = nn.Linear(hidden_channels, hidden_channels // 2)
        self.lin2 = nn.Linear(hidden_channels // 2, 1)
        self.register_buffer("initial_atomref", atomref)
        self.atomref = None if atomref is None else nn.Embedding(NUM_ELEMENTS, 1)
        self.reset_parameters()

        self.num_knots = knots_for(num_gaussians) if num_knots is None else num_knots
        self.register_load_state_dict_post_hook(_follow_gaussians)  # type: ignore[no-untyped-call]

    @property
    def num_knots(self) -> int:
        """Distances in the tables of filters."""
        return self.grid.num_knots

    @num_knots.setter
    def num_knots(self, num_knots: int) -> None:
        if num_knots < 4:
            raise OptionsError(f"a table of filters needs at least 4 knots, got {num_knots}")
        self.grid = FilterGrid(self.distance_expansion, self.cutoff, num_knots)

    @property
    def blocks(self) -> list[Interaction]:
        return [cast(Interaction, block) for block in self.interactions]

    def reset_parameters(self) -> None:
        """Draw new weights from torch's generator."""
        self.embedding.reset_parameters()
        for block in self.blocks:
            block.reset_parameters()
        reset_linear(self.lin1)
        reset_linear(self.lin2)
        if self.atomref is not None and self.initial_atomref is not None:
            with torch.no_grad():
                self.atomref.weight.copy_(self.initial_atomref)

    def forward(
        self,
        z: Tensor,
        edge_index: Tensor,
        edge_weight: Tensor,
        batch: Tensor,
        *,
        num_graphs: int,
        edge_ways: Tensor | None = None,
        pos: Tensor | None = None,
    ) -> Tensor:
        """Return one prediction for each molecule, [num_graphs, 1].

        Filler (of `FixedSizeLoader`) changes no molecule; predictions for filler graphs are finite
        and mean nothing.

        Args:
            z: Atomic numbers, int64 [num_nodes].
            edge_index: int64 [2, num_edges], grouped by molecule. With `edge_ways`, each pair of
                atoms once; without, one edge for each message, from row 0 to row 1.
            edge_weight: Distances, [num_edges].
            batch: Molecule of each atom, int64 [num_nodes], ascending.
            num_graphs: Molecules in the batch, filler included: `graph_mask.shape[0]`.
            edge_ways: uint8 [num_edges]: 1 from row 0 to row 1, 2 from row 1 to row 0, 3 both, 0
                none. Filters are then evaluated once for both directions.
            pos: Coordinates, [num_nodes, 3]; for dipole moments only.

        Raises:
            ArgumentError: if shapes do not fit, or `pos` is missing.
        """
        if self.uses_table(edge_weight.shape[0]):
            # Whoever asks for the slope with distance wants forces.
            tables = self.tables(in_float64=edge_weight.requires_grad)
            convolve = self.table_convolution(tables, edge_index, edge_weight, batch, edge_ways)
        else:
            convolve = self._exact_convolution(edge_index, edge_weight, batch, edge_ways)
        return self.evaluate(z, batch, convolve, num_graphs, pos)

    def evaluate(
        self, z: Tensor, batch: Tensor, convolve: Convolve, num_graphs: int, pos: Tensor | None
    ) -> Tensor:
        """Return predictions, with convolutions that are given as a function."""
        h, x = self._embed(z)
        for number, (block, following) in enumerate(zip_longest(self.blocks, self.blocks[1:])):
            h, x = block(convolve(number, x), h, following)
        h, _ = softplus_mlp(h, as_layer(self.lin1), as_layer(self.lin2))
        h = h.to(self.embedding.weight.dtype)
        if self.dipole:
            return self._dipole_moment(h, z, batch, num_graphs, pos)
        if self.mean is not None and self.std is not None:
            h = h * self.std + self.mean
        if self.atomref is not None:
            h = h + element_rows(self.atomref.weight, z)
        total = segment_sum(h, batch, num_graphs)
        if self.readout != "mean":
            return total
        num_atoms = segment_sum(torch.ones_like(h), batch, num_graphs)
        return total / num_atoms.clamp(min=1)

    def _embed(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features of atoms and what the first messages are made of.

        Both depend on the element only: the first layer sees 100 rows instead of all atoms.
        """
        rows = self.embedding.weight
        if not self.num_interactions:
            return element_rows(rows, z), rows
        first = self.blocks[0].conv.lin1(rows).to(rows.dtype)
        return element_rows(rows, z), element_rows(first, z)

    def _exact_convolution(
        self, edge_index: Tensor, edge_weight: Tensor, batch: Tensor, edge_ways: Tensor | None
    ) -> Convolve:
        distances = edge_weight.to(self.embedding.weight.dtype)
        smeared = self.distance_expansion(distances)
        envelope = cosine_cutoff(distances, self.cutoff)
        blocks = self.blocks

        def convolve(number: int, x: Tensor) -> Tensor:
            filters = blocks[number].mlp(smeared) * envelope
            # Under autocast, sums of messages are formed in full precision all the same.
            return cfconv(x.to(filters.dtype), filters, edge_index, batch, edge_ways)

        return convolve

    def table_convolution(
        self,
        tables: tuple[Tensor, ...],
        edge_index: Tensor,
        edge_weight: Tensor,
        batch: Tensor,
        edge_ways: Tensor | None,
    ) -> Convolve:
        """Return convolutions with filters whose splines are `tables`."""
        distances = edge_weight.to(self.embedding.weight.dtype)
        spacing = self.grid.spacing

        def convolve(number: int, x: Tensor) -> Tensor:
            table = tables[number]
            return cfconv_table(
                x.to(table.dtype), table, distances, edge_index, batch, edge_ways, spacing=spacing
            )

        return convolve

    def _dipole_moment(
        self, charges: Tensor, z: Tensor, batch: Tensor, num_graphs: int, pos: Tensor | None
    ) -> Tensor:
        if pos is None:
            raise ArgumentError("a dipole moment needs coordinates; pass pos=, [num_nodes, 3]")
        mass = self.atomic_mass.index_select(0, z)[:, None]
        total = segment_sum(mass, batch, num_graphs)
        # Filler graphs may have no atom; their centre is never used.
        centre = segment_sum(mass * pos, batch, num_graphs) / total.clamp(min=1.0)
        moment = segment_sum(charges * (pos - centre.index_select(0, batch)), batch, num_graphs)
        magnitude: Tensor = torch.linalg.vector_norm(moment, dim=-1, keepdim=True)
        return magnitude

    # -- tables -----------------------------------------------------------------------------

    def uses_table(self, num_edges: int) -> bool:
        """Whether batches with so many edge slots are computed with tables of filters."""
        if self.filter == "auto":
            return num_edges >= _EDGES_PER_EVALUATION * self.grid.num_evaluated
        return self.filter == "table"

    def tables(self, *, in_float64: bool = False) -> tuple[Tensor, ...]:
        """Return the splines of each interaction's filters, [num_knots, num_filters] each.

        Computed `in_float64` they are rounded only once, for exact forces.
        """
        if not self.num_interactions:
            return ()
        networks = [block.mlp for block in self.blocks]
        return cast(tuple[Tensor, ...], self.grid(networks, in_float64=in_float64))

    @torch.no_grad()
    def table_error(self, num_distances: int = 1024) -> float:
        """Return how far filters from tables are from exact ones, with the present weights.

        The largest difference at random distances below the cutoff, relative to the root mean
        square of the filters; the worst interaction counts. Rounding in float32 alone gives some
        5e-6. It grows while a model learns finer filters: check trained weights, not initial ones.
        NaN if the weights are.
        """
        like = self.embedding.weight
        generator = torch.Generator().manual_seed(0)
        drawn = torch.rand(num_distances, generator=generator, dtype=torch.float64) * self.cutoff
        distances = drawn.to(like)
        # Each distance is a molecule of two atoms, of which the first sends ones.
        nodes = torch.arange(2 * num_distances, device=like.device)
        edge_index = torch.stack([nodes[::2], nodes[1::2]])
        edges = (edge_index, distances, nodes // 2, None)
        table = self.table_convolution(self.tables(), *edges)
        exact = self._exact_convolution(*edges)
        ones = like.new_ones(len(nodes), self.num_filters)
        worst = like.new_zeros(())
        for number in range(self.num_interactions):
            wanted = exact(number, ones)[1::2]
            apart = (table(number, ones)[1::2] - wanted).abs().max()
            # Unlike Python's, torch's maximum keeps NaN: spoilt weights are not "exact".
            size = wanted.square().mean().sqrt().clamp(min=torch.finfo(like.dtype).tiny)
            worst = torch.maximum(worst, apart / size)
        return float(worst)

    def choose_knots(self, tolerance: float) -> int:
        """Set `num_knots` to the smallest power of two whose `table_error` is within `tolerance`.

        Before a program is compiled: the number is part of it.

        Raises:
            OptionsError: if no table is that exact in the precision of the weights.
        """
        before = self.num_knots
        for exponent in range(6, 15):
            self.num_knots = 2**exponent
            if self.table_error() <= tolerance:
                return self.num_knots
        error, self.num_knots = self.table_error(), before
        raise OptionsError(
            f"16,384 knots still err by {error:.1e}, more than the tolerance {tolerance:.1e}; in "
            "float32, 1e-5 is the least that makes sense; or use filter='exact'"
        )

    def bake(self) -> BakedSchNet:
        """Return a copy for inference whose tables are computed now, once."""
        return BakedSchNet(self)

    def extra_repr(self) -> str:
        return f"filter={self.filter!r}, num_knots={self.num_knots}, cutoff={self.cutoff}"


def _check_sizes(
    hidden_channels: int,
    num_filters: int,
    num_interactions: int,
    num_gaussians: int,
    cutoff: float,
) -> None:
    least = {
        "hidden_channels": (hidden_channels, 2),
        "num_filters": (num_filters, 1),
        "num_interactions": (num_interactions, 0),
        "num_gaussians": (num_gaussians, 2),
    }
    for name, (value, smallest) in least.items():
        if value < smallest:
            raise OptionsError(f"{name} must be at least {smallest}, got {value}")
    if not 0 < cutoff < float("inf"):
        raise OptionsError(f"cutoff must be a positive length, got {cutoff}")


def _follow_gaussians(model: nn.Module, _: object) -> None:
    """Gaussians are part of the state: ones that were loaded may be others."""
    cast(SchNet, model).grid.lay()
