"""Operations that compilers do badly or a static graph cannot hold, each as a static one."""

from torchkiln.ops._cfconv import cfconv, cfconv_table
from torchkiln.ops._control import choose, repeat
from torchkiln.ops._ctc import static_ctc_loss
from torchkiln.ops._ctc_decoder import ctc_beam_search
from torchkiln.ops._custom import call_custom_op, register_custom_op, registered_custom_ops
from torchkiln.ops._host import host_call, register_host_function
from torchkiln.ops._masked_losses import (
    masked_binary_cross_entropy_with_logits,
    masked_cross_entropy,
    masked_huber_loss,
    masked_l1_loss,
    masked_mean,
    masked_mse_loss,
    masked_smooth_l1_loss,
)
from torchkiln.ops._points import farthest_points, nearest
from torchkiln.ops._print import PrintFormat, print_tensor
from torchkiln.ops._random import bernoulli_is_exact, draw
from torchkiln.ops._refine import refine
from torchkiln.ops._scatter import scatter_extreme, scatter_sum
from torchkiln.ops._segments import segment_sum
from torchkiln.ops._slices import dynamic_slice, dynamic_update
from torchkiln.ops._softplus_mlp import Layer, softplus_mlp

__all__ = [
    "Layer",
    "PrintFormat",
    "draw",
    "bernoulli_is_exact",
    "cfconv",
    "cfconv_table",
    "call_custom_op",
    "choose",
    "ctc_beam_search",
    "dynamic_slice",
    "dynamic_update",
    "farthest_points",
    "host_call",
    "masked_binary_cross_entropy_with_logits",
    "masked_cross_entropy",
    "masked_huber_loss",
    "masked_l1_loss",
    "masked_mean",
    "masked_mse_loss",
    "masked_smooth_l1_loss",
    "nearest",
    "print_tensor",
    "refine",
    "register_custom_op",
    "register_host_function",
    "registered_custom_ops",
    "repeat",
    "scatter_extreme",
    "scatter_sum",
    "segment_sum",
    "softplus_mlp",
    "static_ctc_loss",
]
