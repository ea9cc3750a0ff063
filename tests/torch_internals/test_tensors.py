"""What torch's tensors say about themselves, as Torchkiln relies on it."""

import io
import pickle

import pytest
import torch

from torchkiln.torch_internals._fake_tensors import fake_mode
from torchkiln.torch_internals._fx import record_graph
from torchkiln.torch_internals._tensors import (
    has_gradient_hooks,
    is_view,
    mark_for_layers,
    rebuild_tensor,
    storage_key,
    storage_of,
    typed_storage,
    version_of,
    versions_of,
)


@pytest.fixture(params=["real", "fake"])
def tensor(request):
    real = torch.zeros(4)
    return real if request.param == "real" else fake_mode().from_tensor(real)


def test_a_version_counts_writes_also_through_views(tensor):
    assert version_of(tensor) == 0
    tensor.add_(1)
    tensor[1:].mul_(2)
    assert version_of(tensor) == 2
    tensor + 1
    assert version_of(tensor) == 2


def test_versions_of_many_with_those_that_nobody_counts(tensor):
    tensor.add_(1)
    with torch.inference_mode():
        uncounted = torch.zeros(2)
    assert versions_of([tensor, torch.zeros(1)]) == [1, 0]
    assert versions_of([uncounted, tensor]) == [0, 1]


def test_views_are_told_from_copies(tensor):
    assert is_view(tensor[1:])
    assert not is_view(tensor.clone())


def test_the_storage_is_the_same_for_all_views(tensor):
    assert storage_key(tensor[1:]) == storage_key(tensor) == storage_key(tensor.detach())
    other = tensor.clone()
    assert storage_key(other) != storage_key(tensor)


def test_stand_ins_of_views_share_a_storage_too():
    mode, real = fake_mode(), torch.zeros(4)
    assert storage_key(mode.from_tensor(real)) == storage_key(mode.from_tensor(real[1:]))


def test_gradient_hooks_are_seen():
    by_hook, by_accumulation = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    assert not has_gradient_hooks(by_hook)
    handles = [
        by_hook.register_hook(lambda grad: grad),
        by_accumulation.register_post_accumulate_grad_hook(lambda param: None),
    ]
    assert has_gradient_hooks(by_hook)
    assert has_gradient_hooks(by_accumulation)
    for handle in handles:
        handle.remove()
    assert not has_gradient_hooks(by_hook)
    assert not has_gradient_hooks(by_accumulation)


def test_typed_storages_have_one_key_for_all_views():
    base = torch.arange(6.0)
    assert typed_storage(base[2:])[0] == typed_storage(base)[0] != typed_storage(base.clone())[0]


def test_pickles_of_tensors_name_the_function_that_rebuilds_them():
    base = torch.arange(6.0)
    view = base[2:].view(2, 2).t()
    made = view.__reduce_ex__(2)
    assert made[0] is rebuild_tensor
    _, storage = typed_storage(view)
    again = rebuild_tensor(storage, 2, (2, 2), (1, 2), False, None)
    assert torch.equal(again, view)
    file = io.BytesIO()
    torch.save(view, file)
    assert b"_rebuild_tensor_v2" in file.getvalue()
    assert pickle.loads(pickle.dumps(rebuild_tensor)) is rebuild_tensor


def test_a_mask_for_layers_is_recorded_as_an_alias_of_itself():
    mask = torch.tensor([True, False])

    def run(mask):
        return [torch.where(mark_for_layers(mask), 1.0, 0.0)]

    graph = record_graph(run, [mask], {})
    targets = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert targets.count(torch.ops.aten.alias.default) == 1
    assert torch.equal(graph(mask)[0], torch.tensor([1.0, 0.0]))
    assert storage_key(mark_for_layers(mask)) == storage_key(mask)


def test_the_memory_of_a_tensor_keeps_attributes_for_all_views():
    memory = torch.zeros(64, dtype=torch.uint8)
    storage_of(memory).mark = 3
    views = [memory.view(dtype)[1:] for dtype in (torch.float32, torch.int64, torch.bool)]
    del memory
    assert [storage_of(view).mark for view in views] == [3, 3, 3]
    assert not hasattr(storage_of(views[0].clone()), "mark")
