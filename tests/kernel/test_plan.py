"""Rules only where they hold, checked on every batch; plain autograd where nothing faster works."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from sfr_cl import SFRError, SFRPosterior, StreamingPosterior
from sfr_cl.errors import ArgumentError, DataError
from sfr_cl.kernel import TangentKernel
from sfr_cl.kernel.factors import Direct
from sfr_cl.kernel.network import FrozenNetwork
from sfr_cl.kernel.rules import RULES
from sfr_cl.strategies.models import Head
from support.oracles import jacobian_by_rows

ROWS, WORDS = 24, 9


class Net(nn.Module):
    """Two layers, more parts, and what is done with them."""

    def __init__(self, run: Callable[[Net, Tensor], Tensor], **parts: object) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def vectors(seed: int = 0) -> Tensor:
    return torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(seed)).double()


def tokens(seed: int = 0) -> Tensor:
    return torch.randint(WORDS, (ROWS, 5), generator=torch.Generator().manual_seed(seed))


def kernel_of(network: nn.Module, probe: Tensor) -> TangentKernel:
    frozen = FrozenNetwork(network, "all", torch.float64)
    return TangentKernel(frozen, frozen.bind(frozen.prepare(probe)), False, frozen.prepare(probe))


def exact(network: nn.Module, x: Tensor, z: Tensor) -> Tensor:
    """kappa(x, z), [C, B, M], row by row and output by output."""
    one, other = jacobian_by_rows(network, x, "all"), jacobian_by_rows(network, z, "all")
    return torch.einsum("acp,bcp->cab", one, other)


def assert_exact(network: nn.Module, x: Tensor, z: Tensor, probe: Tensor) -> TangentKernel:
    network = network.double()
    kernel = kernel_of(network, probe)
    at_z = kernel.inducing(z, 5)
    same = {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(at_z(x).cross, exact(network, x, z), **same)
    torch.testing.assert_close(at_z.gram, exact(network, z, z), **same)
    torch.testing.assert_close(kernel.gram(x), exact(network, x, x), **same)
    return kernel


# Rows in another order ----------------------------------------------------------------------------


def sorted_words(network: Net, x: Tensor) -> Tensor:
    order = x[:, 0].argsort(stable=True)
    return network.b(network.a(network.words(x)[order].mean(1)).tanh())[order.argsort()]


def sorted_rows(network: Net, x: Tensor) -> Tensor:
    order = x[:, 0].argsort(stable=True)
    return network.b(network.a(x[order]).tanh())[order.argsort()]


@pytest.mark.parametrize("rows", [1, ROWS], ids=["one row", "all rows"])
def test_integer_rows_in_another_order(rows: int) -> None:
    network = Net(sorted_words, words=nn.Embedding(WORDS, 4))
    assert_exact(network, tokens(1), tokens(), tokens()[:rows])


@pytest.mark.parametrize("first", ["x", "z"])
def test_an_order_that_the_first_rows_do_not_show(first: str) -> None:
    """The plan changes while a kernel is made: what was made before it is made again."""
    x, z = vectors(1), vectors()
    (x if first == "x" else z)[:, 0] = 0
    probe = (x if first == "x" else z)[:4]
    kernel = assert_exact(Net(sorted_rows), x, z, probe)
    assert not kernel.layers


def sometimes_borrowed(network: Net, x: Tensor) -> Tensor:
    hidden = network.a(x).tanh()
    far = x[:, :1] > 1
    if far.any():
        hidden = torch.where(far, hidden @ network.a.weight.T, hidden)
    return network.b(hidden)


def test_a_weight_that_some_inputs_use_twice() -> None:
    x = vectors(1)
    near = x[x[:, 0] < 1][:4]
    kernel = assert_exact(Net(sometimes_borrowed), x, vectors(), near)
    assert [layer.module for layer in kernel.layers] == [kernel.network.module.b]


class Scale(nn.Module):
    """A weight by channel."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(1, 2, 4))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


@pytest.mark.parametrize("right", [True, False])
def test_a_rule_that_is_wrong_is_not_used(right: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def scale(_layer: Scale, _names: object, a: Tensor, g: Tensor) -> list[Direct]:
        return [Direct(g * a if right else 1.01 * g * a)]

    monkeypatch.setitem(RULES, Scale, scale)
    network = Net(lambda net, x: net.b(net.s(net.a(x)).tanh()), s=Scale())
    kernel = assert_exact(network, vectors(1), vectors(), vectors())
    assert (Scale in [type(layer.module) for layer in kernel.layers]) == right


def test_a_rule_for_learned_slopes() -> None:
    network = nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)),
        nn.Conv2d(1, 3, 2, padding=1),
        nn.PReLU(3),
        nn.Flatten(),
        nn.PReLU(),
        nn.Linear(27, 2),
    )
    kernel = assert_exact(network, vectors(1), vectors(), vectors())
    assert len(kernel.layers) == 4


# Real rows as probes ------------------------------------------------------------------------------


def categories(network: Net, x: Tensor) -> Tensor:
    return network.b(network.a(x + network.words(x[:, 0].long())).tanh())


def logarithms(network: Net, x: Tensor) -> Tensor:
    return network.b(network.a(x.log()).tanh())


def with_categories(seed: int = 0) -> Tensor:
    x = vectors(seed)
    x[:, 0] = tokens(seed)[:, 0]
    return x


@pytest.mark.parametrize("case", ["categories", "logarithms"])
def test_rules_serve_inputs_that_noise_does_not_look_like(case: str) -> None:
    if case == "categories":
        network, draw = Net(categories, words=nn.Embedding(WORDS, 4)), with_categories
    else:
        network, draw = Net(logarithms), lambda seed=0: vectors(seed).abs() + 0.01
    kernel = assert_exact(network, draw(1), draw(), draw())
    assert kernel.fallback is None


def test_a_head_is_found_with_categories() -> None:
    head = Head.of(Net(categories, words=nn.Embedding(WORDS, 4)), None, with_categories())
    assert head.active.tolist() == [0, 1]


# Rows that depend on each other -------------------------------------------------------------------


def centred(network: Net, x: Tensor) -> Tensor:
    return network.b(network.a(x - 1e-3 * x.mean(0)).tanh())


@pytest.mark.parametrize("z", [vectors()[:1], vectors()[:1].repeat(6, 1)], ids=["one", "equal"])
@pytest.mark.filterwarnings("ignore:.*duplicates:sfr_cl.SFRWarning")
def test_dependence_on_the_batch_shows_once_rows_differ(z: Tensor) -> None:
    posterior = SFRPosterior(Net(centred), "classification", inducing=z).init()
    with pytest.raises(ArgumentError, match="treats every input by itself"):
        posterior.update((vectors(), torch.arange(ROWS) % 2))
    assert posterior.num_data == 0


def test_a_stream_that_began_with_one_row() -> None:
    stream = StreamingPosterior(SFRPosterior(Net(centred), "classification", inducing=5))
    stream.learn_one(vectors()[0], 1)
    with pytest.raises(ArgumentError, match="treats every input by itself"):
        stream.learn_many(vectors(), torch.arange(ROWS) % 2)


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_sparse_gradients(kind: type[nn.Embedding | nn.EmbeddingBag]) -> None:
    def run(network: Net, x: Tensor) -> Tensor:
        found = network.words(x)
        return network.b((found.mean(1) if found.ndim == 3 else found).tanh())

    networks = []
    for sparse in (True, False):
        torch.manual_seed(0)
        networks.append(Net(run, words=kind(WORDS, 4, sparse=sparse)).double())
    networks[1].load_state_dict(networks[0].state_dict())
    x = tokens()
    found = kernel_of(networks[0], x).gram(x)
    torch.testing.assert_close(found, exact(networks[1], x, x), rtol=1e-9, atol=1e-9)


def test_weights_that_a_pass_rescales() -> None:
    """An embedding with ``max_norm`` rescales its rows as they come, in the frozen copy never."""
    network = Net(
        lambda net, x: net.b(net.words(x).mean(1)), words=nn.Embedding(WORDS, 4, max_norm=1)
    )
    network = network.double()
    x, before = tokens(), network.words.weight.detach().clone()
    kernel = kernel_of(network, x)
    torch.testing.assert_close(kernel.gram(x), exact(network, x, x), rtol=1e-9, atol=1e-9)
    assert torch.equal(kernel.network.weights()["words.weight"], before)


def test_weights_that_a_pass_rescales_for_other_rows_too() -> None:
    words = nn.Embedding(WORDS, 4, max_norm=0.1)
    network = Net(lambda net, x: net.words(x).mean(1) @ net.words.weight.clone().T, words=words)
    with pytest.raises(ArgumentError, match="treats every input by itself"):
        kernel_of(network, tokens())


# Networks that do the same in two ways, of which torch.func knows one -----------------------------


class Sine(torch.autograd.Function):
    """In the old style, without setup_context."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g: Tensor) -> Tensor:
        return g * ctx.saved_tensors[0].cos()


class Twin(nn.Module):
    """One network written in two ways, with the same parameters."""

    def __init__(self, odd: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.odd = odd
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.scale = nn.Parameter(torch.randn(4))


class Custom(Twin):
    """A parameter under a custom function."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.b(self.a(x).tanh()) * self.scale
        return self.c(Sine.apply(hidden) if self.odd else hidden.sin())


class Reentrant(Twin):
    """Everything behind a reentrant checkpoint, the first of which no input asks for."""

    def body(self, x: Tensor) -> Tensor:
        return self.b(self.a(x).tanh()).tanh() * self.scale

    def forward(self, x: Tensor) -> Tensor:
        if not self.odd:
            return self.c(self.body(x))
        return checkpoint(self.c, checkpoint(self.body, x, use_reentrant=True), use_reentrant=True)


class Recomputed(Reentrant):
    """The other kind of checkpoint."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.odd:
            return self.c(self.body(x))
        return self.c(checkpoint(self.body, x, use_reentrant=False))


class MadeAgain(Recomputed):
    """Tensors that a checkpoint makes again in the backward pass."""

    def body(self, x: Tensor) -> Tensor:
        return super().body(x) * torch.full((1,), 1 / 3)


class ReentrantMadeAgain(Reentrant):
    """The same in the other kind."""

    def body(self, x: Tensor) -> Tensor:
        return super().body(x) * torch.full((1,), 1 / 3)


class Energy(Twin):
    """The derivative of one function is the other."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.odd:
            hidden = self.a(x).tanh()
            return ((self.scale * (1 - hidden**2)) @ self.a.weight)[:, :2]
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            energy = (self.a(x).tanh() @ self.scale).sum()
            return torch.autograd.grad(energy, x, create_graph=True)[0][:, :2]


class Recurrent(Twin):
    """A recurrent layer, or the loop it stands for."""

    def __init__(self, odd: bool) -> None:
        super().__init__(odd)
        self.r = nn.RNN(1, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        steps = x[:, :, None]
        if self.odd:
            return self.c(self.r(steps)[0][:, -1])
        state = x.new_zeros(len(x), 4)
        for step in steps.unbind(1):
            inner = F.linear(step, self.r.weight_ih_l0, self.r.bias_ih_l0)
            state = (inner + F.linear(state, self.r.weight_hh_l0, self.r.bias_hh_l0)).tanh()
        return self.c(state)


class Scripted(Twin):
    """A part compiled by TorchScript."""

    def __init__(self, odd: bool) -> None:
        super().__init__(odd)
        self.body = nn.Sequential(self.a, nn.Tanh(), self.b, nn.Tanh())
        if odd:
            self.body = torch.jit.script(self.body)
        del self.a, self.b

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.body(x))


class Moving(Twin):
    """A buffer that moves at every call, and stays where it was in the frozen copy."""

    def __init__(self, odd: bool) -> None:
        super().__init__(odd)
        self.register_buffer("mean", torch.ones(4))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        f = self.c((self.a(x) + self.mean + self.calls).tanh())
        if self.odd:
            self.mean.mul_(0.5)
            self.calls += 1
        return f


TWINS = [
    Custom,
    Reentrant,
    Recomputed,
    MadeAgain,
    ReentrantMadeAgain,
    Energy,
    Recurrent,
    Scripted,
    Moving,
]


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize("mean", ["natural", "network"])
@pytest.mark.parametrize("kind", TWINS, ids=lambda kind: kind.__name__)
def test_a_posterior_is_that_of_the_same_network_written_otherwise(
    kind: type[Twin], mean: str
) -> None:
    def adapted(odd: bool) -> SFRPosterior:
        options = {"mean": mean, "inducing": vectors()[:10].float(), "output_kernel": "per_output"}
        posterior = SFRPosterior(kind(odd), "classification", **options)
        x, y = vectors(1).float(), torch.arange(ROWS) % 2
        return posterior.fit((x[:12], y[:12])).update((x[12:], y[12:]))

    odd, plain = adapted(True), adapted(False)
    x = vectors(2)
    same = {"rtol": 1e-6, "atol": 1e-8}
    found, expected = odd.predict_f(x, full_cov=True), plain.predict_f(x, full_cov=True)
    torch.testing.assert_close(found.mean, expected.mean, **same)
    torch.testing.assert_close(found.covariance_matrix, expected.covariance_matrix, **same)
    grams = [each.state.basis.kernel.gram(each.state.basis.prepare(x)) for each in (odd, plain)]
    torch.testing.assert_close(*grams, rtol=1e-10, atol=1e-10)
    networks = odd.state.basis.network, plain.state.basis.network
    u = torch.randn(ROWS, 2).double()
    torch.testing.assert_close(*(network.gradient(x, u) for network in networks), **same)
    torch.testing.assert_close(*(network.tangent(x) for network in networks), **same)
    penalties = []
    for posterior, network in ((odd, kind(True)), (plain, kind(False))):
        with torch.no_grad():
            for index, p in enumerate(network.parameters()):
                p.add_(0.1 * index)
        posterior.penalty(network).backward()
        penalties.append([p.grad for p in network.parameters()])
    torch.testing.assert_close(*penalties, rtol=1e-3, atol=1e-4)
    again = copy.deepcopy(odd)
    torch.testing.assert_close(again.predict_f(x).mean, found.mean.T)


# Numbers of other kinds ---------------------------------------------------------------------------


class Rotation(nn.Module):
    """Complex weights, or their real and imaginary parts."""

    def __init__(self, split: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        weight, bias = (
            torch.randn(4, 3, dtype=torch.complex64),
            torch.randn(3, dtype=torch.complex64),
        )
        self.split = split
        self.parts = nn.ParameterList([weight.real, weight.imag] if split else [weight])
        self.register_buffer("bias", bias)
        self.last = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        weight = torch.complex(*self.parts) if self.split else self.parts[0]
        return self.last((torch.fft.fft(x) @ weight + self.bias).abs())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("mean", ["natural", "network"])
def test_complex_weights_are_pairs_of_real_ones(dtype: torch.dtype, mean: str) -> None:
    x, y = vectors(1).float(), torch.arange(ROWS) % 2
    posteriors = [
        SFRPosterior(Rotation(split), "classification", inducing=x[:6], dtype=dtype, mean=mean).fit(
            (x, y)
        )
        for split in (False, True)
    ]
    tolerance = 1e-9 if dtype == torch.float64 else 1e-3
    same = {"rtol": tolerance, "atol": tolerance}
    factors = [posterior.state.basis.factor for posterior in posteriors]
    torch.testing.assert_close(*factors, **same)
    complex_one, split = posteriors
    torch.testing.assert_close(
        complex_one.predict_f(vectors(2)).mean, split.predict_f(vectors(2)).mean, **same
    )
    network = complex_one.state.basis.network
    assert network.parameters["parts.0"].dtype == dtype.to_complex()
    torch.testing.assert_close(
        complex_one.penalty(Rotation(False)), torch.tensor(0.0), atol=1e-6, rtol=0
    )


@pytest.mark.parametrize("shape", [(), (1,), (0, 3)], ids=str)
def test_parameters_of_any_shape(shape: tuple[int, ...]) -> None:
    extra = nn.Parameter(torch.full(shape, 0.3))
    network = Net(lambda net, x: net.b(net.a(x).tanh()) * net.t.exp().sum().add(1), t=extra)
    assert_exact(network, vectors(1), vectors(), vectors())


def test_integer_parameters_have_no_derivative() -> None:
    order = nn.Parameter(torch.arange(4).flip(0), requires_grad=False)
    network = Net(lambda net, x: net.b(net.a(x[:, net.order])), order=order).requires_grad_(False)
    assert "order" not in FrozenNetwork(network, "all", torch.float64).names
    with pytest.raises(ArgumentError, match="order"):
        FrozenNetwork(network, ["order"], torch.float64)


def cast_inside(network: Net, x: Tensor) -> Tensor:
    return network.b(network.a(x.float()).tanh())


def test_a_cast_inside_asks_for_its_precision() -> None:
    x, y = vectors(), torch.arange(ROWS) % 2
    with pytest.raises(ArgumentError, match=r"give dtype=torch.float32"):
        SFRPosterior(Net(cast_inside), "classification", inducing=x[:8]).fit((x, y))
    found = SFRPosterior(Net(cast_inside), "classification", inducing=x[:8], dtype=torch.float32)
    plain = Net(lambda net, x: net.b(net.a(x).tanh()))
    expected = SFRPosterior(plain, "classification", inducing=x[:8])
    torch.testing.assert_close(
        found.fit((x, y)).predict_f(x).mean,
        expected.fit((x, y)).predict_f(x).mean,
        rtol=1e-2,
        atol=1e-3,
    )


# What is refused ----------------------------------------------------------------------------------


def noisy(network: Net, x: Tensor) -> Tensor:
    return network.b(F.dropout(network.a(x), 0.5, training=True))


def rooted(network: Net, x: Tensor) -> Tensor:
    return (
        network.b(network.a(x).clamp_min(0).sum(1, keepdim=True).expand(-1, 4))
        .mul(0)
        .add((network.a(x) * 0).sum(1, keepdim=True).sqrt())
    )


REFUSED = {
    "random": (noisy, "same outputs for the same inputs"),
    "no derivative": (rooted, "finite derivatives"),
    "no output": (lambda net, x: net.b(net.a(x)).log(), "finite outputs"),
    "detached": (lambda net, x: net.b(net.a(x)).detach(), "depend on its parameters"),
    "flat": (lambda net, x: net.b(net.a(x)) * 0, "depend on the parameters"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_kernel_is_refused(case: str) -> None:
    run, said = REFUSED[case]
    x, y = vectors(), torch.arange(ROWS) % 2
    with pytest.raises(SFRError, match=said):
        SFRPosterior(Net(run), "classification", inducing=x[:8]).fit((x, y))


def test_another_precision_is_no_advice_where_it_does_not_help() -> None:
    network = Net(lambda net, x: net.b(net.a((x - x.mean(0)).float())))
    with pytest.raises(ArgumentError, match="treats every input by itself"):
        SFRPosterior(network, "classification", inducing=vectors()[:8]).init()


def test_an_input_without_derivative_is_refused_later() -> None:
    network = Net(
        lambda net, x: net.b(net.a(x).tanh() * (x.abs().sum(1, keepdim=True) * net.t).sqrt())
    )
    network.t = nn.Parameter(torch.tensor(2.0))
    x, y = vectors(), torch.arange(ROWS) % 2
    posterior = SFRPosterior(network, "classification", inducing=x[:8]).fit((x, y))
    with pytest.raises(DataError, match="finite derivatives"):
        posterior.predict_f(torch.zeros(2, 4))


def test_layers_that_are_not_registered_are_refused() -> None:
    network, other = nn.Sequential(nn.Linear(4, 2)), nn.Linear(4, 2)
    network.register_forward_hook(lambda _module, inputs, output: output + other(*inputs))
    x, y = vectors(), torch.arange(ROWS) % 2
    with pytest.raises(ArgumentError, match="its own parameters only"):
        SFRPosterior(network, "classification", inducing=x[:8]).fit((x, y))


def test_hooks_use_the_copy_where_they_used_the_network() -> None:
    """Their closures hold the network, which is trained on, and what it keeps between layers."""
    network = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()

    def keep(_module: nn.Module, _inputs: tuple[Tensor], output: Tensor) -> None:
        network.first = output

    def add(_module: nn.Module, _inputs: tuple[Tensor], output: Tensor) -> Tensor:
        return output + network[2](network.first.sin())

    network[0].register_forward_hook(keep)
    network.register_forward_hook(add)
    x = vectors()
    expected = exact(network, x, x)
    kernel = kernel_of(network, x)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(1.0)
    torch.testing.assert_close(kernel.gram(x), expected, rtol=1e-9, atol=1e-9)


def test_hooks_that_change_gradients_have_no_part_in_derivatives() -> None:
    network, plain = (nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)) for _ in range(2))
    plain.load_state_dict(network.state_dict())
    network[2].register_full_backward_hook(lambda _module, inner, _outer: (3 * inner[0],))
    x = vectors()
    found = kernel_of(network, x).gram(x)
    torch.testing.assert_close(found, exact(plain.double(), x, x), rtol=1e-9, atol=1e-9)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_rules_serve_a_compiled_network() -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    kernel = kernel_of(torch.compile(network), vectors())
    x = vectors(1)
    torch.testing.assert_close(kernel.gram(x), exact(network, x, x), rtol=1e-9, atol=1e-9)
    assert len(kernel.layers) == 2
