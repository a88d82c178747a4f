"""Networks as people write them, each small, with random weights and running statistics."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune
from torch.utils.checkpoint import checkpoint
from torchvision import models as tv
from torchvision.models.googlenet import BasicConv2d, Inception

from sfr_cl.benchmarks.harness.kernel_cases import images, tokens, vectors
from sfr_cl.data.inputs import Inputs

OUTPUTS = 3

Build = Callable[[], nn.Module]


@dataclass(frozen=True)
class Case:
    """A network, its inputs, and what its kernel differentiates."""

    build: Build
    draw: Callable[[int], Inputs]
    largest: int | None = None
    """Parameters with more numbers are left out, where the oracle would take too long."""

    def network(self) -> nn.Module:
        torch.manual_seed(0)
        network = randomized(self.build().double())
        return measured(network, self.inputs(12))

    def inputs(self, count: int) -> Inputs:
        torch.manual_seed(1)
        return self.draw(count)

    def parameters(self, network: nn.Module) -> str | list[str]:
        if self.largest is None:
            return "all"
        return [n for n, p in network.named_parameters() if p.numel() <= self.largest]


def randomized(network: nn.Module) -> nn.Module:
    """Nothing is zero, one, or the identity, as it is before training."""
    with torch.no_grad():
        for p in network.parameters():
            if p.is_floating_point() and (p.ndim < 2 or (p == p.flatten()[0]).all()):
                p.add_(0.2 * torch.randn_like(p))
    return network


@torch.no_grad()
def measured(network: nn.Module, x: Inputs) -> nn.Module:
    """The network in train mode, its running statistics near those of some inputs."""
    norms = [m for m in network.modules() if getattr(m, "running_mean", None) is not None]
    if norms:
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None
        network.train()(x)
    for norm in norms:
        norm.momentum = 0.1
        norm.running_mean.add_(0.1 * torch.randn_like(norm.running_mean))
        norm.running_var.mul_(torch.empty_like(norm.running_var).uniform_(0.5, 2))
    return network.train()


class Net(nn.Module):
    """Modules and parameters by name, and a function of them and the input."""

    def __init__(self, run: Callable[[Any, Any], Tensor], **parts: nn.Module | Tensor) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            value = part if isinstance(part, nn.Module) else nn.Parameter(part)
            setattr(self, name, value)

    def forward(self, x: Any) -> Tensor:
        return self.run(self, x)


# torchvision ------------------------------------------------------------------------------------


def torchvision_mobilenet_v2() -> nn.Module:
    setting = [[1, 8, 1, 1], [6, 8, 2, 2]]
    return tv.MobileNetV2(OUTPUTS, width_mult=0.25, inverted_residual_setting=setting)


def torchvision_mobilenet_v3() -> nn.Module:
    config = partial(tv.mobilenetv3.InvertedResidualConfig, width_mult=1.0)
    setting = [
        config(8, 3, 8, 8, True, "RE", 2, 1),
        config(8, 5, 24, 16, True, "HS", 1, 2),
    ]
    return tv.MobileNetV3(setting, last_channel=16, num_classes=OUTPUTS)


def torchvision_efficientnet() -> nn.Module:
    config = partial(tv.efficientnet.MBConvConfig, width_mult=1.0, depth_mult=1.0)
    setting = [config(1, 3, 1, 8, 8, 1), config(4, 3, 2, 8, 16, 2)]
    return tv.EfficientNet(setting, dropout=0.2, num_classes=OUTPUTS, last_channel=16)


def torchvision_vgg() -> nn.Module:
    with torch.device("meta"):  # the classifier it comes with has 10^8 weights
        network = tv.VGG(nn.Identity(), num_classes=OUTPUTS, init_weights=False)
    network.features = tv.vgg.make_layers([8, "M", 8, 8, "M"], batch_norm=True)
    network.avgpool = nn.AdaptiveAvgPool2d(2)
    network.classifier = nn.Sequential(
        nn.Linear(32, 12), nn.ReLU(True), nn.Dropout(), nn.Linear(12, OUTPUTS)
    )
    return network


def torchvision_alexnet() -> nn.Module:
    with torch.device("meta"):
        network = tv.AlexNet(OUTPUTS)
    network.features = nn.Sequential(
        nn.Conv2d(3, 8, 11, stride=4, padding=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(8, 12, 5, padding=2),
        nn.ReLU(inplace=True),
    )
    network.avgpool = nn.AdaptiveAvgPool2d(2)
    network.classifier = nn.Sequential(
        nn.Dropout(), nn.Linear(48, 12), nn.ReLU(inplace=True), nn.Linear(12, OUTPUTS)
    )
    return network


def torchvision_regnet() -> nn.Module:
    blocks = tv.regnet.BlockParams([1, 1], [8, 16], [4, 8], [1.0, 1.0], [2, 2], se_ratio=0.25)
    return tv.RegNet(blocks, num_classes=OUTPUTS, stem_width=8)


def torchvision_convnext() -> nn.Module:
    block = tv.convnext.CNBlockConfig
    return tv.ConvNeXt([block(8, 12, 1), block(12, None, 1)], num_classes=OUTPUTS)


def torchvision_swin(version: int) -> nn.Module:
    options: dict[str, Any] = {}
    if version == 2:
        options["block"] = tv.swin_transformer.SwinTransformerBlockV2
        options["downsample_layer"] = tv.swin_transformer.PatchMergingV2
    return tv.SwinTransformer(
        patch_size=[2, 2],
        embed_dim=8,
        depths=[2, 1],
        num_heads=[2, 4],
        window_size=[2, 2],
        num_classes=OUTPUTS,
        **options,
    )


def torchvision_vit() -> nn.Module:
    return tv.VisionTransformer(
        image_size=8,
        patch_size=4,
        num_layers=2,
        num_heads=2,
        hidden_dim=8,
        mlp_dim=12,
        num_classes=OUTPUTS,
    )


def torchvision_maxvit() -> nn.Module:
    return tv.MaxVit(
        input_size=(16, 16),
        stem_channels=8,
        partition_size=2,
        block_channels=[8, 12],
        block_layers=[1, 1],
        head_dim=4,
        stochastic_depth_prob=0.1,
        num_classes=OUTPUTS,
    )


def torchvision_squeezenet() -> nn.Module:
    network = tv.SqueezeNet("1_1", OUTPUTS)
    nn.init.normal_(network.classifier[1].weight, std=1e-3)  # a ReLU follows, with a gradient
    nn.init.constant_(network.classifier[1].bias, 3.0)
    return network


def torchvision_densenet() -> nn.Module:
    return tv.DenseNet(4, (2, 1), num_init_features=8, bn_size=2, num_classes=OUTPUTS)


class NarrowResNet(tv.ResNet):
    """An eighth of the channels behind the stem."""

    def __init__(self, block: Any, **options: Any) -> None:
        super().__init__(block, [1, 1, 1, 1], **options)
        self.fc = nn.Linear(64 * block.expansion, OUTPUTS)

    def _make_layer(self, block: Any, planes: int, *args: Any, **options: Any) -> nn.Sequential:
        return super()._make_layer(block, planes // 8, *args, **options)


def torchvision_resnet() -> nn.Module:
    return NarrowResNet(tv.resnet.BasicBlock)


def torchvision_resnext() -> nn.Module:
    return NarrowResNet(tv.resnet.Bottleneck, groups=4, width_per_group=32)


def torchvision_googlenet() -> nn.Module:
    """With heads at its side, which run in train mode only; an eighth of its channels."""

    def narrow(block: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
        return lambda *sizes, **options: block(
            *(size if size <= 3 else size // 8 for size in sizes), **options
        )

    def side(channels: int, outputs: int, **_: Any) -> nn.Module:
        return nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels // 8, outputs)
        )

    blocks = [narrow(BasicConv2d), narrow(Inception), side]
    network = tv.GoogLeNet(OUTPUTS, aux_logits=True, init_weights=False, blocks=blocks)
    network.fc = nn.Linear(128, OUTPUTS)
    return network


# Text -------------------------------------------------------------------------------------------


class Bert(nn.Module):
    """An encoder over token ids and an attention mask, with a pooler."""

    def __init__(self, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(23, width, padding_idx=0)
        self.positions, self.types = nn.Embedding(6, width), nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.attended = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.fed = nn.LayerNorm(width)
        self.pooler = nn.Linear(width, width)
        self.dropout = nn.Dropout(0.1)
        self.classifier = nn.Linear(width, OUTPUTS)
        self.register_buffer("position_ids", torch.arange(6)[None])

    def forward(self, x: dict[str, Tensor]) -> Tensor:
        ids, mask = x["input_ids"], x["attention_mask"]
        h = self.words(ids) + self.positions(self.position_ids[:, : ids.shape[1]])
        h = self.dropout(self.norm(h + self.types(torch.zeros_like(ids))))
        q, k, v = (
            layer(h).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        scores = scores + (1.0 - mask[:, None, None].to(h.dtype)) * torch.finfo(h.dtype).min
        attended = (self.dropout(scores.softmax(-1)) @ v).transpose(1, 2).flatten(2)
        h = self.attended(h + self.output(attended))
        h = self.fed(h + self.down(F.gelu(self.up(h))))
        return self.classifier(self.dropout(self.pooler(h[:, 0]).tanh()))


class GPT(nn.Module):
    """Causal, its output embedding tied to its input embedding; read at some tokens."""

    def __init__(self, width: int = 8, fused: bool = True) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(17, width), nn.Embedding(5, width)
        self.first, self.second, self.last = (nn.LayerNorm(width) for _ in range(3))
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 12), nn.Linear(12, width)
        self.head = nn.Linear(width, 17, bias=False)
        self.head.weight = self.words.weight
        self.fused = fused
        self.register_buffer("mask", torch.tril(torch.ones(5, 5)).bool(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x) + self.positions(torch.arange(x.shape[1]))
        q, k, v = (
            part.unflatten(2, (2, -1)).transpose(1, 2)
            for part in self.qkv(self.first(h)).chunk(3, -1)
        )
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.mT / math.sqrt(q.shape[-1])
            size = x.shape[1]
            scores = scores.masked_fill(~self.mask[:size, :size], float("-inf"))
            y = scores.softmax(-1) @ v
        h = h + self.project(y.transpose(1, 2).flatten(2))
        h = h + self.down(F.gelu(self.up(self.second(h)), approximate="tanh"))
        return self.head(self.last(h))[:, -1, :OUTPUTS]


def transformer_encoder() -> nn.Module:
    def run(net: Any, x: Tensor) -> Tensor:
        padding = x == 0
        h = net.encoder(net.embed(x) * math.sqrt(8), src_key_padding_mask=padding)
        h = h.masked_fill(padding[..., None], 0.0).sum(1) / (~padding).sum(1, keepdim=True)
        return net.head(h)

    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, norm_first=True)
    encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(8), enable_nested_tensor=False)
    embed = nn.Embedding(19, 8)
    return Net(run, embed=embed, encoder=encoder, head=nn.Linear(8, OUTPUTS))


def encoder_decoder() -> nn.Module:
    def run(net: Any, x: Tensor) -> Tensor:
        queries = net.queries.expand(len(x), -1, -1)
        return net.head(net.transformer(net.embed(x), queries).flatten(1))

    transformer = nn.Transformer(8, 2, 1, 1, 12, batch_first=True)
    transformer.encoder.enable_nested_tensor = False
    return Net(
        run,
        embed=nn.Embedding(19, 8),
        queries=torch.randn(1, 2, 8),
        transformer=transformer,
        head=nn.Linear(16, OUTPUTS),
    )


def words(count: int, length: int = 6, known: int = 19) -> Tensor:
    """Sentences of different lengths, zero behind their ends."""
    found = torch.randint(1, known, (count, length))
    ends = torch.randint(2, length + 1, (count, 1))
    return found.where(torch.arange(length) < ends, 0)


def encoded(count: int) -> Inputs:
    ids = words(count)
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


def recurrent(kind: type[nn.RNNBase], **options: Any) -> nn.Module:
    body = kind(4, 5, batch_first=True, **options)
    width = 5 * (2 if body.bidirectional else 1)
    return Net(
        lambda net, x: net.head(net.body(x)[0][:, -1]), body=body, head=nn.Linear(width, OUTPUTS)
    )


def recurrent_cell(kind: Callable[..., nn.Module]) -> nn.Module:
    def run(net: Any, x: Tensor) -> Tensor:
        state = None
        for step in x.unbind(1):
            state = net.cell(step, state)
        return net.head(state[0] if isinstance(state, tuple) else state)

    return Net(run, cell=kind(4, 5), head=nn.Linear(5, OUTPUTS))


# Adapters and reparametrized weights ------------------------------------------------------------


class LoRA(nn.Module):
    """A frozen layer with a trained update of low rank."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 0.5 * (x @ self.a.T @ self.b.T)


def lora() -> nn.Module:
    return nn.Sequential(
        LoRA(nn.Linear(4, 6)), nn.LayerNorm(6), nn.Tanh(), LoRA(nn.Linear(6, OUTPUTS))
    )


def normed(norm: Callable[[nn.Module], nn.Module]) -> nn.Module:
    return nn.Sequential(
        norm(nn.Conv2d(2, 4, 3)), nn.Tanh(), nn.Flatten(), norm(nn.Linear(16, OUTPUTS))
    )


def old_weight_norm(layer: nn.Module) -> nn.Module:
    """By hooks, as before torch 2."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(layer)


def pruned() -> nn.Module:
    network = mlp()
    prune.l1_unstructured(network[0], "weight", 0.4)
    prune.random_structured(network[2], "weight", 0.3, dim=1)
    return network


def mlp(features: int = 4, activation: nn.Module | None = None) -> nn.Sequential:
    return nn.Sequential(nn.Linear(features, 6), activation or nn.Tanh(), nn.Linear(6, OUTPUTS))


# Convolutions -----------------------------------------------------------------------------------


def conv_head(*layers: nn.Module, width: int) -> nn.Module:
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(width, OUTPUTS))


def unet() -> nn.Module:
    def run(net: Any, x: Tensor) -> Tensor:
        one = net.one(x).relu()
        two = net.two(F.max_pool2d(one, 2)).relu()
        up = net.up(two)
        h = net.merge(torch.cat([up, one], 1)).relu()
        return net.head(h).mean((2, 3))

    return Net(
        run,
        one=nn.Conv2d(2, 4, 3, padding=1),
        two=nn.Conv2d(4, 6, 3, padding=1),
        up=nn.ConvTranspose2d(6, 4, 2, stride=2),
        merge=nn.Conv2d(8, 4, 3, padding=1),
        head=nn.Conv2d(4, OUTPUTS, 1),
    )


def squeeze_excite() -> nn.Module:
    def run(net: Any, x: Tensor) -> Tensor:
        h = net.body(x).relu()
        h = h * net.up(net.down(h.mean((2, 3), keepdim=True)).relu()).sigmoid()
        return net.head(h.flatten(1))

    return Net(
        run,
        body=nn.Conv2d(2, 4, 3, padding=1),
        down=nn.Conv2d(4, 2, 1),
        up=nn.Conv2d(2, 4, 1),
        head=nn.Linear(64, OUTPUTS),
    )


def wavenet() -> nn.Module:
    def run(net: Any, x: Tensor) -> Tensor:
        for filtered, gate in zip(net.filters, net.gates, strict=True):
            padded = F.pad(x, (filtered.dilation[0], 0))
            x = x + filtered(padded).tanh() * gate(padded).sigmoid()
        return net.head(x[..., -1])

    def layers() -> nn.Module:
        return nn.ModuleList(nn.Conv1d(3, 3, 2, dilation=d) for d in (1, 2, 4))

    return Net(run, filters=layers(), gates=layers(), head=nn.Linear(3, OUTPUTS))


def mixer() -> nn.Module:
    def run(net: Any, x: Tensor) -> Tensor:
        h = net.patches(x).flatten(2).mT
        h = h + net.across(net.one(h).mT).mT
        h = h + net.within(net.two(h))
        return net.head(net.norm(h).mean(1))

    return Net(
        run,
        patches=nn.Conv2d(2, 6, 2, stride=2),
        one=nn.LayerNorm(6),
        two=nn.LayerNorm(6),
        norm=nn.LayerNorm(6),
        across=nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 4)),
        within=nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 6)),
        head=nn.Linear(6, OUTPUTS),
    )


# Graphs and sets --------------------------------------------------------------------------------


def graph_net() -> nn.Module:
    def run(net: Any, x: dict[str, Tensor]) -> Tensor:
        h = net.inner(x["nodes"])
        for layer in net.layers:
            degree = x["adjacency"].sum(2, keepdim=True).clamp_min(1)
            h = (h + layer(x["adjacency"] @ h / degree)).relu()
        return net.head(h.sum(1))

    layers = nn.ModuleList(nn.Linear(5, 5) for _ in range(2))
    return Net(run, inner=nn.Linear(3, 5), layers=layers, head=nn.Linear(5, OUTPUTS))


def graphs(count: int) -> Inputs:
    adjacency = (torch.rand(count, 4, 4) < 0.5).double()
    return {"nodes": torch.randn(count, 4, 3).double(), "adjacency": adjacency}


def message_passing() -> nn.Module:
    """All graphs of a batch as one large graph, its messages added up by index."""

    def run(net: Any, x: dict[str, Tensor]) -> Tensor:
        count, nodes = x["nodes"].shape[:2]
        h = net.inner(x["nodes"].flatten(0, 1))
        offset = nodes * torch.arange(count)[:, None, None]
        source, target = (x["edges"] + offset).flatten(0, 1).unbind(1)
        messages = net.message(torch.cat([h[source], h[target]], 1)).relu()
        summed = torch.zeros_like(h).index_add(0, target, messages)
        h = (h + net.update(summed)).relu()
        graph = torch.arange(count).repeat_interleave(nodes)
        pooled = h.new_zeros(count, h.shape[1]).scatter_add(0, graph[:, None].expand_as(h), h)
        return net.head(pooled)

    return Net(
        run,
        inner=nn.Linear(3, 5),
        message=nn.Linear(10, 5),
        update=nn.Linear(5, 5),
        head=nn.Linear(5, OUTPUTS),
    )


def edge_lists(count: int) -> Inputs:
    return {
        "nodes": torch.randn(count, 4, 3).double(),
        "edges": torch.randint(4, (count, 7, 2)),
    }


def attention_pooling() -> nn.Module:
    """Learned queries attend to a set."""

    def run(net: Any, x: Tensor) -> Tensor:
        h = net.inner(x)
        found, _ = net.attention(net.queries.expand(len(x), -1, -1), h, h)
        return net.head(found.flatten(1))

    return Net(
        run,
        inner=nn.Linear(3, 8),
        queries=torch.randn(1, 2, 8),
        attention=nn.MultiheadAttention(8, 2, batch_first=True),
        head=nn.Linear(16, OUTPUTS),
    )


# Mixtures, hypernetworks, and other graphs of computation -----------------------------------------


def experts() -> nn.Module:
    """Top-2 gating, all experts run."""

    def run(net: Any, x: Tensor) -> Tensor:
        top, index = net.gate(x).topk(2, dim=1)
        gates = torch.zeros(len(x), 4, dtype=x.dtype).scatter(1, index, top.softmax(1))
        outputs = torch.stack([expert(x) for expert in net.experts], 1)
        return (gates[..., None] * outputs).sum(1)

    return Net(run, gate=nn.Linear(4, 4), experts=nn.ModuleList(mlp() for _ in range(4)))


def routed_experts() -> nn.Module:
    """Each expert runs on its rows alone."""

    def run(net: Any, x: Tensor) -> Tensor:
        gates, index = net.gate(x).softmax(1).max(1)
        outputs = x.new_zeros(len(x), OUTPUTS)
        for number, expert in enumerate(net.experts):
            rows = (index == number).nonzero()[:, 0]
            outputs = outputs.index_add(0, rows, gates[rows, None] * expert(x[rows]))
        return outputs

    return Net(run, gate=nn.Linear(4, 2), experts=nn.ModuleList(mlp() for _ in range(2)))


def hypernetwork() -> nn.Module:
    def run(net: Any, x: Tensor) -> Tensor:
        weights = net.maker(x[:, :2]).unflatten(1, (5, 3))
        return net.head(torch.einsum("bhd,bd->bh", weights, x[:, 2:]).tanh())

    return Net(run, maker=mlp_wide(2, 15), head=nn.Linear(5, OUTPUTS))


def mlp_wide(features: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(features, 6), nn.Tanh(), nn.Linear(6, outputs))


def fourier_operator() -> nn.Module:
    """A layer of weights for each frequency, complex."""

    def run(net: Any, x: Tensor) -> Tensor:
        h = net.lift(x[:, None])
        modes = torch.fft.rfft(h)[..., :3]
        spectrum = torch.einsum("bik,iok->bok", modes, net.weight)
        h = (torch.fft.irfft(spectrum, n=x.shape[1]) + net.skip(h)).relu()
        return net.head(h.mean(2))

    return Net(
        run,
        lift=nn.Conv1d(1, 4, 1),
        weight=torch.randn(4, 4, 3, dtype=torch.cdouble),
        skip=nn.Conv1d(4, 4, 1),
        head=nn.Linear(4, OUTPUTS),
    )


def complex_products() -> nn.Module:
    """Inner products with complex weights, whose gradients torch leaves to be conjugated."""

    def run(net: Any, x: Tensor) -> Tensor:
        products = x.to(net.weight.dtype) @ net.weight.conj()
        return net.head(torch.view_as_real(products).flatten(1).tanh())

    return Net(run, weight=torch.randn(4, 3, dtype=torch.cdouble), head=nn.Linear(6, OUTPUTS))


class Complex(nn.Module):
    """A complex layer in real parts."""

    def __init__(self) -> None:
        super().__init__()
        self.real, self.imaginary = nn.Linear(4, 5), nn.Linear(4, 5)
        self.head = nn.Linear(5, OUTPUTS)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.complex(self.real(x), self.imaginary(x)).abs())


def clip_head() -> nn.Module:
    """Cosines with class embeddings, times a learned scale."""

    def run(net: Any, x: Tensor) -> Tensor:
        image = F.normalize(net.image(x), dim=1)
        return net.scale.exp() * image @ F.normalize(net.classes, dim=1).T

    scale, classes = torch.tensor(1.2), torch.randn(OUTPUTS, 5)
    return Net(run, image=mlp_wide(4, 5), scale=scale, classes=classes)


def temperature() -> nn.Module:
    return Net(lambda net, x: net.body(x) / net.log_t.exp(), body=mlp(), log_t=torch.tensor([0.3]))


def residual_mlp() -> nn.Module:
    def run(net: Any, x: Tensor) -> Tensor:
        h = net.inner(x)
        for block in net.blocks:
            h = h + block(h)
        return net.head(h)

    def block() -> nn.Module:
        return nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 8), nn.SiLU(), nn.Linear(8, 6))

    blocks = nn.ModuleList(block() for _ in range(2))
    return Net(run, inner=nn.Linear(4, 6), blocks=blocks, head=nn.Linear(6, OUTPUTS))


def siamese() -> nn.Module:
    def run(net: Any, x: tuple[Tensor, Tensor]) -> Tensor:
        one, two = (net.body(part) for part in x)
        return net.head(torch.cat([(one - two).abs(), one * two], 1))

    return Net(run, body=mlp_wide(4, 5), head=nn.Linear(10, OUTPUTS))


def two_inputs() -> nn.Module:
    def run(net: Any, x: dict[str, Any]) -> Tensor:
        words, (one, two) = x["words"], x["numbers"]
        return net.head((net.embed(words).mean(1) + net.one(one) * net.two(two)).tanh())

    return Net(
        run,
        embed=nn.Embedding(9, 5),
        one=nn.Linear(2, 5),
        two=nn.Linear(3, 5),
        head=nn.Linear(5, OUTPUTS),
    )


def nested(count: int) -> Inputs:
    numbers = [torch.randn(count, 2).double(), torch.randn(count, 3).double()]
    return {"words": torch.randint(9, (count, 4)), "numbers": numbers}


def fourier_features() -> nn.Module:
    class Features(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("frequencies", torch.randn(2, 6))

        def forward(self, x: Tensor) -> Tensor:
            angles = 2 * math.pi * x @ self.frequencies
            return torch.cat([angles.sin(), angles.cos()], 1)

    return nn.Sequential(Features(), nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, OUTPUTS))


def spline_layer() -> nn.Module:
    """A Kolmogorov-Arnold layer: a spline of first order on each edge, and a base."""

    def run(net: Any, x: Tensor) -> Tensor:
        grid = torch.linspace(-2, 2, 6, dtype=x.dtype)
        for coefficients, base in ((net.one, net.base_one), (net.two, net.base_two)):
            hats = (1 - (x[..., None] - grid).abs() / 0.8).clamp_min(0)
            x = torch.einsum("big,oig->bo", hats, coefficients) + F.linear(F.silu(x), base)
        return x

    return Net(
        run,
        one=torch.randn(5, 3, 6),
        base_one=torch.randn(5, 3),
        two=torch.randn(OUTPUTS, 5, 6),
        base_two=torch.randn(OUTPUTS, 5),
    )


def neural_ode() -> nn.Module:
    def run(net: Any, x: Tensor) -> Tensor:
        step = 0.25
        for _ in range(4):
            one = net.field(x)
            two = net.field(x + step / 2 * one)
            three = net.field(x + step / 2 * two)
            x = x + step / 6 * (one + 2 * two + 2 * three + net.field(x + step * three))
        return net.head(x)

    return Net(run, field=mlp_wide(4, 4), head=nn.Linear(4, OUTPUTS))


def checkpointed(reentrant: bool = False) -> nn.Module:
    def run(net: Any, x: Tensor) -> Tensor:
        h = net.inner(x)
        return net.head(h + checkpoint(net.block, h, use_reentrant=reentrant))

    return Net(run, inner=nn.Linear(4, 6), block=mlp_wide(6, 6), head=nn.Linear(6, OUTPUTS))


class Swish(torch.autograd.Function):
    """x times its sigmoid, with a backward pass by hand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        s = x.sigmoid()
        return g * (s + x * s * (1 - s))


def by_hand() -> nn.Module:
    def run(net: Any, x: Tensor) -> Tensor:
        return net.head(Swish.apply(net.inner(x)))

    return Net(run, inner=nn.Linear(4, 6), head=nn.Linear(6, OUTPUTS))


def einsum_only() -> nn.Module:
    def run(net: Any, x: Tensor) -> Tensor:
        h = torch.einsum("bi,ij->bj", x, net.one).tanh()
        return torch.einsum("bj,bk,jkc->bc", h, h, net.two)

    return Net(run, one=torch.randn(4, 5), two=torch.randn(5, 5, OUTPUTS))


def free_parameters() -> nn.Module:
    def run(net: Any, x: Tensor) -> Tensor:
        h = F.linear(x, net.weight, net.bias).relu()
        return F.linear(F.layer_norm(h, (6,), net.gain), net.head)

    return Net(
        run,
        weight=torch.randn(6, 4),
        bias=torch.randn(6),
        gain=torch.randn(6),
        head=torch.randn(OUTPUTS, 6),
    )


def parameter_list() -> nn.Module:
    def run(net: Any, x: Tensor) -> Tensor:
        for weight in net.weights:
            x = (x @ weight).tanh()
        return x

    shapes = [(4, 5), (5, 5), (5, OUTPUTS)]
    return Net(run, weights=nn.ParameterList(torch.randn(shape) for shape in shapes))


def parameter_dict() -> nn.Module:
    def run(net: Any, x: Tensor) -> Tensor:
        return net.body(x) * net.terms["scale"] + net.terms["shift"] + net.terms["level"]

    terms = {"scale": torch.randn(OUTPUTS), "shift": torch.randn(OUTPUTS), "level": torch.ones(())}
    return Net(run, body=mlp(), terms=nn.ParameterDict(terms))


def logs_and_roots() -> nn.Module:
    """An amount must be positive."""

    def run(net: Any, x: Tensor) -> Tensor:
        return net.body(torch.cat([x.log(), x.sqrt(), x.rsqrt()], 1))

    return Net(run, body=mlp(12))


def amounts(count: int) -> Tensor:
    return torch.rand(count, 4).double() + 0.05


def categories() -> nn.Module:
    """Whole numbers in some columns of a float tensor are looked up."""

    def run(net: Any, x: Tensor) -> Tensor:
        found = [embed(x[:, i].long()) for i, embed in enumerate(net.embeds)]
        return net.body(torch.cat([*found, x[:, 2:]], 1))

    embeds = nn.ModuleList([nn.Embedding(5, 3), nn.Embedding(3, 2)])
    return Net(run, embeds=embeds, body=mlp(7))


def table(count: int) -> Tensor:
    columns = [torch.randint(5, (count, 1)), torch.randint(3, (count, 1)), torch.randn(count, 2)]
    return torch.cat([column.double() for column in columns], 1)


def sorts() -> nn.Module:
    """Features sorted, and a weight chosen by the largest."""

    def run(net: Any, x: Tensor) -> Tensor:
        values, _ = net.inner(x).sort(dim=1)
        return net.head(values) + net.table[x.argmax(1)]

    return Net(
        run, inner=nn.Linear(4, 6), head=nn.Linear(6, OUTPUTS), table=torch.randn(4, OUTPUTS)
    )


def masked_mean() -> nn.Module:
    def run(net: Any, x: dict[str, Tensor]) -> Tensor:
        scores = net.score(x["items"])[..., 0].masked_fill(~x["mask"], float("-inf"))
        return net.head((scores.softmax(1)[..., None] * net.inner(x["items"])).sum(1).tanh())

    return Net(run, score=nn.Linear(3, 1), inner=nn.Linear(3, 6), head=nn.Linear(6, OUTPUTS))


def masked(count: int) -> Inputs:
    mask = torch.rand(count, 5) < 0.5
    mask[:, 0] = True
    return {"items": torch.randn(count, 5, 3).double(), "mask": mask}


def radial() -> nn.Module:
    def run(net: Any, x: Tensor) -> Tensor:
        return net.head(torch.exp(-torch.cdist(x, net.centres).square() * net.width.exp()))

    return Net(run, centres=torch.randn(6, 4), width=torch.zeros(1), head=nn.Linear(6, OUTPUTS))


def equilibrium() -> nn.Module:
    """A fixed point, iterated without a graph, with one step that has one."""

    def run(net: Any, x: Tensor) -> Tensor:
        h = torch.zeros(len(x), 5, dtype=x.dtype)
        with torch.no_grad():
            for _ in range(8):
                h = (net.inner(x) + net.again(h)).tanh()
        return net.head((net.inner(x) + net.again(h)).tanh())

    return Net(run, inner=nn.Linear(4, 5), again=nn.Linear(5, 5), head=nn.Linear(5, OUTPUTS))


def hamiltonian() -> nn.Module:
    """The outputs are the gradient of an energy with respect to the input."""

    def run(net: Any, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            (force,) = torch.autograd.grad(net.energy(x).sum(), x, create_graph=True)
        return force

    return Net(run, energy=mlp_wide(OUTPUTS, 1))


def polynomial() -> nn.Module:
    """Chebyshev features by recursion, in place."""

    def run(net: Any, x: Tensor) -> Tensor:
        x = net.inner(x).tanh()
        terms = torch.ones(len(x), 5, 4, dtype=x.dtype)
        terms[..., 1] = x
        for order in (2, 3):
            terms[..., order] = (
                2 * x * terms[..., order - 1].clone() - terms[..., order - 2].clone()
            )
        return torch.einsum("bio,ioc->bc", terms, net.weight)

    return Net(run, inner=nn.Linear(4, 5), weight=torch.randn(5, 4, OUTPUTS))


def tied_autoencoder() -> nn.Module:
    def run(net: Any, x: Tensor) -> Tensor:
        h = net.encode(x).tanh()
        return net.head(h) + F.linear(h, net.encode.weight.T)[:, :OUTPUTS]

    return Net(run, encode=nn.Linear(4, 5), head=nn.Linear(5, OUTPUTS))


def film() -> nn.Module:
    def run(net: Any, x: dict[str, Tensor]) -> Tensor:
        gain, shift = net.condition(x["condition"]).chunk(2, 1)
        h = net.norm(net.inner(x["image"]))
        return net.head(
            (h * (1 + gain[..., None, None]) + shift[..., None, None]).relu().flatten(1)
        )

    return Net(
        run,
        condition=nn.Linear(3, 8),
        inner=nn.Conv2d(2, 4, 3),
        norm=nn.BatchNorm2d(4, affine=False),
        head=nn.Linear(16, OUTPUTS),
    )


def conditions(count: int) -> Inputs:
    image = torch.randn(count, 2, 4, 4).double()
    return {"image": image, "condition": torch.randn(count, 3).double()}


def maxout() -> nn.Module:
    return Net(
        lambda net, x: net.head(net.inner(x).unflatten(1, (5, 3)).amax(2)),
        inner=nn.Linear(4, 15),
        head=nn.Linear(5, OUTPUTS),
    )


def highway() -> nn.Module:
    def run(net: Any, x: Tensor) -> Tensor:
        gate = net.gate(x).sigmoid()
        return net.head(gate * net.inner(x).relu() + (1 - gate) * x)

    return Net(run, gate=nn.Linear(4, 4), inner=nn.Linear(4, 4), head=nn.Linear(4, OUTPUTS))


def heads_side_by_side() -> nn.Module:
    def run(net: Any, x: Tensor) -> Tensor:
        h = net.body(x).tanh()
        return torch.cat([head(h) for head in net.heads], 1)

    heads = nn.ModuleList([nn.Linear(5, 1), mlp_wide(5, 2)])
    return Net(run, body=nn.Linear(4, 5), heads=heads)


def shared_layer() -> nn.Module:
    layer = nn.Linear(5, 5)
    return nn.Sequential(
        nn.Linear(4, 5), nn.Tanh(), layer, nn.Tanh(), layer, nn.Tanh(), nn.Linear(5, OUTPUTS)
    )


def lazy() -> nn.Module:
    network = nn.Sequential(nn.LazyConv1d(3, 2), nn.Tanh(), nn.Flatten(), nn.LazyLinear(OUTPUTS))
    network(torch.randn(2, 2, 5))
    return network


def position_wise(count: int) -> Tensor:
    return torch.randn(count, 5, 4).double()


def pairs(count: int) -> Inputs:
    return torch.randn(count, 4).double(), torch.randn(count, 4).double()


class Sine(nn.Module):
    """sin(30 x) as in SIREN."""

    def forward(self, x: Tensor) -> Tensor:
        return (5.0 * x).sin()


class Precise(nn.Module):
    """RMSNorm as language models write it: in float32 at least, and back."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * x.square().mean(-1, keepdim=True).add(1e-6).rsqrt())


def activations() -> nn.Module:
    kinds = [nn.Softplus(), nn.Hardswish(), nn.Mish(), nn.ELU(inplace=True), nn.Softshrink(0.1)]
    layers = [part for kind in kinds for part in (nn.Linear(6, 6), kind)]
    return nn.Sequential(nn.Linear(4, 6), *layers, nn.Linear(6, OUTPUTS))


def bilinear() -> nn.Module:
    def run(net: Any, x: tuple[Tensor, Tensor]) -> Tensor:
        return net.head(net.both(*x).tanh())

    return Net(run, both=nn.Bilinear(4, 4, 5), head=nn.Linear(5, OUTPUTS))


def embedding_bag() -> nn.Module:
    return nn.Sequential(nn.EmbeddingBag(19, 5, mode="mean"), nn.Tanh(), nn.Linear(5, OUTPUTS))


def deep_sets() -> nn.Module:
    return Net(lambda net, x: net.rho(net.phi(x).sum(1)), phi=mlp_wide(4, 5), rho=mlp(5))


def numbered(known: int, *shape: int) -> Callable[[int], Tensor]:
    return lambda count: torch.randint(known, (count, *shape))


def both_norms() -> nn.Module:
    return conv_head(
        nn.Conv2d(2, 4, 3, bias=False),
        nn.InstanceNorm2d(4, affine=True),
        nn.ReLU(),
        nn.Conv2d(4, 4, 2),
        nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
        nn.LocalResponseNorm(2),
        nn.Tanh(),
        width=16,
    )


def group_norms() -> nn.Module:
    return conv_head(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.SiLU(inplace=True), nn.GroupNorm(1, 4), width=16
    )


def batch_norms() -> nn.Module:
    return nn.Sequential(
        nn.BatchNorm1d(4),
        nn.Linear(4, 6, bias=False),
        nn.BatchNorm1d(6),
        nn.ReLU(inplace=True),
        nn.Linear(6, OUTPUTS),
        nn.BatchNorm1d(OUTPUTS),
    )


def data_parallel() -> nn.Module:
    return nn.DataParallel(mlp())


IMAGES = images(3, 16, 16)

ZOO: dict[str, Case] = {
    "torchvision ResNet": Case(torchvision_resnet, IMAGES),
    "torchvision ResNeXt": Case(torchvision_resnext, IMAGES),
    "torchvision MobileNetV2": Case(torchvision_mobilenet_v2, IMAGES),
    "torchvision MobileNetV3": Case(torchvision_mobilenet_v3, IMAGES),
    "torchvision ShuffleNetV2": Case(
        lambda: tv.ShuffleNetV2([2, 1, 1], [8, 8, 16, 16, 16], OUTPUTS), images(3, 32, 32)
    ),
    "torchvision SqueezeNet": Case(torchvision_squeezenet, images(3, 24, 24), 40_000),
    "torchvision EfficientNet": Case(torchvision_efficientnet, IMAGES),
    "torchvision DenseNet": Case(torchvision_densenet, IMAGES),
    "torchvision VGG": Case(torchvision_vgg, images(3, 8, 8)),
    "torchvision AlexNet": Case(torchvision_alexnet, images(3, 32, 32)),
    "torchvision RegNet": Case(torchvision_regnet, IMAGES),
    "torchvision MNASNet": Case(lambda: tv.MNASNet(0.1, OUTPUTS), IMAGES),
    "torchvision GoogLeNet": Case(torchvision_googlenet, images(3, 32, 32)),
    "torchvision ConvNeXt": Case(torchvision_convnext, IMAGES),
    "torchvision Swin": Case(lambda: torchvision_swin(1), images(3, 8, 8)),
    "torchvision SwinV2": Case(lambda: torchvision_swin(2), images(3, 8, 8)),
    "torchvision ViT": Case(torchvision_vit, images(3, 8, 8)),
    "torchvision MaxVit": Case(torchvision_maxvit, IMAGES),
    "BERT": Case(Bert, encoded),
    "GPT, fused attention": Case(GPT, tokens(5, 17)),
    "GPT, masked attention": Case(lambda: GPT(fused=False), tokens(5, 17)),
    "TransformerEncoder": Case(transformer_encoder, words),
    "Transformer": Case(encoder_decoder, words),
    "EmbeddingBag": Case(embedding_bag, tokens(6, 19)),
    "Embedding with padding": Case(
        lambda: nn.Sequential(
            nn.Embedding(19, 4, padding_idx=0), nn.Flatten(), nn.Linear(24, OUTPUTS)
        ),
        words,
    ),
    "LSTM": Case(lambda: recurrent(nn.LSTM, num_layers=2), position_wise),
    "GRU, bidirectional": Case(lambda: recurrent(nn.GRU, bidirectional=True), position_wise),
    "RNN": Case(lambda: recurrent(nn.RNN), position_wise),
    "LSTMCell": Case(lambda: recurrent_cell(nn.LSTMCell), position_wise),
    "GRUCell": Case(lambda: recurrent_cell(nn.GRUCell), position_wise),
    "LoRA": Case(lora, vectors(4)),
    "weight_norm": Case(lambda: normed(parametrizations.weight_norm), images(2, 4, 4)),
    "weight_norm, old": Case(lambda: normed(old_weight_norm), images(2, 4, 4)),
    "spectral_norm": Case(lambda: normed(parametrizations.spectral_norm), images(2, 4, 4)),
    "spectral_norm, old": Case(lambda: normed(nn.utils.spectral_norm), images(2, 4, 4)),
    "orthogonal": Case(
        lambda: nn.Sequential(
            parametrizations.orthogonal(nn.Linear(4, 4)), nn.Tanh(), nn.Linear(4, OUTPUTS)
        ),
        vectors(4),
    ),
    "pruned": Case(pruned, vectors(4)),
    "BatchNorm1d": Case(batch_norms, vectors(4)),
    "GroupNorm": Case(group_norms, images(2, 4, 4)),
    "InstanceNorm": Case(both_norms, images(2, 5, 5)),
    "RMSNorm": Case(
        lambda: nn.Sequential(
            nn.Linear(4, 6), nn.RMSNorm(6), nn.GELU(), Precise(6), nn.Linear(6, OUTPUTS)
        ),
        vectors(4),
    ),
    "PReLU": Case(lambda: mlp(activation=nn.PReLU(6)), vectors(4)),
    "RReLU": Case(lambda: mlp(activation=nn.RReLU()), vectors(4)),
    "GLU": Case(
        lambda: nn.Sequential(nn.Linear(4, 10), nn.GLU(), nn.Linear(5, OUTPUTS)), vectors(4)
    ),
    "activations": Case(activations, vectors(4)),
    "Conv3d": Case(
        lambda: conv_head(
            nn.Conv3d(2, 3, 2), nn.BatchNorm3d(3), nn.ReLU(), nn.MaxPool3d(2), width=3
        ),
        images(2, 3, 3, 3),
    ),
    "transposed convolutions": Case(
        lambda: conv_head(
            nn.ConvTranspose2d(2, 3, 3, stride=2, output_padding=1),
            nn.ReLU(),
            nn.Flatten(2),
            nn.ConvTranspose1d(3, 2, 2, groups=1),
            nn.Tanh(),
            width=74,
        ),
        images(2, 2, 2),
    ),
    "depthwise, dilated": Case(
        lambda: conv_head(
            nn.Conv2d(2, 4, 3, padding=2, dilation=2, groups=2),
            nn.ReLU6(inplace=True),
            nn.Conv2d(4, 4, 3, padding=1, groups=4, padding_mode="circular"),
            nn.Conv2d(4, 3, 1),
            nn.Hardsigmoid(),
            width=48,
        ),
        images(2, 4, 4),
    ),
    "PixelShuffle": Case(
        lambda: conv_head(
            nn.Conv2d(2, 8, 3), nn.PixelShuffle(2), nn.Tanh(), nn.Conv2d(2, 2, 2), width=18
        ),
        images(2, 4, 4),
    ),
    "Upsample": Case(
        lambda: conv_head(
            nn.Conv2d(2, 3, 2),
            nn.Upsample(scale_factor=2, mode="bilinear"),
            nn.Conv2d(3, 2, 3, stride=2),
            nn.LeakyReLU(0.2),
            nn.AdaptiveMaxPool2d(2),
            width=8,
        ),
        images(2, 4, 4),
    ),
    "U-Net": Case(unet, images(2, 4, 4)),
    "squeeze and excite": Case(squeeze_excite, images(2, 4, 4)),
    "WaveNet": Case(wavenet, images(3, 8)),
    "Mixer": Case(mixer, images(2, 4, 4)),
    "Bilinear": Case(bilinear, pairs),
    "graph, dense": Case(graph_net, graphs),
    "graph, index_add": Case(message_passing, edge_lists),
    "deep sets": Case(deep_sets, position_wise),
    "attention pooling": Case(attention_pooling, images(4, 3)),
    "experts, all run": Case(experts, vectors(4)),
    "experts, rows routed": Case(routed_experts, vectors(4)),
    "hypernetwork": Case(hypernetwork, vectors(5)),
    "Fourier operator": Case(fourier_operator, vectors(8)),
    "complex activations": Case(Complex, vectors(4)),
    "complex products": Case(complex_products, vectors(4)),
    "temperature": Case(temperature, vectors(4)),
    "CLIP head": Case(clip_head, vectors(4)),
    "residual MLP": Case(residual_mlp, vectors(4)),
    "shared layer": Case(shared_layer, vectors(4)),
    "siamese": Case(siamese, pairs),
    "nested inputs": Case(two_inputs, nested),
    "heads side by side": Case(heads_side_by_side, vectors(4)),
    "Fourier features": Case(fourier_features, vectors(2)),
    "Kolmogorov-Arnold": Case(spline_layer, vectors(3)),
    "SIREN": Case(
        lambda: nn.Sequential(
            nn.Linear(2, 6), Sine(), nn.Linear(6, 6), Sine(), nn.Linear(6, OUTPUTS)
        ),
        vectors(2),
    ),
    "neural ODE": Case(neural_ode, vectors(4)),
    "checkpoint": Case(checkpointed, vectors(4)),
    "autograd.Function": Case(by_hand, vectors(4)),
    "einsum": Case(einsum_only, vectors(4)),
    "free parameters": Case(free_parameters, vectors(4)),
    "ParameterList": Case(parameter_list, vectors(4)),
    "ParameterDict": Case(parameter_dict, vectors(4)),
    "logs and roots": Case(logs_and_roots, amounts),
    "categories in floats": Case(categories, table),
    "sort and argmax": Case(sorts, vectors(4)),
    "masked attention": Case(masked_mean, masked),
    "radial basis": Case(radial, vectors(4)),
    "equilibrium": Case(equilibrium, vectors(4)),
    "Hamiltonian": Case(hamiltonian, vectors(OUTPUTS)),
    "Chebyshev, in place": Case(polynomial, vectors(4)),
    "tied autoencoder": Case(tied_autoencoder, vectors(4)),
    "FiLM": Case(film, conditions),
    "maxout": Case(maxout, vectors(4)),
    "highway": Case(highway, vectors(4)),
    "lazy, initialised": Case(lazy, images(2, 5)),
    "DataParallel": Case(data_parallel, vectors(4)),
}
