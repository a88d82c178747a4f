"""The posterior against dense float64 formulas: exact GPs, dense Laplace, the paper's equations."""

import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sfr_cl import SFRPosterior, torchvision_operators
from sfr_cl.errors import DataError, SFRWarning
from sfr_cl.likelihoods import Likelihood
from support.oracles import exact_gp, jacobian, noise_log_prior, ntk, sfr_moments

CLOSE = {"rtol": 1e-8, "atol": 1e-8}


def mlp(inputs: int, outputs: int, hidden: int = 12) -> nn.Module:
    torch.manual_seed(3)
    layers = [nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(hidden, outputs)).double()


def regression(count: int, outputs: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(4)
    x = torch.randn(count, 3).double()
    y = torch.sin(x @ torch.randn(3, outputs).double()) + 0.1 * torch.randn(count, outputs)
    return x, y, torch.randn(11, 3).double()


def train(network: nn.Module, loss) -> nn.Module:
    """To a stationary point, in float64: LBFGS, then Newton steps."""
    optimizer = torch.optim.LBFGS(
        network.parameters(),
        max_iter=5000,
        max_eval=20000,
        history_size=50,
        tolerance_grad=1e-8,  # near enough for Newton steps, on any machine
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )

    def closure():
        optimizer.zero_grad()
        value = loss(network)
        value.backward()
        return value

    optimizer.step(closure)
    parameters = list(network.parameters())
    for _ in range(8):
        value = loss(network)
        gradient = torch.cat(
            [g.flatten() for g in torch.autograd.grad(value, parameters, create_graph=True)]
        )
        rows = [torch.autograd.grad(g, parameters, retain_graph=True) for g in gradient]
        hessian = torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])
        step = torch.linalg.solve(hessian, gradient.detach())
        vector = nn.utils.parameters_to_vector(parameters).detach()
        nn.utils.vector_to_parameters(vector - step, parameters)
    assert gradient.detach().norm() < 1e-9
    return network


def squared_norm(network: nn.Module) -> torch.Tensor:
    return sum(p.square().sum() for p in network.parameters())


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("at", ["prior", "network"])
def test_gaussian_with_all_data_inducing_is_exact_gp_regression(outputs: int, at: str) -> None:
    network, (x, y, test) = mlp(3, outputs), regression(30, outputs)
    delta, noise = 2.0, 0.1
    posterior = SFRPosterior(
        network,
        "regression",
        inducing=x,
        prior_precision=delta,
        noise_variance=noise,
        output_kernel="per_output",
        linearize_at=at,
    ).fit((x, y))
    latent = posterior.predict_f(test)
    covariance = posterior.predict_f(test, full_cov=True)
    evidence = 0.0
    for c in range(outputs):
        k = [
            ntk(network, a, b, shared=False)[c] / delta
            for a, b in [(x, x), (test, x), (test, test)]
        ]
        mean, variance, value = exact_gp(k[0], k[1], k[2].diagonal(), y[:, c], noise)
        torch.testing.assert_close(latent.mean[:, c], mean, **CLOSE)
        torch.testing.assert_close(latent.variance[:, c], variance, **CLOSE)
        inverse = torch.linalg.inv(k[0] + noise * torch.eye(30))
        full = k[2] - k[1] @ inverse @ k[1].T
        torch.testing.assert_close(covariance.covariance_matrix[c], full, **CLOSE)
        torch.testing.assert_close(covariance.mean[c], mean, **CLOSE)
        evidence += value
    assert math.isclose(posterior.log_marginal_likelihood(), evidence, rel_tol=1e-7)
    predictive = posterior.predict(test)
    torch.testing.assert_close(predictive.variance, latent.variance + noise, **CLOSE)


@pytest.mark.parametrize("likelihood", ["regression", "binary"])
def test_network_mean_and_variance_are_dense_linearised_laplace(likelihood: str) -> None:
    delta, noise = 0.7, 0.2
    x, y, test = regression(25, 1)
    if likelihood == "binary":
        y, noise = (y > 0).double(), 1.0

    def loss(network: nn.Module) -> torch.Tensor:
        f = network(x)
        if likelihood == "binary":
            fit = nn.functional.binary_cross_entropy_with_logits(f, y, reduction="sum")
        else:
            fit = (f - y).square().sum() / (2 * noise)
        return fit + delta / 2 * squared_norm(network)

    network = train(mlp(3, 1, hidden=5), loss)
    posterior = SFRPosterior(
        network,
        likelihood,
        inducing=x,
        prior_precision=delta,
        noise_variance=noise if likelihood == "regression" else "learn",
        mean="network",
    ).fit((x, y))
    j, j_test = jacobian(network, x)[:, 0], jacobian(network, test)[:, 0]
    weights = torch.cat([p.detach().flatten() for p in network.parameters()])
    f = network(x).detach()[:, 0]
    if likelihood == "binary":
        a, b = y[:, 0] - f.sigmoid(), f.sigmoid() * (1 - f.sigmoid())
    else:
        a, b = (y[:, 0] - f) / noise, torch.full_like(f, 1 / noise)
    hessian = j.T @ (b[:, None] * j) + delta * torch.eye(j.shape[1])
    mode = weights + torch.linalg.solve(hessian, j.T @ a - delta * weights)
    mean = network(test).detach()[:, 0] + j_test @ (mode - weights)
    variance = torch.einsum("bp,pq,bq->b", j_test, torch.linalg.inv(hessian), j_test)
    latent = posterior.predict_f(test)
    torch.testing.assert_close(latent.variance[:, 0], variance, **CLOSE)
    torch.testing.assert_close(latent.mean[:, 0], mean, **CLOSE)
    # A datum seen again moves the mean as it moves the mode of the linearised model.
    posterior.update((x[:5], y[:5]))
    again = hessian + j[:5].T @ (b[:5, None] * j[:5])
    mean = network(test).detach()[:, 0] + j_test @ torch.linalg.solve(again, j[:5].T @ a[:5])
    torch.testing.assert_close(posterior.predict_f(test).mean[:, 0], mean, **CLOSE)
    with pytest.warns(SFRWarning, match="5 of the inducing inputs that were given .* stay"):
        posterior.forget((x[:5], y[:5])).forget((x[:5], y[:5]))
    without = hessian - j[:5].T @ (b[:5, None] * j[:5])
    mean = network(test).detach()[:, 0] - j_test @ torch.linalg.solve(without, j[:5].T @ a[:5])
    torch.testing.assert_close(posterior.predict_f(test).mean[:, 0], mean, **CLOSE)


def test_variance_equals_laplace_torch() -> None:
    x, y, test = regression(25, 1)
    network = mlp(3, 1)
    posterior = SFRPosterior(
        network, "regression", inducing=x, prior_precision=1.5, noise_variance=0.3, mean="network"
    ).fit((x, y))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=25)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what other packages warn of
        torchvision_operators.declare()
        laplace = pytest.importorskip("laplace", reason="laplace-torch is not installed")
        peer = laplace.Laplace(
            network,
            "regression",
            subset_of_weights="all",
            hessian_structure="full",
            prior_precision=1.5,
            sigma_noise=0.3**0.5,
        )
        peer.fit(loader)
        _, variance = peer(test)
    torch.testing.assert_close(
        posterior.predict_f(test).variance[:, 0], variance[:, 0, 0].double(), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("likelihood", ["regression", "binary", "classification"])
def test_dual_equals_natural_mean_on_a_linear_model_at_its_optimum(likelihood: str) -> None:
    delta, outputs = 0.9, 3 if likelihood == "classification" else 1
    x, y, test = regression(20, 1)
    y = {
        "regression": y,
        "binary": (y > 0).double(),
        "classification": (y[:, 0] * 1.4 + 1.5).long(),
    }[likelihood]

    def loss(network: nn.Module) -> torch.Tensor:
        f = network(x)
        if likelihood == "regression":
            fit = (f - y).square().sum() / 2
        elif likelihood == "binary":
            fit = nn.functional.binary_cross_entropy_with_logits(f, y, reduction="sum")
        else:
            fit = nn.functional.cross_entropy(f, y, reduction="sum")
        return fit + delta / 2 * squared_norm(network)

    network = train(nn.Sequential(nn.Linear(3, outputs)).double(), loss)
    options = {"inducing": x[:8], "prior_precision": delta}
    if likelihood == "regression":
        options["noise_variance"] = 1.0
    options |= {"output_kernel": "per_output", "linearize_at": "network"}
    means = [
        SFRPosterior(network, likelihood, mean=mean, **options).fit((x, y)).predict_f(test).mean
        for mean in ("dual", "natural")
    ]
    torch.testing.assert_close(means[0], means[1], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(means[0], network(test).detach(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("at", ["prior", "network"])
def test_classification_equals_the_unwhitened_formulas(shared: bool, at: str) -> None:
    torch.manual_seed(5)
    network, delta, outputs = mlp(3, 4), 0.5, 4
    x, test = torch.randn(40, 3).double(), torch.randn(6, 3).double()
    y = torch.randint(outputs, (40,))
    z = x[:15]
    posterior = SFRPosterior(
        network,
        "classification",
        inducing=z,
        prior_precision=delta,
        output_kernel="shared" if shared else "per_output",
        linearize_at=at,
    ).fit((x, y))
    f = network(x).detach() if at == "network" else torch.zeros(40, outputs).double()
    p = f.softmax(1)
    a = nn.functional.one_hot(y, outputs) - p
    b = p * (1 - p) if at == "network" else torch.full_like(p, 1 / outputs)
    latent = posterior.predict_f(test)
    for c in range(outputs):
        index = 0 if shared else c
        k = {
            name: ntk(network, u, v, shared=shared)[index] / delta
            for name, u, v in [("zz", z, z), ("zi", z, x), ("xz", test, z), ("xx", test, test)]
        }
        weight = b.mean(1) if shared else b[:, c]
        mean, variance = sfr_moments(
            k["zz"], k["zi"], k["xz"], k["xx"].diagonal(), a[:, c], weight, f[:, c]
        )
        torch.testing.assert_close(latent.mean[:, c], mean, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(latent.variance[:, c], variance, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shared", [True, False])
def test_novelty_is_the_share_of_prior_variance_left(shared: bool) -> None:
    x, _, away = regression(30, 1)
    y = torch.arange(30) % 3
    network = mlp(3, 3)
    kernel = "shared" if shared else "per_output"
    posterior = SFRPosterior(
        network, "classification", prior_precision=0.7, inducing=x[:9], output_kernel=kernel
    ).fit((x, y))
    prior = ntk(network, away, away, shared=shared).diagonal(dim1=1, dim2=2).mT / 0.7
    expected = (posterior.predict_f(away).variance / prior).mean(1)
    found = posterior.novelty(away)
    assert torch.allclose(found, expected, **CLOSE)
    assert ((found > 0) & (found < 1)).all()
    again = posterior.update((away[:1].expand(500, -1), y[:1].expand(500))).novelty(away)
    assert again[0] < 0.5 * found[0]  # it has been seen since
    assert (again <= found + 1e-12).all()


def test_nothing_is_new_where_no_weight_moves_f() -> None:
    network = nn.Linear(2, 1, bias=False).double()
    x = torch.tensor([[1.0, 0.0], [2.0, 0.0]]).double()
    posterior = SFRPosterior(network, "regression", noise_variance=0.1, inducing=x[:1])
    posterior.fit((x, x[:, :1]))
    unlike = torch.tensor([[0.0, 0.0], [0.0, 3.0], [5.0, 0.0]]).double()
    found = posterior.novelty(unlike)
    assert found[0] == 0
    assert found[1] == 1
    assert found[2] < 0.05


def test_novelty_of_an_overflow_is_refused() -> None:
    """All hidden units are off, so that infinite inputs of the kernel meet derivatives of zero."""
    network = nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    with torch.no_grad():
        network[0].weight.copy_(-torch.ones(5, 2))
    x = torch.randn(20, 2).double()
    posterior = SFRPosterior(network, "classification", inducing=5).fit((x, torch.arange(20) % 3))
    with pytest.raises(DataError, match="finite predictions"):
        posterior.novelty(torch.tensor([[1e155, 0.0]], dtype=torch.float64))


def test_what_is_learned_has_the_greatest_evidence() -> None:
    network, (x, y, _) = mlp(3, 2), regression(60, 2)

    def evidence(noise: Any, delta: float | None) -> float:
        options = {"noise_variance": noise, "prior_precision": delta, "inducing": x[:20]}
        return SFRPosterior(network, "regression", **options).fit((x, y)).log_marginal_likelihood()

    def scored(noise: Tensor, delta: float) -> float:
        return evidence(noise, delta) + float(noise_log_prior(noise, y.square().mean(0)))

    factors = (0.1, 0.98, 1.02, 10)
    for given in (None, 0.7):
        options = {"prior_precision": given, "inducing": x[:20]}
        posterior = SFRPosterior(network, "regression", **options).fit((x, y))
        noise, delta = posterior.noise_variance, posterior.prior_precision
        assert isinstance(noise, Tensor)
        evident = posterior.log_marginal_likelihood()
        assert math.isclose(evident, evidence(noise, delta), rel_tol=1e-12)
        best = scored(noise, delta)
        for factor in factors:
            one, two = torch.tensor([factor, 1.0]), torch.tensor([1.0, factor])
            assert all(best > scored(noise * scale, delta) for scale in (one, two))
        assert given in (None, delta)
    posterior = SFRPosterior(network, "regression", noise_variance=0.05, inducing=x[:20])
    posterior.fit((x, y))
    best, delta = posterior.log_marginal_likelihood(), posterior.prior_precision
    assert all(best > evidence(0.05, delta * factor) for factor in factors)


@pytest.mark.parametrize("likelihood", ["regression", "binary", "classification"])
@pytest.mark.parametrize("kernel", ["shared", "per_output"])
@pytest.mark.parametrize(
    ("mean", "at"), [("natural", "prior"), ("natural", "network"), ("network", "network")]
)
def test_evidence_equals_the_gaussian_integral(likelihood, kernel, mean, at) -> None:
    """With Z = X: the integral of prior times sites, output by output, in closed form."""
    outputs = 1 if likelihood == "binary" else 3
    network, (x, y, _) = mlp(3, outputs), regression(15, outputs)
    y = {"regression": y, "binary": y > 0, "classification": y.argmax(1)}[likelihood]
    delta, noise = 0.8, 0.3
    posterior = SFRPosterior(
        network,
        likelihood,
        inducing=x,
        prior_precision=delta,
        noise_variance=noise if likelihood == "regression" else "learn",
        output_kernel=kernel,
        mean=mean,
        linearize_at=at,
    ).fit((x, y))
    f = torch.zeros(15, outputs).double() if at == "prior" else network(x).detach()
    prior_mean = torch.zeros_like(f)
    if mean == "network":
        weights = torch.cat([p.detach().flatten() for p in network.parameters()])
        prior_mean = f - jacobian(network, x) @ weights
    if likelihood == "regression":
        a, b = (y - f) / noise, torch.full_like(f, 1 / noise)
        log_prob = torch.distributions.Normal(f, noise**0.5).log_prob(y).sum()
    elif likelihood == "binary":
        p = f.sigmoid()
        a, b = y.double() - p, p * (1 - p)
        log_prob = torch.distributions.Bernoulli(p).log_prob(y.double()).sum()
    else:
        p = f.softmax(1)
        a, b = nn.functional.one_hot(y, outputs) - p, p * (1 - p)
        b = torch.full_like(b, 1 / outputs) if at == "prior" else b
        log_prob = torch.distributions.Categorical(p).log_prob(y).sum()
    if kernel == "shared":
        b = b.mean(1, keepdim=True).expand_as(b)
    kernels = ntk(network, x, x, shared=kernel == "shared") / delta
    expected = log_prob
    for c in range(outputs):
        # log of the integral of N(f; prior mean, K) exp(a (f - f^) - b (f - f^)^2 / 2).
        k, precision = kernels[0 if kernel == "shared" else c], torch.diag(b[:, c])
        offset = prior_mean[:, c] - f[:, c]
        linear = a[:, c] - b[:, c] * offset
        inverse = torch.linalg.inv(torch.linalg.inv(k) + precision)
        expected = expected + (a[:, c] * offset - b[:, c] * offset.square() / 2).sum()
        expected = expected + linear @ inverse @ linear / 2
        expected = expected - torch.logdet(torch.eye(15) + k @ precision) / 2
    assert math.isclose(posterior.log_marginal_likelihood(), float(expected), rel_tol=1e-6)


def test_evidence_counts_the_classes_seen_only() -> None:
    network, (x, _, _) = mlp(3, 3), regression(60, 1)
    y = torch.randint(3, (60,))
    head = nn.Linear(12, 20).double()
    with torch.no_grad():
        head.weight[:3], head.bias[:3] = network[-1].weight, network[-1].bias
    wide = nn.Sequential(*network[:-1], head)
    posterior = SFRPosterior(network, "classification", inducing=x[:20]).fit((x, y))
    evidence = posterior.log_marginal_likelihood()
    tuned = posterior.tune_prior_precision().prior_precision
    posterior = SFRPosterior(network, "classification", inducing=x[:20]).fit((x, y))
    posterior.grow_outputs(wide)
    assert math.isclose(posterior.log_marginal_likelihood(), evidence, rel_tol=1e-9)
    assert math.isclose(posterior.tune_prior_precision().prior_precision, tuned, rel_tol=1e-6)


def test_growing_a_regression_head_changes_nothing_of_what_was_there() -> None:
    network, (x, y, test) = mlp(3, 1), regression(40, 1)
    head = nn.Linear(12, 2).double()
    with torch.no_grad():
        head.weight[:1], head.bias[:1] = network[-1].weight, network[-1].bias
    posterior = SFRPosterior(network, "regression", inducing=x[:20], output_kernel="per_output")
    posterior.fit((x, y))
    before = (
        posterior.noise_variance,
        posterior.prior_precision,
        posterior.log_marginal_likelihood(),
    )
    mean = posterior.predict_f(test).mean
    posterior.grow_outputs(nn.Sequential(*network[:-1], head))
    after = (
        posterior.noise_variance,
        posterior.prior_precision,
        posterior.log_marginal_likelihood(),
    )
    assert after == pytest.approx(before, rel=1e-9)
    torch.testing.assert_close(posterior.predict_f(test).mean[:, :1], mean)


def test_network_mean_evidence_is_that_of_the_linearised_model() -> None:
    """With Z = X: log N(y; f - J w*, K + noise I)."""
    network, (x, y, _) = mlp(3, 1), regression(20, 1)
    delta, noise = 1.3, 0.2
    posterior = SFRPosterior(
        network,
        "regression",
        inducing=x,
        prior_precision=delta,
        noise_variance=noise,
        mean="network",
    ).fit((x, y))
    j = jacobian(network, x)[:, 0]
    weights = torch.cat([p.detach().flatten() for p in network.parameters()])
    prior_mean = network(x).detach()[:, 0] - j @ weights
    covariance = j @ j.T / delta + noise * torch.eye(20)
    exact = torch.distributions.MultivariateNormal(prior_mean, covariance).log_prob(y[:, 0])
    assert math.isclose(posterior.log_marginal_likelihood(), float(exact), rel_tol=1e-7)


@pytest.mark.parametrize("mean", ["natural", "dual", "network"])
@pytest.mark.parametrize("likelihood", ["regression", "classification"])
@pytest.mark.parametrize("kernel", ["shared", "per_output"])
def test_tuning_equals_refitting_at_each_precision(mean, likelihood, kernel, monkeypatch) -> None:
    outputs = 3
    network, (x, y, test) = mlp(3, outputs), regression(50, outputs)
    target = torch.randint(outputs, (11,)) if likelihood == "classification" else torch.randn(11, 3)
    y = y.argmax(1) if likelihood == "classification" else y

    deltas = [1e-3, 0.3, 2.0, 50.0, 1e3]
    options = {"inducing": x[:20], "output_kernel": kernel, "mean": mean}
    if likelihood == "classification":
        options["logit_scale"] = 1.0
    refits = [
        SFRPosterior(network, likelihood, prior_precision=delta, **options).fit((x, y))
        for delta in deltas
    ]
    monkeypatch.setattr("sfr_cl.core.tune.DELTAS", deltas)
    usual = refits[0].state.reading.logit_scale
    monkeypatch.setattr("sfr_cl.core.tune.SCALES", [1 / usual])
    monkeypatch.setattr("sfr_cl.core.tune._warn_at_edge", lambda *_: None)
    tuned = SFRPosterior(network, likelihood, **options).fit((x, y))
    tuned.tune_prior_precision((test, target))
    nlpds = [refit.nlpd((test, target)) for refit in refits]
    assert tuned.prior_precision == deltas[nlpds.index(min(nlpds))]
    assert math.isclose(tuned.nlpd((test, target)), min(nlpds))
    tuned.tune_prior_precision()
    if tuned.spec.has_prior_logits:  # there with a noise that is learned: see test_calibration
        return

    if likelihood == "regression":
        learned = SFRPosterior(network, likelihood, **options).fit((x, y))
        assert math.isclose(tuned.prior_precision, learned.prior_precision)
    else:
        evidences = [refit.log_marginal_likelihood() for refit in refits]
        assert tuned.log_marginal_likelihood() >= max(evidences) - 1e-9
    options |= {"prior_precision": tuned.prior_precision}
    refit = SFRPosterior(network, likelihood, **options).fit((x, y))
    assert math.isclose(tuned.log_marginal_likelihood(), refit.log_marginal_likelihood())


def test_penalty_equals_its_formula_and_ignores_the_prior_precision() -> None:
    network, (x, y, _) = mlp(3, 4), regression(40, 4)
    labels = y[:, :3].argmax(1)  # class 3 is never seen: pinned by the identity
    z = x[:12]
    moved = mlp(3, 4)
    with torch.no_grad():
        for p in moved.parameters():
            p.add_(0.1 * torch.randn_like(p))
    change = (moved(z) - network(z)).detach()
    p = network(x).detach().softmax(1)
    expected = change[:, 3].square().sum()
    for c in range(3):
        k_zz, k_zi = ntk(network, z, z, shared=False)[c], ntk(network, z, x, shared=False)[c]
        dual = k_zi @ torch.diag((p * (1 - p))[:, c]) @ k_zi.T
        sites = torch.linalg.solve(k_zz, torch.linalg.solve(k_zz, dual).T)
        expected += change[:, c] @ sites @ change[:, c]
    for delta in (0.01, 1.0, 100.0):
        posterior = SFRPosterior(
            network,
            "classification",
            prior_precision=delta,
            inducing=z,
            output_kernel="per_output",
            linearize_at="network",
        ).fit((x, labels))
        torch.testing.assert_close(posterior.penalty(moved), expected / 24, rtol=1e-6, atol=0)
        assert posterior.penalty(network).item() == 0.0


@pytest.mark.parametrize("mean", ["natural", "dual", "network"])
@pytest.mark.parametrize("parameters", ["all", "last_layer"])
def test_the_mean_of_one_output_is_one_derivative(mean: str, parameters: str) -> None:
    network, (x, y, test) = mlp(3, 1), regression(40, 1)
    posterior = SFRPosterior(
        network, "binary", inducing=x[:10], mean=mean, parameters=parameters, logit_scale=1.0
    ).fit((x, y > 0))
    for _ in range(2):
        alone, latent = posterior.predict(test, link="map").logits, posterior.predict_f(test).mean
        torch.testing.assert_close(alone, latent, rtol=1e-9, atol=1e-9)
        posterior.update((test, test[:, 0] > 0))


class Weighted(Likelihood):
    """A Gaussian whose outputs have noises of their own."""

    name = "weighted"

    def __init__(self, *noises: float) -> None:
        self.noises = torch.tensor(noises, dtype=torch.float64)

    def targets(self, y, num_outputs):
        return y.double()

    def log_prob(self, f, y):
        return -((y - f).square() / self.noises).sum(1) / 2

    def gradient(self, f, y):
        return (y - f) / self.noises

    def curvature(self, f, y):
        return torch.ones_like(f) / self.noises

    def predictive(self, mean, variance, link):
        return torch.distributions.Normal(mean, (variance + self.noises).sqrt())


def test_a_shared_kernel_shares_the_curvature_of_all_outputs() -> None:
    """b is the mean over outputs (method), so that their order makes no difference."""
    x, y, _ = regression(25, 2)
    traces = [
        SFRPosterior(mlp(3, 2, hidden=5), Weighted(*noises), inducing=x[:5], prior_precision=1.0)
        .fit((x, y))
        .state.sums.trace()
        for noises in ((0.01, 100.0), (100.0, 0.01))
    ]
    assert math.isclose(*traces, rel_tol=1e-9)
