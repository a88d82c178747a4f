"""Mixed precision is for training: a posterior is the same, bit for bit, inside its regions."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sfr_cl import SFRPosterior, StreamingPosterior, greedy, smooth_noise

ROWS = 30
Y = torch.arange(ROWS) % 3


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        found: Tensor = self.head(self.attention(h, h, h, need_weights=False)[0].mean(1))
        return found


class NoRule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 3))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight).tanh()


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3))


def convolution() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "dense": (dense, (5,)),
    "convolution": (convolution, (1, 6, 6)),
    "attention": (Attention, (6, 4)),
    "no-rule": (NoRule, (5,)),
}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"output_kernel": "per_output"},
    {"linearize_at": "network"},
    {"mean": "network"},
    {"parameters": "last_layer"},
]


def seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make()


def region() -> Any:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def everything(
    name: str, options: dict[str, Any], folder: Path, inside: Callable[[], Any]
) -> dict[str, Any]:
    """What every method gives, called inside a region."""
    make, shape = NETWORKS[name]
    network, other = seeded(make, 3), seeded(make, 4)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, *shape, generator=generator)
    options = {"dtype": torch.float32, **options}
    found: dict[str, Any] = {}
    torch.manual_seed(0)
    with inside():
        posterior = SFRPosterior(network, "classification", inducing=x[:10], **options)
        posterior.fit((x[:20], Y[:20]))
        latent = posterior.predict_f(x)
        found["fit"] = latent.mean, latent.variance
        found["joint"] = posterior.predict_f(x[:4], full_cov=True).covariance_matrix
        found["update"] = posterior.update((x[20:], Y[20:])).predict(x).probs
        found["forget"] = posterior.forget((x[20:22], Y[20:22])).predict(x).probs
        found["links"] = [posterior.predict(x, link=link).probs for link in ("probit", "mc")]
        found["novelty"] = posterior.novelty(x)
        found["at"] = posterior.predict_f_at(x, [0.1])[0].mean
        found["nlpd"] = posterior.nlpd((x, Y))
        found["evidence"] = posterior.log_marginal_likelihood()
        found["absorption"] = posterior.absorption().step(x, Y).probs
        penalty = posterior.penalty(other)
        found["penalty"] = penalty.detach()
        posterior.save(folder / "p")
        loaded = SFRPosterior.load(folder / "p", seeded(make, 5))
        found["load"] = loaded.predict(x).probs
        found["sites"] = posterior.sites.sums.weight
        found["moved"] = SFRPosterior(other, "classification", **options)
        found["moved"] = found["moved"].from_sites(posterior.sites).predict(x).probs
        found["added"] = posterior.add_inducing(x[22:24]).predict(x).probs
        found["replaced"] = posterior.replace_inducing(x[5:15]).predict(x).probs
        tuned = posterior.tune_prior_precision((x, Y))
        found["tuned"] = tuned.prior_precision, tuned.logit_scale
        selecting = SFRPosterior(network, "classification", inducing=greedy(5), **options)
        found["select"] = selecting.select((x, Y))
        stream = StreamingPosterior(SFRPosterior(network, "classification", inducing=5, **options))
        stream.learn_many(x, Y)
        stream.learn_one(x[0], 1)
        stream.forget_one(x[0], 1, at=ROWS)
        found["stream"] = stream.predict(x).probs
        found["relinearized"] = stream.relinearize(other, (x, Y)).nlpd_after
    gradients = torch.autograd.grad(penalty, list(other.parameters()), allow_unused=True)
    found["gradients"] = [g for g in gradients if g is not None]
    return found


@pytest.mark.filterwarnings("ignore::sfr_cl.SFRWarning")
@pytest.mark.parametrize(
    ("name", "options"),
    [("dense", options) for options in OPTIONS]
    + [(name, {}) for name in ("convolution", "attention", "no-rule")],
    ids=str,
)
def test_autocast_changes_nothing(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    plain = everything(name, options, tmp_path, nullcontext)
    mixed = everything(name, options, tmp_path, region)
    assert plain.keys() == mixed.keys()
    for key, value in plain.items():
        torch.testing.assert_close(mixed[key], value, rtol=0, atol=0, msg=key)


def test_the_region_goes_on_after_a_call() -> None:
    network = seeded(dense, 3)
    x = torch.randn(ROWS, 5)
    posterior = SFRPosterior(network, "classification", inducing=x[:5], dtype=torch.float32)
    posterior.fit((x, Y))
    with region():
        posterior.penalty(network)
        posterior.predict(x)
        assert network(x).dtype == torch.bfloat16


def test_a_step_of_mixed_precision_has_the_penaltys_own_gradient() -> None:
    """Loss in bfloat16, penalty not: the gradient of the sum less that of the loss."""
    network, other = seeded(dense, 3).double(), seeded(dense, 4)
    x = torch.randn(ROWS, 5)
    posterior = SFRPosterior(network, "classification", inducing=x[:10], linearize_at="network")
    posterior.fit((x, Y))
    parameters = list(other.parameters())

    def gradients(penalty: bool) -> list[Tensor]:
        with region():
            loss = nn.functional.cross_entropy(other(x).float(), Y)
            if penalty:
                loss = loss + posterior.penalty(other)
        return list(torch.autograd.grad(loss, parameters))

    double = seeded(dense, 4).double()
    expected = torch.autograd.grad(posterior.penalty(double), list(double.parameters()))
    for both, alone, own in zip(gradients(True), gradients(False), expected, strict=True):
        scale = float(own.abs().max())
        torch.testing.assert_close((both - alone).double(), own, rtol=0, atol=1e-5 * scale)


def test_smooth_noise_is_the_same() -> None:
    drawn = []
    for inside in (nullcontext, region):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Flatten(), nn.Linear(36, 2))
        posterior = SFRPosterior(
            network, "classification", inducing=smooth_noise(3), dtype=torch.float32
        )
        with inside():
            drawn.append(posterior.init((torch.rand(4, 1, 6, 6), Y[:4] % 2)).inducing_inputs)
    assert torch.equal(*drawn)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_a_network_in_half_precision_meets_a_p_of_single(half: torch.dtype) -> None:
    x = torch.randn(ROWS, 5).to(half)
    posterior = SFRPosterior(seeded(dense, 3), "classification", inducing=x[:10])
    posterior.fit((x, Y))
    other = seeded(dense, 4).to(half)
    found = posterior.penalty(other)
    penalty = posterior.as_penalty()
    assert found.dtype == torch.float32
    exact = penalty.at(other(x[:10]).double())
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=0)
