"""One rule per layer type: from a layer's input and output gradients to its parameters' gradients.

To add a layer, write one function and register it. Per-channel scaling, for example:

    @rule(Scale)
    def scale(layer, names, a, g):
        # y = weight * x, so that each input's gradient is g * a, summed over positions.
        return [Direct((g * a).flatten(2, -2).sum(2))]

A rule gets

* ``layer``: the module, of exactly the registered type, called once with one tensor;
* ``names``: which of its own parameters are differentiated;
* ``a``: the layer's input, ``[B, ...]``;
* ``g``: the gradient of every output with respect to the layer's output, ``[C, B, ...]``;

and returns factors whose inner products, summed, are those of the gradients with respect to those
parameters. ``None`` leaves the layer to the generic rule. Every rule is compared with per-sample
Jacobians in the tests: add a network with the new layer to their list of cases.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from torch import Tensor, nn
from torch.nn import functional as F

from sfr_cl.kernel.factors import Direct, Outer

Rule = Callable[[nn.Module, Sequence[str], Tensor, Tensor], "list[Outer | Direct] | None"]
AnyRule = TypeVar("AnyRule", bound=Callable[..., "list[Outer | Direct] | None"])

RULES: dict[type[nn.Module], Rule] = {}


def rule(*kinds: type[nn.Module]) -> Callable[[AnyRule], AnyRule]:
    """Register a rule for layers of exactly these types."""

    def register(function: AnyRule) -> AnyRule:
        for kind in kinds:
            RULES[kind] = function
        return function

    return register


@rule(nn.Linear)
def linear(layer: nn.Linear, names: Sequence[str], a: Tensor, g: Tensor) -> list[Outer | Direct]:
    """y = W a + b at any number of positions: dW = sum_t g_t a_t', db = sum_t g_t."""
    del layer
    return [_outer(names, a.reshape(len(a), -1, a.shape[-1]), g)]


@rule(nn.Conv1d, nn.Conv2d)
def convolution(
    layer: nn.Conv1d | nn.Conv2d, names: Sequence[str], a: Tensor, g: Tensor
) -> list[Outer | Direct]:
    """A linear layer over patches; with groups, one for each group of channels."""
    patches = _patches(layer, a)  # [B, channels * kernel, T]
    g = g.flatten(3)  # [C, B, channels, T]
    if layer.groups == 1:
        return [_outer(names, patches.mT, g.mT)]
    factors: list[Outer | Direct] = []
    if "weight" in names:
        patches = patches.unflatten(1, (layer.groups, -1))
        grouped = g.unflatten(2, (layer.groups, -1))
        factors.append(Direct((grouped @ patches.mT).flatten(2)))
    if "bias" in names:
        factors.append(Direct(g.sum(3)))
    return factors


@rule(nn.Embedding)
def embedding(
    layer: nn.Embedding, names: Sequence[str], a: Tensor, g: Tensor
) -> list[Outer | Direct] | None:
    """A linear layer over one-hot vectors; the padding row has no gradient."""
    del names
    if layer.max_norm is not None or layer.scale_grad_by_freq:
        return None
    tokens = a.reshape(len(a), -1).long()
    g = g.reshape(*g.shape[:2], -1, g.shape[-1])
    if layer.padding_idx is not None:
        g = g * (tokens != layer.padding_idx)[..., None]
    return [Outer(tokens, g, layer.num_embeddings)]


@rule(nn.LayerNorm)
def layer_norm(
    layer: nn.LayerNorm, names: Sequence[str], a: Tensor, g: Tensor
) -> list[Outer | Direct]:
    """y = weight * standardised(a) + bias over the last dimensions."""
    standard = F.layer_norm(a, layer.normalized_shape, eps=layer.eps)
    dims = len(layer.normalized_shape)
    rows = {"weight": g * standard, "bias": g}
    return [
        Direct(rows[name].reshape(*g.shape[:2], -1, *g.shape[-dims:]).sum(2).flatten(2))
        for name in names
    ]


@rule(nn.GroupNorm)
def group_norm(
    layer: nn.GroupNorm, names: Sequence[str], a: Tensor, g: Tensor
) -> list[Outer | Direct]:
    """y = weight * standardised(a) + bias, by channel."""
    return _by_channel(names, F.group_norm(a, layer.num_groups, eps=layer.eps), g)


@rule(nn.BatchNorm1d, nn.BatchNorm2d)
def batch_norm(
    layer: nn.BatchNorm1d | nn.BatchNorm2d, names: Sequence[str], a: Tensor, g: Tensor
) -> list[Outer | Direct] | None:
    """y = weight * standardised(a) + bias, by channel, with running statistics."""
    if layer.running_mean is None or layer.running_var is None:
        return None
    standard = F.batch_norm(a, layer.running_mean, layer.running_var, eps=layer.eps)
    return _by_channel(names, standard, g)


@rule(nn.PReLU)
def prelu(layer: nn.PReLU, names: Sequence[str], a: Tensor, g: Tensor) -> list[Outer | Direct]:
    """y = max(a, 0) + weight * min(a, 0), with one weight, or one by channel."""
    del names
    rows = (g * a.clamp_max(0)).reshape(*g.shape[:2], layer.num_parameters, -1)
    return [Direct(rows.sum(3))]


def _by_channel(names: Sequence[str], standard: Tensor, g: Tensor) -> list[Outer | Direct]:
    rows = {"weight": g * standard, "bias": g}
    return [Direct(rows[name].reshape(*g.shape[:3], -1).sum(3)) for name in names]


def _outer(names: Sequence[str], a: Tensor, g: Tensor) -> Outer | Direct:
    """Gradients of a weight, a bias, or both, at positions ``[B, T, p]``."""
    g = g.reshape(*g.shape[:2], a.shape[1], g.shape[-1])
    return Outer(a, g, a.shape[2], "bias" in names) if "weight" in names else Direct(g.sum(2))


def _patches(layer: nn.Conv1d | nn.Conv2d, a: Tensor) -> Tensor:
    """What each output position of a convolution sees, ``[B, channels * kernel, T]``."""
    sizes = zip(layer.kernel_size, layer.dilation, strict=True)
    if layer.padding == "same":
        total = [dilation * (size - 1) for size, dilation in sizes]
        padding = [(amount // 2, amount - amount // 2) for amount in total]
    elif layer.padding == "valid":
        padding = [(0, 0) for _ in sizes]
    else:
        padding = [(int(amount), int(amount)) for amount in layer.padding]
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    a = F.pad(a, [side for pair in reversed(padding) for side in pair], mode=mode)
    kernel, stride, dilation = layer.kernel_size, layer.stride, layer.dilation
    if a.ndim == 3:  # a signal is an image one pixel high
        a, kernel = a[:, :, None], (1, *kernel)
        stride, dilation = (1, *stride), (1, *dilation)
    return F.unfold(a, kernel, dilation=dilation, stride=stride)
