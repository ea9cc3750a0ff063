"""Parts of a step, run one after the other, do to the bit what the whole step does."""

from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from _models import CASES
from _parts_in_turn import Recorded, assert_parts_do_the_same
from _staged_models import STAGED, classes, rows
from torch import Tensor, nn

from torchkiln.core import CaptureError, OptionsError
from torchkiln.runtime import begin_block
from torchkiln.runtime.passes._numbers import graph_digest
from torchkiln.runtime.passes._stages import Stages
from torchkiln.runtime.pipeline._division import is_random
from torchkiln.runtime.pipeline._memory import is_writing
from torchkiln.runtime.pipeline._parts import Argument, Kept, Received
from torchkiln.torch_internals._tensors import storage_key

BLOCKS = {
    "mlp": ("layers.0", "layers.2"),
    "cnn": ("conv", "norm", "head"),
    "dropout": ("conv", "norm", "head"),
    "gcn": ("first", "second"),
    "gat": ("first", "second"),
    "lstm": ("recurrent", "head"),
    "transformer": ("layer.self_attn", "layer.norm1", "head"),
}


# A network with long skips in three stages is in every run; other large ones are left to the long.
_LARGE = ("u-net in half", "u-net, recomputed")


def large_is_slow(name: str) -> object:
    """Return a case, marked if it takes long."""
    return pytest.param(name, marks=pytest.mark.slow) if name in _LARGE else name


def staged(name: str, training: bool = True, **options: object) -> Recorded:
    case = STAGED[name]
    torch.manual_seed(0)
    chosen = {**case.options, **options}
    if not training:
        chosen.pop("recompute", None)
    return Recorded(case.make(), case.batch(), case.blocks, training, **chosen)


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("case", BLOCKS)
def test_parts_do_what_the_whole_does(case, training):
    torch.manual_seed(0)
    batch = CASES[case].batch(torch.Generator().manual_seed(0), 1)
    blocks = tuple((name,) for name in BLOCKS[case])
    assert_parts_do_the_same(Recorded(CASES[case].make(), batch, blocks, training))


@pytest.mark.parametrize("name", [large_is_slow(name) for name in STAGED])
def test_parts_of_difficult_models_do_what_the_whole_does(name):
    recorded = staged(name)
    assert_parts_do_the_same(recorded)
    check_order(recorded)
    check_frugality(recorded)
    check_memory(recorded)


@pytest.mark.parametrize(
    "name", ["decoder", "outputs", "in place", "buffers", large_is_slow("u-net in half")]
)
def test_parts_of_inference_do_what_the_whole_does(name):
    assert_parts_do_the_same(staged(name, training=False))


# -- what each part holds -------------------------------------------------------------------------


def received(recorded: Recorded, stage: int, entry: str = "forward") -> dict[str, int]:
    return {r.name: r.stage for r in recorded.parts[stage].receives[entry]}


def operators(recorded: Recorded, stage: int, entry: str) -> list[str]:
    graph = recorded.parts[stage].entries[entry].entry.graph
    return [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize(
    "name",
    ["blocks", "buffers", pytest.param("u-net, 3", marks=pytest.mark.slow), "in place", "skips"],
)
def test_several_micro_batches_may_be_under_way(name):
    # No chance: forward and backward take turns in another order than in one process.
    recorded = staged(name)
    for module in recorded.step.binding.module.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    recorded = Recorded(recorded.step.binding.module, recorded.micro_batch, recorded.stages.blocks)
    assert_parts_do_the_same(recorded, ahead=4)


@pytest.mark.slow
def test_the_same_step_is_cut_into_the_same_code():
    """In an order that no address of an object decides: stages were compiled at every start."""
    cuts = [staged("u-net, 3").parts for _ in range(3)]
    digests = [
        [graph_digest(entry.entry.graph) for part in parts for entry in part.entries.values()]
        for parts in cuts
    ]
    assert digests[0] == digests[1] == digests[2]
    results = [[e.results for part in parts for e in part.entries.values()] for parts in cuts]
    assert results[0] == results[1] == results[2]


def test_values_that_pass_over_a_stage_go_straight():
    recorded = staged("u-net, 3")
    (sends,) = [part.sends["forward"] for part in recorded.parts if part.stage == 0]
    to = sorted(send.to for send in sends)
    assert (2,) in to, "a skip connection"
    assert len(to) == len({send.name for send in sends})
    assert set(received(recorded, 2).values()) == {0, 1}


def test_masks_and_places_are_made_where_they_are_used():
    recorded = staged("decoder")
    for stage in (1, 2):
        (name,) = received(recorded, stage)
        assert recorded.parts[stage].receives["forward"][0].shape == (4, 5, 8), name
        assert "aten.triu.default" in operators(recorded, stage, "forward")
    assert "aten.arange.default" not in operators(recorded, 1, "forward")


def test_only_the_last_stage_takes_labels():
    recorded = staged("u-net, 3")
    taken = [
        {source.index for source in entry.inputs if isinstance(source, Argument)}
        for part in recorded.parts
        for entry in [part.entries["forward"]]
    ]
    assert taken == [{0}, set(), {1}]


def check_frugality(recorded: Recorded) -> None:
    """Look that nothing is computed, sent or kept that nobody needs."""
    wanted = {
        (part.stage, source.name)
        for part in recorded.parts
        for entry in part.entries.values()
        for source in entry.inputs
        if isinstance(source, Received | Kept)
    }
    wanted |= {(part.stage, name) for part in recorded.parts for name in part.outputs.values()}
    for part in recorded.parts:
        sent = {name for sends in part.sends.values() for s in sends for name in [s.name]}
        for entry in part.entries.values():
            for result in entry.results:
                assert (part.stage, result) in wanted or result in sent, result
            for node in entry.entry.graph.graph.nodes:
                is_effect = is_writing(node) or is_random(node)
                is_token = node.target is operator.getitem and node.args[1] == 1
                assert node.users or is_effect or is_token or node.op == "output", node
            for node in entry.entry.graph.graph.find_nodes(op="placeholder"):
                assert node.users
        for sends in part.sends.values():
            assert all((stage, send.name) in wanted for send in sends for stage in send.to)


def check_order(recorded: Recorded) -> None:
    """Look that forward needs earlier stages only, and backward later ones."""
    for part in recorded.parts:
        assert all(r.stage < part.stage for r in part.receives["forward"])
        assert all(r.stage > part.stage for r in part.receives["backward"])


def check_memory(recorded: Recorded) -> None:
    """Look that no weight is kept, and no memory twice."""
    weights = {
        tuple(b.tensor.shape) for b in recorded.step.binding.parameters if b.tensor.dim() > 1
    }
    for part in recorded.parts:
        entry = part.entries["forward"]
        output = entry.entry.graph.graph.output_node().args[0]
        keys = [storage_key(node.meta["val"]) for node in output]
        assert len(keys) == len(set(keys))
        kept = dict(zip(entry.results, output, strict=True))
        for key in part.kept:
            if key in kept:
                value = kept[key].meta["val"]
                assert tuple(value.shape) not in weights or value.shape[0] == 4, key


# -- what cannot be cut ---------------------------------------------------------------------------


def blocks(*names: str) -> tuple[tuple[str, ...], ...]:
    return tuple((name,) for name in names)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.b(self.a(x)), y)


class Chain(nn.Module):
    """Layers in the order of `order`, with a buffer that some of them change."""

    def __init__(self, order: str = "abc", changing: str = "", reading: str = "") -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.unused = nn.Linear(6, 6)
        self.register_buffer("seen", torch.zeros(()))
        self.order, self.changing, self.reading = order, changing, reading

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for name in self.order:
            x = getattr(self, name)(x)
            if name in self.changing:
                self.seen.add_(1.0)
            if name in self.reading:
                x = x + self.seen
        return F.cross_entropy(x, y)


class Forces(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        (forces,) = torch.autograd.grad(self.b(self.a(x).tanh()).sum(), x, create_graph=True)
        return F.cross_entropy(forces, y)


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 6)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        begin_block("first")
        x = self.a(x)
        begin_block(2)
        return F.cross_entropy(x, y)


class Idle(Chain):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        self.b(x)
        self.c(x)
        return F.cross_entropy(self.a(x), y)


REFUSED = {
    "weights of two stages": (Tied, blocks("a", "b"), {}, r"'a.weight' is used in stage 0 and"),
    "wrong order": (Chain, blocks("b", "a"), {}, r"'b' of stage 0 .* the order in which"),
    "entered again": (lambda: Chain("aba"), blocks("a", "b"), {}, "'a' of stage 0 begins after"),
    "no such module": (Chain, blocks("a", "z"), {}, r"names the block 'z'.* modules are 'a', 'b'"),
    "not called": (Chain, blocks("a", "unused"), {}, "forward calls none of its blocks"),
    "not needed": (Idle, blocks("b", "c"), {}, "stage 0 of the pipeline has no work"),
    "no stage names it": (Named, blocks("first", "a"), {}, "block '2', which no stage"),
    "changed elsewhere": (
        lambda: Chain(changing="b", reading="a"),
        blocks("a", "b"),
        {},
        r"buffer 'seen' is changed in stage 1 of the pipeline and used in stage 0",
    ),
    "changed twice": (
        lambda: Chain(changing="ab"),
        blocks("a", "b"),
        {},
        r"buffer 'seen' is changed in stage 0 of the pipeline and in stage 1",
    ),
    "gradients inside": (Forces, blocks("a", "b"), {}, r"torch.autograd.grad on several stages"),
    "recomputed as one": (Chain, blocks("a", "b"), {"recompute": [""]}, "begins in stage 0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_cut_is_refused_with_a_remedy(case):
    make, names, options, words = REFUSED[case]
    with pytest.raises(CaptureError, match=words):
        Recorded(make(), (rows(), classes()), names, **options)


def test_stages_name_a_block_once_and_are_not_empty():
    with pytest.raises(OptionsError, match="'a' in stage 0 and in stage 1"):
        Stages((("a",), ("b", "a")))
    with pytest.raises(OptionsError, match="stage 1 of the pipeline names no block"):
        Stages((("a",), ()))


def test_what_is_changed_in_an_earlier_stage_may_be_read_in_a_later_one():
    module = Chain(changing="a", reading="b")
    assert_parts_do_the_same(Recorded(module, (rows(), classes()), blocks("a", "b")))


def test_without_stages_blocks_change_nothing():
    begin_block("anything")
    recorded = Recorded(Named(), (rows(), classes()), blocks("first", "2"))
    plain = str(recorded.whole.entries["accumulate"].graph.code)
    assert "aten.addmm" in plain
    assert [part.parameters for part in recorded.parts] == [("a.weight", "a.bias"), ()]


def test_loss_scaling_reaches_backward():
    recorded = staged("blocks", loss_scaling=8.0)
    assert_parts_do_the_same(recorded)


def test_a_small_view_is_sent_alone_and_memory_by_its_places_as_a_whole():
    recorded = staged("strides")
    shapes = sorted(r.shape for r in recorded.parts[1].receives["forward"])
    assert shapes == [(4, 2), (4, 24)]


def test_an_anchored_gradient_comes_from_the_stage_of_its_parameter():
    recorded = staged("anchors")
    first, _, last = recorded.parts
    assert set(first.outputs) == {3}
    assert first.outputs[3] in first.entries["backward"].results
    assert set(last.outputs) == {0, 1, 2}
