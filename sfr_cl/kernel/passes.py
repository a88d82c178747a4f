"""One pass through a module: what surrounds it, what it gives, and the graph it leaves."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from sfr_cl.data.inputs import Inputs, leaves, length, tree_map
from sfr_cl.errors import DataError
from sfr_cl.kernel.precision import without_autocast

LOCK = RLock()
"""Of passes through networks, of all threads."""


def as_matrix(outputs: Tensor) -> Tensor:
    """Outputs as ``[B, C]``."""
    return outputs[:, None] if outputs.ndim == 1 else outputs


def run(network: Callable[[Inputs], Any], x: Inputs) -> Tensor:
    """A network's outputs as ``[B, C]``, checked, whatever autocast region the caller is in."""
    try:
        with without_autocast():
            outputs = network(x)
    except Exception as error:
        advice = ""
        if isinstance(error, TypeError) or not isinstance(x, Tensor):
            advice = (
                "; inputs are given as one argument: where forward takes several, give a small "
                "module that unpacks a dict or tuple of them, such as self.network(**x)"
            )
        raise DataError(
            f"expected inputs the network can take, got shape {_shapes(x)}: {error}{advice}"
        ) from error
    fits = isinstance(outputs, Tensor) and outputs.ndim in (1, 2) and outputs.is_floating_point()
    if not fits or len(outputs) != length(x) or not outputs.numel():
        got = type(outputs).__name__
        if isinstance(outputs, Tensor):
            got = f"{list(outputs.shape)} of {outputs.dtype}"
        raise DataError(
            f"expected a network whose outputs are floats [B, C], got {got} for inputs of "
            f"shape {_shapes(x)}"
        )
    return as_matrix(outputs)


def _shapes(x: Inputs) -> str:
    return ", ".join(f"{list(leaf.shape)}" for _, leaf in leaves(x))


def graph_leaves(outputs: Tensor) -> Iterator[Tensor]:
    """The leaves of a graph, each as often as it enters.

    Raises:
        RuntimeError: a reentrant checkpoint hides a part of the graph.
    """
    seen, pending = set(), [outputs.grad_fn]
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name() == "CheckpointFunctionBackward":
            raise RuntimeError("expected a graph that is shown, got a reentrant checkpoint")
        for following, _ in node.next_functions:
            variable = getattr(following, "variable", None)
            if variable is not None:
                yield variable
            else:
                pending.append(following)


def asking(run: Callable[[Inputs], Tensor], x: Inputs) -> Tensor:
    """Outputs for inputs that ask for a gradient, unless the network can't take such.

    A reentrant checkpoint gives none to its parameters where no input asks for one.
    """

    def ask(leaf: Tensor) -> Tensor:
        leaf = leaf.detach()
        return leaf.requires_grad_(True) if leaf.is_floating_point() or leaf.is_complex() else leaf

    try:
        return run(tree_map(ask, x))
    except DataError:
        return run(x)


@contextmanager
def no_lost_gradients() -> Iterator[None]:
    """Let a reentrant checkpoint fail where it would find no gradient: no input asks for one."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="None of the inputs have requires_grad")
        yield


@contextmanager
def eval_mode(network: nn.Module) -> Iterator[None]:
    """Evaluate in eval mode and give every module its own mode back."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            if module.training != mode:
                module.training = mode


@contextmanager
def untouched(network: nn.Module) -> Iterator[None]:
    """Give every module the attributes it had: some keep the features of their last mini-batch."""
    kept = [(vars(part), dict(vars(part))) for part in network.modules()]
    try:
        yield
    finally:
        for attributes, old in kept:
            for name in attributes.keys() - old.keys():
                del attributes[name]
            attributes.update(old)


BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm


def batch_norms(network: nn.Module) -> list[BatchNorm]:
    """The layers that normalise by running statistics, once they are evaluated."""
    return [part for part in network.modules() if isinstance(part, BatchNorm)]


@contextmanager
def own_statistics(network: nn.Module, count: int) -> Iterator[None]:
    """Evaluate ``count`` inputs, batch norm by their own statistics: a function of the weights.

    Running statistics follow whatever is trained on, although no weight moves. They are left alone,
    and every module gets its own mode back. One input has no statistics.
    """
    layers = batch_norms(network) if count > 1 else []
    tracking = [layer.track_running_stats for layer in layers]
    with eval_mode(network):
        try:
            for layer in layers:
                layer.training, layer.track_running_stats = True, False
            yield
        finally:
            for layer, value in zip(layers, tracking, strict=True):
                layer.track_running_stats = value


@contextmanager
def alone() -> Iterator[None]:
    """One thread at a time, since a pass changes modules, and switches that all threads share.

    Attention is by plain products: the fused kernels have no derivatives or batching rules. And no
    autocast: these are products of the network's own precision.
    """
    with LOCK:
        before = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            with sdpa_kernel(SDPBackend.MATH), without_autocast():
                yield
        finally:
            torch.backends.mha.set_fastpath_enabled(before)
