"""Networks that must be refused, or handled, but never give a wrong number."""

import pytest
import torch
from torch import Tensor, nn

from sfr_cl import SFRError, SFRPosterior, noise
from sfr_cl.benchmarks.harness.kernel_cases import Remembers
from sfr_cl.errors import ArgumentError


class Odd(nn.Module):
    """Two layers, and something odd between them."""

    def __init__(self, forward) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 2)
        self.odd = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.odd(self, x)


def routed(network: Odd, x: Tensor) -> Tensor:
    hidden = network.a(x).tanh()
    rows = (x[:, 0] > -10).nonzero()[:, 0]
    outputs = network.b(hidden)
    return outputs.index_put((rows,), network.c(hidden[rows]), accumulate=True)


def sometimes_routed(network: Odd, x: Tensor) -> Tensor:
    hidden = network.a(x).tanh()
    rows = (x[:, 0] > 0).nonzero()[:, 0] if len(x) > 5 else torch.arange(len(x))
    outputs = network.b(hidden)
    return outputs.index_put((rows,), network.c(hidden[rows]), accumulate=True)


def loops(network: Odd, x: Tensor) -> Tensor:
    for _ in range(1 if len(x) <= 3 else 2):
        x = network.a(x).tanh()
    return network.b(x)


def skips(network: Odd, x: Tensor) -> Tensor:
    hidden = network.a(x).tanh()
    return network.b(hidden) + (network.c(hidden) if len(x) <= 3 else 0)


def in_place(network: Odd, x: Tensor) -> Tensor:
    return network.b(network.a(x.sub_(1.0)).tanh())


@pytest.mark.parametrize("forward", [sometimes_routed, loops, skips, in_place])
def test_a_network_that_runs_differently_is_refused(forward) -> None:
    x, y = torch.randn(30, 4).double(), torch.randint(2, (30,))
    before = x.clone()
    with pytest.raises(SFRError, match="expected a network that"):
        SFRPosterior(Odd(forward).double(), "classification", inducing=x[:8]).fit((x, y))
    assert torch.equal(x, before)


def test_a_network_that_routes_all_rows_is_fine() -> None:
    x, y = torch.randn(30, 4), torch.randint(2, (30,))
    posterior = SFRPosterior(Odd(routed), "classification", inducing=x[:8]).fit((x, y))
    alone = torch.cat([posterior.predict_f(row[None]).mean for row in x])
    torch.testing.assert_close(posterior.predict_f(x).mean, alone)


def test_a_network_that_mixes_the_batch_is_refused() -> None:
    norm = nn.BatchNorm1d(4, track_running_stats=False)
    network = nn.Sequential(nn.Linear(4, 4), norm, nn.Linear(4, 2))
    x, y = torch.randn(30, 4), torch.randint(2, (30,))
    with pytest.raises(SFRError, match=r"batch|more than 1 value"):
        SFRPosterior(network, "classification", inducing=x[:8]).fit((x, y))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_network_that_keeps_an_activation(dtype) -> None:
    x, y = torch.randn(30, 4), torch.randint(2, (30,))
    posterior = SFRPosterior(Remembers(), "classification", inducing=x[:8], dtype=dtype)
    assert posterior.fit((x, y)).to("cpu").predict(x).probs.shape == (30, 2)


@pytest.mark.parametrize("outputs", [1, 3])
def test_inference_mode(outputs: int) -> None:
    network = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, outputs))
    x, y = torch.randn(40, 4), torch.randint(2, (40,))
    kind = "binary" if outputs == 1 else "classification"
    outside = SFRPosterior(network, kind, inducing=x[:8]).fit((x, y)).predict(x).logits
    with torch.inference_mode():
        inside = SFRPosterior(network, kind, inducing=x[:8]).fit((x * 1, y * 1)).predict(x * 1)
    torch.testing.assert_close(inside.logits, outside)


def test_short_integers_as_tokens() -> None:
    network = nn.Sequential(nn.Embedding(7, 3), nn.Flatten(), nn.Linear(90, 2))
    x, y = torch.randint(7, (20, 30), dtype=torch.int32), torch.randint(2, (20,))
    posterior = SFRPosterior(network, "classification", inducing=x[:8]).fit((x, y))
    long = SFRPosterior(network, "classification", inducing=x[:8].long()).fit((x.long(), y))
    torch.testing.assert_close(posterior.predict_f(x).mean, long.predict_f(x.long()).mean)


def test_the_penalty_follows_a_noise_that_is_learned_again() -> None:
    torch.manual_seed(0)
    network, moved = nn.Linear(3, 1), nn.Linear(3, 1)
    x = torch.randn(60, 3)
    y = x.sum(1) + 0.5 * torch.randn(60)

    def posterior() -> SFRPosterior:
        return SFRPosterior(network, "regression", inducing=x[:3]).fit((x[:40], y[:40]))

    first, second = posterior(), posterior()
    first.penalty(moved)
    valid = (x[40:], y[40:] + 0.5)
    after = first.tune_prior_precision(valid).penalty(moved)
    torch.testing.assert_close(after, second.tune_prior_precision(valid).penalty(moved))


def embedded(network: Odd, x: Tensor) -> Tensor:
    codes = (10 * x[:, 0]).long()
    return network.b(network.a.weight[codes % 4])


def compared(network: Odd, x: Tensor) -> Tensor:
    return network.b(x) * (x[:, :1] >= 0.7).to(x.dtype)


class Compiled(nn.Module):
    """``compared``, as torch.jit takes it."""

    def __init__(self) -> None:
        super().__init__()
        self.b = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(x) * (x[:, :1] >= 0.7).to(x.dtype)


TENTHS = torch.cat([torch.arange(30)[:, None] % 10 / 10, torch.rand(30, 3)], 1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::sfr_cl.SFRWarning")
@pytest.mark.parametrize(
    ("forward", "inducing"),
    [(embedded, TENTHS), (compared, TENTHS), (compared, 5), (compared, noise(20)), (None, TENTHS)],
    ids=["embedded", "compared", "count", "noise", "compiled"],
)
def test_a_network_that_rounds_its_inputs_keeps_its_precision(forward, inducing) -> None:
    """0.7 in float32 is 0.69999999 in float64: another code, and another side of 0.7."""
    network = Odd(forward) if forward else torch.jit.script(Compiled())
    data = TENTHS, torch.arange(30) % 2
    with pytest.raises(ArgumentError, match=r"computes alike.*got outputs that differ.*float32"):
        SFRPosterior(network, "classification", inducing=inducing).fit(data)
    posterior = SFRPosterior(network, "classification", inducing=inducing, dtype=torch.float32)
    outputs = posterior.fit(data).state.basis.network(TENTHS)
    torch.testing.assert_close(outputs, network(TENTHS).detach())


class Averaging(Odd):
    """Subtracts a mean of all it has seen: on itself, or in a buffer."""

    def __init__(self, kept: str) -> None:
        super().__init__(None)
        self.kept, self.hidden = kept, None
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        z = self.a(x)
        now = z.mean(0).detach()
        if self.kept == "buffer":
            return self.b(z - self.mean.mul_(0.9).add_(0.1 * now))
        self.hidden = now if self.hidden is None else 0.9 * self.hidden + 0.1 * now
        return self.b(z - self.hidden)


@pytest.mark.parametrize("kept", ["buffer", "attribute"])
def test_a_network_that_keeps_a_state_is_refused(kept: str) -> None:
    x, y = torch.randn(30, 4), torch.arange(30) % 2
    with pytest.raises(ArgumentError, match=r"same outputs each time, got one that keeps"):
        SFRPosterior(Averaging(kept), "classification", inducing=x[:8]).fit((x, y))


def partly_half(network: Odd, x: Tensor) -> Tensor:
    return network.b(network.a(x).half()).float()


def all_bfloat16(network: Odd, x: Tensor) -> Tensor:
    return network.b(network.a(x.bfloat16()).tanh()).float()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("forward", [partly_half, all_bfloat16])
def test_casts_to_half_precision_are_named(forward, dtype: torch.dtype) -> None:
    x, y = torch.randn(30, 4), torch.arange(30) % 2
    posterior = SFRPosterior(Odd(forward), "classification", inducing=x[:8], dtype=dtype)
    with pytest.raises(
        ArgumentError, match=r"parts in half precision, by a cast to torch\.b?float16"
    ):
        posterior.fit((x, y))
