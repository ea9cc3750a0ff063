import pickle

import pytest
import torch

from torchkiln.datasets.qm9 import _view_pickle


def test_views_come_back_and_share_their_storage(tmp_path):
    whole = torch.arange(24, dtype=torch.float32).view(6, 4)
    names = torch.arange(6)
    saved = [{"rows": whole[i : i + 2], "columns": whole[:, i], "name": names[i]} for i in range(3)]
    torch.save(saved, tmp_path / "views.pt", pickle_module=_view_pickle)
    loaded = torch.load(tmp_path / "views.pt", weights_only=True)
    for before, after in zip(saved, loaded, strict=True):
        for name, tensor in before.items():
            assert torch.equal(tensor, after[name])
            assert tensor.dtype == after[name].dtype
            assert tensor.stride() == after[name].stride()
    loaded[0]["rows"][0, 0] = -1
    assert loaded[0]["columns"][0] == -1


def test_other_objects_are_pickled_as_ever(tmp_path):
    torch.save({"a": [1, "b", (None, 2.5)]}, tmp_path / "plain.pt", pickle_module=_view_pickle)
    assert torch.load(tmp_path / "plain.pt") == {"a": [1, "b", (None, 2.5)]}


@pytest.mark.parametrize(
    "tensor", [torch.ones(2, requires_grad=True), torch.nn.Parameter(torch.ones(2))]
)
def test_what_would_lose_something_is_refused(tensor, tmp_path):
    with pytest.raises(pickle.PicklingError, match="plain tensors without gradient"):
        torch.save([tensor], tmp_path / "gradient.pt", pickle_module=_view_pickle)
