"""Values and gradients of many operators, all in one program: one compile proves them all."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn

from torchkiln.core import Options
from torchkiln.runtime import identity_loss, training_model

INDEX = torch.tensor([2, 0, 1, 3, 3, 1])
# float32, in another order of summation.
TOLERANCE = 1e-4


def _write_to_slices(w: Tensor) -> Tensor:
    w = w.clone()
    w[1:3].mul_(2)
    w[:, ::2].add_(w[:, 1::2], alpha=3)
    return w


# Each takes a 6 x 6 parameter of its own.
OPERATORS = {
    "sort": lambda w: w.sort(-1)[0].cumsum(-1),
    "topk": lambda w: w.topk(3)[0],
    "logsumexp": lambda w: w.logsumexp(-1).exp(),
    "scatter_reduce": lambda w: torch.zeros(4, 6).scatter_reduce(
        0, INDEX[:, None].expand(6, 6), w, "amax"
    ),
    "index_add_alpha": lambda w: torch.zeros(4, 6).index_add(0, INDEX, w, alpha=3),
    "index_put_acc": lambda w: torch.zeros(4, 6).index_put((INDEX,), w, accumulate=True).square(),
    "emb_bag": lambda w: F.embedding_bag(INDEX.view(2, 3), w, mode="mean").square(),
    "emb_bag_max": lambda w: F.embedding_bag(INDEX.view(2, 3), w, mode="max").square(),
    "conv_t": lambda w: F.conv_transpose2d(
        torch.ones(1, 1, 3, 3), w.view(1, 1, 6, 6), stride=2
    ).square(),
    "conv1d": lambda w: F.conv1d(w[None], torch.ones(2, 3, 3), groups=2),
    "grid": lambda w: F.grid_sample(
        w.view(1, 1, 6, 6), torch.linspace(-0.9, 0.9, 8).view(1, 2, 2, 2), align_corners=False
    ),
    "interp": lambda w: F.interpolate(w.view(1, 1, 6, 6), scale_factor=1.5, mode="bilinear"),
    "bicubic": lambda w: F.interpolate(w.view(1, 1, 6, 6), size=(4, 9), mode="bicubic"),
    "std": lambda w: w.std(0) + w.var(1, unbiased=False),
    "median": lambda w: w.median(-1)[0],
    "cdist": lambda w: torch.cdist(w, w.detach() + 1),
    "einsum": lambda w: torch.einsum("ij,jk,ki->i", w, w, w),
    "norms": lambda w: (
        F.group_norm(w.view(1, 6, 6), 3).square() * F.instance_norm(w.view(1, 6, 6))
        + F.layer_norm(w, (6,)).sin()
    ),
    "gelu": lambda w: (
        F.gelu(w, approximate="tanh")
        + F.hardswish(w)
        + F.softplus(w, beta=2)
        + F.mish(w)
        + F.celu(w, 0.5)
        + F.selu(w)
    ),
    "maxpool": lambda w: (
        F.max_pool2d(w.view(1, 1, 6, 6), 3, 2, 1) + F.adaptive_avg_pool2d(w.view(1, 1, 6, 6), 3)
    ),
    "lp": lambda w: F.lp_pool2d(w.view(1, 1, 6, 6).abs() + 0.1, 2, 2),
    "unfold": lambda w: F.fold(F.unfold(w.view(1, 1, 6, 6), 3) ** 2, (6, 6), 3),
    "pixel": lambda w: F.pixel_shuffle(w.view(1, 4, 3, 3), 2).square(),
    "roll": lambda w: (w.roll(2, 0).flip(1).triu(1) * w.t()).tril(3),
    "linalg": lambda w: (
        torch.linalg.solve(w @ w.t() + torch.eye(6), w).sum()
        + torch.linalg.det(w * 0.3)
        + torch.linalg.cholesky(w @ w.t() + torch.eye(6)).sum()
    ),
    "inv": lambda w: torch.linalg.inv(w @ w.t() + torch.eye(6)),
    "svd": lambda w: torch.linalg.svdvals(w),
    "cumprod": lambda w: w.cumprod(-1) + w.cummax(0)[0],
    "kth": lambda w: w.kthvalue(2)[0],
    "quant": lambda w: w.quantile(0.3, dim=0),
    "nan": lambda w: torch.nan_to_num(w / (w - w.detach() + 0.5)),
    "addmv": lambda w: torch.addmv(w[0], w, w[1], beta=0.5, alpha=2),
    "addr": lambda w: torch.addr(w, w[0], w[1], beta=0.5, alpha=3),
    "addbmm": lambda w: torch.addbmm(w, w[None], w[None], beta=0.3, alpha=0.2),
    "baddbmm": lambda w: torch.baddbmm(w[None], w[None], w[None], beta=0.3, alpha=0.2),
    "addcdiv": lambda w: torch.addcdiv(w, w, w.abs() + 1, value=0.3),
    "lerp": lambda w: torch.lerp(w, w.t(), 0.3) + torch.lerp(w, w.t(), w.sigmoid()),
    "renorm": lambda w: w.renorm(2, 0, 0.5) + F.normalize(w, dim=-1),
    "where": lambda w: (
        torch.where(w > 0, w, w.exp()) + w.masked_fill(w > 1, 2.0) + w.clamp(-1, 0.5)
    ),
    "gather": lambda w: (
        w.gather(1, INDEX.view(6, 1)) + torch.take_along_dim(w, INDEX[:, None] % 6, 0)
    ),
    "prelu": lambda w: F.prelu(w, w[0]),
    "cell": lambda w: F.glu(w) + F.softmin(w, dim=-1)[:, :3] + w.softmax(0)[:, :3],
    "bilinear": lambda w: F.bilinear(w, w, w.view(1, 6, 6)),
    "cross": lambda w: torch.linalg.cross(w[:, :3], w[:, 3:]),
    "pow": lambda w: (
        (w.abs() + 0.1) ** w.sigmoid()
        + w.square().sqrt()
        + torch.atan2(w, w.t())
        + torch.hypot(w, w.t())
    ),
    "special": lambda w: (
        torch.lgamma(w.abs() + 1)
        + torch.digamma(w.abs() + 1)
        + torch.erf(w)
        + torch.erfinv(w.tanh() * 0.9)
        + torch.special.i0(w)
    ),
    "fmod": lambda w: torch.fmod(w, 0.7) + torch.remainder(w, 0.7) + w.frac() + w.round().detach(),
    "diag": lambda w: (
        torch.diag_embed(w).sum(0)
        + w.diagonal().sum()
        + torch.block_diag(w, w)[3:9, 3:9]
        + torch.kron(w, w)[:6, :6]
    ),
    "pad": lambda w: (
        F.pad(w[None], (1, 2), mode="reflect")[:, :, :6]
        + F.pad(w[None], (1, 2), mode="circular")[:, :, 2:8]
        + F.pad(w, (1, -1))
    ),
    "prod": lambda w: w.prod(0) + w.amax(1) + w.norm(dim=0, p=3) + w.mean(0),
    "slicewrite": lambda w: _write_to_slices(w),
    "int": lambda w: w * (w.long() // 2 + (w > 0).sum()) + w * INDEX,
    "index_copy": lambda w: torch.zeros(6, 6).index_copy(0, torch.arange(6).flip(0), w) * w,
}


class Zoo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterDict(
            {name: nn.Parameter(torch.randn(6, 6)) for name in OPERATORS}
        )

    def forward(self) -> tuple[dict[str, Tensor], Tensor]:
        outputs = {name: function(self.weights[name]) for name, function in OPERATORS.items()}
        return outputs, identity_loss(sum(out.mean() for out in outputs.values()), "none")


BACKENDS = [
    "eager",
    "capture",
    pytest.param("inductor", marks=[pytest.mark.inductor, pytest.mark.slow]),
]


@pytest.mark.parametrize("backend", BACKENDS)
def test_operators_agree_with_eager_pytorch(backend, cache_dir):
    module = Zoo()
    names = list(OPERATORS)
    outputs, loss = module()
    params = [module.weights[name] for name in names]
    grads = torch.autograd.grad(loss, params)
    before = [param.detach().clone() for param in params]
    options = Options(backend=backend, cache_dir=cache_dir, show_progress=False)
    program = training_model(module, options, torch.optim.SGD(module.parameters(), lr=1.0))
    got, _ = program()
    for index, name in enumerate(names):
        change = before[index] - params[index].detach()
        torch.testing.assert_close(
            got[name], outputs[name].detach(), rtol=TOLERANCE, atol=TOLERANCE, msg=name
        )
        torch.testing.assert_close(
            change, grads[index], rtol=TOLERANCE, atol=TOLERANCE, msg=f"gradient of {name}"
        )
