"""What posteriors know of f at Z, moved to other weights and other inducing inputs."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

from sfr_cl import SFRPosterior
from sfr_cl.core.basis import Features, InducingInputs
from sfr_cl.core.transfer import Sites
from sfr_cl.errors import ArgumentError, MismatchError
from support.oracles import ntk
from support.posteriors import (
    CLASSES,
    assert_same_contents,
    contents,
    data,
    fitted,
    grown,
    inputs,
    mlp,
)

KERNELS = ["shared", "per_output"]


@pytest.mark.parametrize("output_kernel", KERNELS)
@pytest.mark.parametrize("linearize_at", ["prior", "network"])
def test_sites_at_the_same_weights_are_the_posterior(output_kernel: str, linearize_at: str) -> None:
    options = {"output_kernel": output_kernel, "linearize_at": linearize_at}
    posterior = fitted(**options)
    again = SFRPosterior(mlp(), "classification", **options).from_sites(posterior.sites)
    x = inputs(seed=5)
    assert torch.allclose(again.predict_f(x).mean, posterior.predict_f(x).mean, atol=1e-9)
    assert torch.allclose(again.predict_f(x).variance, posterior.predict_f(x).variance, atol=1e-9)
    assert again.log_marginal_likelihood() == pytest.approx(posterior.log_marginal_likelihood())
    assert again.num_data == posterior.num_data


def moments_by_hand(
    kernel_z: Tensor, kernel_xz: Tensor, kernel_x: Tensor, h: Tensor, p: Tensor
) -> tuple[Tensor, Tensor]:
    """k_xz (K + K P K)^-1 K h, and k_xx - k_xz [K^-1 - (K + K P K)^-1] k_zx."""
    b = kernel_z @ p @ kernel_z
    inner = torch.linalg.inv(kernel_z + b)
    mean = kernel_xz @ inner @ kernel_z @ h
    middle = torch.linalg.inv(kernel_z) - inner
    return mean, kernel_x - (kernel_xz @ middle @ kernel_xz.mT).diagonal()


def test_sites_at_other_weights_follow_the_definition() -> None:
    """B' = K' P K' and eta' = K' h with the kernel K' of the new weights."""
    z, x = inputs(5, seed=2), inputs(7, seed=5)
    old = fitted(output_kernel="per_output", linearize_at="network", inducing=z)
    other = mlp(seed=8)
    moved = SFRPosterior(
        other, "classification", output_kernel="per_output", linearize_at="network"
    ).from_sites(old.sites)
    sums, points = old.sites.sums, torch.cat([z, x]).double()
    kernels = ntk(other.double(), points, points, shared=False)
    for c in range(CLASSES):
        every = kernels[c]
        mean, variance = moments_by_hand(
            every[:5, :5],
            every[5:, :5],
            every[5:, 5:].diagonal(),
            (sums.gradient + sums.point)[c],
            sums.weight[c],
        )
        found = moved.predict_f(x)
        assert torch.allclose(found.mean[:, c], mean, atol=1e-6)
        assert torch.allclose(found.variance[:, c], variance, atol=1e-6)


@pytest.mark.parametrize("output_kernel", KERNELS)
def test_joined_sites_are_a_posterior_over_all_inducing_inputs(output_kernel: str) -> None:
    """Two posteriors at the same weights whose data lies in the span of their own Z."""
    z = inputs(6, seed=2)
    x, y = z[:3], torch.tensor([0, 1, 2])
    options = {"output_kernel": output_kernel}
    parts = [
        SFRPosterior(mlp(), "classification", inducing=z[:3], **options).fit((x, y)),
        SFRPosterior(mlp(), "classification", inducing=z[3:], **options).fit((z[3:], y)),
    ]
    joined = Sites.join([part.sites for part in parts])
    found = SFRPosterior(mlp(), "classification", **options).from_sites(joined)
    everything = (z, torch.cat([y, y]))
    expected = SFRPosterior(mlp(), "classification", inducing=z, **options).fit(everything)
    test = inputs(seed=5)
    assert torch.allclose(found.predict_f(test).mean, expected.predict_f(test).mean, atol=1e-6)
    assert found.log_marginal_likelihood() == pytest.approx(expected.log_marginal_likelihood())


@pytest.mark.parametrize("output_kernel", KERNELS)
def test_dropping_inducing_inputs_is_deleting_rows(output_kernel: str) -> None:
    """B_u and eta over fewer inputs are those rows and columns: as if never there (method)."""
    z, pair = inputs(8, seed=2), data()
    full = fitted(output_kernel=output_kernel, inducing=z)
    dropped = full.replace_inducing(z[:5])
    expected = fitted(output_kernel=output_kernel, inducing=z[:5])
    # Data projected through all of Z is not data projected through a part of it: compare B_u.
    factor, sums = dropped.state.basis.factor, dropped.state.sums
    whole = fitted(output_kernel=output_kernel, inducing=z).state
    b_u = factor @ sums.weight @ factor.mT
    whole_b_u = whole.basis.factor @ whole.sums.weight @ whole.basis.factor.mT
    assert torch.allclose(b_u, whole_b_u[:, :5, :5], atol=1e-8)
    assert torch.allclose(
        b_u,
        expected.state.basis.factor @ expected.state.sums.weight @ expected.state.basis.factor.mT,
        atol=1e-8,
    )
    x = inputs(seed=5)
    assert torch.allclose(dropped.predict_f(x).mean, expected.predict_f(x).mean, atol=1e-7)
    assert dropped.num_data == len(pair[1])


def test_replacing_inducing_inputs_by_themselves_changes_nothing() -> None:
    posterior, x = fitted(), inputs(seed=5)
    before = posterior.predict_f(x).mean
    posterior.replace_inducing(posterior.inducing_inputs.flip(0))
    assert torch.allclose(posterior.predict_f(x).mean, before, atol=1e-8)


def test_classes_may_outnumber_the_networks_outputs() -> None:
    """A shared kernel at the prior: the head's size is the kernel's business alone."""
    x, y = data()
    wide = SFRPosterior(mlp(), "classification", inducing=inputs(10, seed=2), num_outputs=5)
    wide.fit((x, y))
    narrow = fitted()
    assert wide.predict_f(x).mean.shape == (len(x), 5)
    assert torch.allclose(wide.predict_f(x).mean[:, :CLASSES], narrow.predict_f(x).mean)
    wide.update((x[:4], torch.full((4,), 4)))
    grown = fitted().grow_outputs(5).update((x[:4], torch.full((4,), 4)))
    assert torch.allclose(grown.predict_f(x).mean, wide.predict_f(x).mean)


def test_free_outputs_survive_a_file(tmp_path) -> None:
    posterior = fitted().grow_outputs(7)
    posterior.save(tmp_path / "p.safetensors")
    again = SFRPosterior.load(tmp_path / "p.safetensors", mlp())
    x = inputs(seed=5)
    assert torch.equal(again.predict_f(x).mean, posterior.predict_f(x).mean)


@pytest.mark.parametrize(
    "options", [{"output_kernel": "per_output"}, {"linearize_at": "network"}, {"mean": "network"}]
)
def test_other_posteriors_have_the_networks_outputs(options: dict[str, str]) -> None:
    with pytest.raises(ArgumentError, match="num_outputs to be the network's, 3, got 5"):
        fitted(num_outputs=5, **options)
    posterior = fitted(**options)
    with pytest.raises(ArgumentError, match="num_outputs to be the network's"):
        posterior.grow_outputs(5)


@pytest.mark.parametrize("noise", [0.1, "learn"])
def test_outputs_that_saw_no_regression_data_have_the_prior(noise: Any) -> None:
    """One W can't tell of data for some outputs and of none for others."""
    options = {"inducing": inputs(10, seed=2), "noise_variance": noise, "prior_precision": 2.0}
    (x, y), network, test = data("regression"), mlp(2), inputs(5, seed=5)
    posterior = SFRPosterior(network, "regression", **options).fit((x, y.repeat(1, 2)))
    before = contents(posterior)
    with pytest.raises(ArgumentError, match="no datum has observed the new ones, got 'shared'"):
        posterior.grow_outputs(4)
    assert_same_contents(posterior, before)

    empty = SFRPosterior(network, "regression", **options).init()
    prior = empty.predict_f(test).variance[:, :1].expand(-1, 4)
    found = empty.grow_outputs(4).predict_f(test)
    assert torch.equal(found.variance, prior)
    assert torch.equal(found.mean, torch.zeros(5, 4))
    empty.update((x, y.repeat(1, 4)))
    wide = SFRPosterior(network, "regression", num_outputs=4, **options).fit((x, y.repeat(1, 4)))
    torch.testing.assert_close(empty.predict_f(test).mean, wide.predict_f(test).mean)


def test_outputs_with_kernels_of_their_own_have_the_prior() -> None:
    (x, y), small, test = data("regression"), mlp(1), inputs(5, seed=5)
    posterior = SFRPosterior(small, "regression", inducing=x[:10], output_kernel="per_output")
    posterior.fit((x, y)).grow_outputs(grown(small, 2))
    diagonal = posterior.state.basis.features(test.double(), diagonal=True).diagonal
    found = posterior.predict_f(test)
    prior = diagonal[1] / posterior.prior_precision
    torch.testing.assert_close(found.variance[:, 1], prior, rtol=1e-9, atol=0)
    assert torch.equal(found.mean[:, 1], torch.zeros(5))


def test_outputs_can_not_be_taken_away() -> None:
    with pytest.raises(MismatchError, match="at least 3 outputs, got 2"):
        fitted().grow_outputs(2)


def test_sites_of_another_kind_are_refused() -> None:
    per_output = fitted(output_kernel="per_output").sites
    with pytest.raises(MismatchError, match="sites of 1 kernels, got 3"):
        SFRPosterior(mlp(), "classification").from_sites(per_output)
    with pytest.raises(MismatchError, match="same number of outputs"):
        SFRPosterior(mlp(), "classification").from_sites(fitted().grow_outputs(5).sites)
    with pytest.raises(MismatchError, match="at least 3 outputs"):
        fitted().sites.with_outputs(2)


def test_a_posterior_without_data_predicts_the_prior() -> None:
    z = inputs(6, seed=2)
    empty = SFRPosterior(mlp(), "classification").from_sites(Sites.none(z, CLASSES))
    assert empty.num_data == 0
    assert torch.allclose(
        empty.predict(inputs(4, seed=5)).probs, torch.full((4, 3), 1 / 3).double()
    )
    same = SFRPosterior(mlp(), "classification", inducing=z).fit(data())
    x = inputs(seed=5)
    assert torch.allclose(empty.update(data()).predict_f(x).mean, same.predict_f(x).mean)


def test_an_absorption_keeps_to_the_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    parts, whole = (fitted(batch_size=size, logit_scale=2.0) for size in (5, None))
    (x, y), seen = data(rows=24, seed=6), []
    original = InducingInputs.features

    def watched(self: InducingInputs, x: Tensor, *, diagonal: bool = False) -> Features:
        seen.append(len(x))
        return original(self, x, diagonal=diagonal)

    # The scale of logits is an estimate, from predictions of parts.
    expected = (parts.logit_scale * whole.predict_f(x).mean).softmax(1)
    monkeypatch.setattr(InducingInputs, "features", watched)
    absorption = parts.absorption()
    assert torch.allclose(absorption.step(x, y).probs, expected, atol=1e-9)
    absorption.finish()
    assert max(seen) == 5
    assert parts.num_data == 48


@pytest.mark.parametrize("kind", ["classification", "binary", "regression"])
def test_absorption_predicts_then_absorbs(kind: str) -> None:
    """Every batch as the posterior would have predicted it before; then as update."""
    posterior, expected = fitted(kind), fitted(kind)
    x, y = data(kind, seed=4)
    absorption = posterior.absorption()
    for rows in (slice(0, 5), slice(5, 24)):
        found = absorption.step(x[rows], y[rows])
        before = expected.predict(x[rows])
        assert torch.allclose(found.mean, before.mean) or torch.allclose(found.probs, before.probs)
    assert posterior.num_data == expected.num_data  # nothing is taken over before the end
    absorption.finish()
    expected.update((x, y))
    assert torch.allclose(posterior.predict_f(x).mean, expected.predict_f(x).mean, atol=1e-9)
    assert posterior.num_data == expected.num_data


def test_pickles_are_small_and_whole() -> None:
    posterior, x = fitted(), inputs(seed=5)
    expected = posterior.predict_f(x).mean
    content = pickle.dumps(posterior)
    assert len(content) < 60_000
    assert torch.equal(pickle.loads(content).predict_f(x).mean, expected)
    assert torch.equal(copy.deepcopy(posterior).predict_f(x).mean, expected)


def test_sites_are_read_as_they_were_made() -> None:
    """Of another likelihood, or linearised elsewhere, the same sums say something else."""
    x, y = data("regression")
    regression = SFRPosterior(mlp(), "regression", inducing=inputs(10)).fit((x, y.repeat(1, 3)))
    with pytest.raises(MismatchError, match="'classification' linearised at the prior, got those"):
        SFRPosterior(mlp(), "classification").from_sites(regression.sites)
    elsewhere = fitted(linearize_at="network").sites
    with pytest.raises(MismatchError, match="got those of 'classification' at the network"):
        SFRPosterior(mlp(), "classification").from_sites(elsewhere)
    joined = Sites.join([elsewhere, elsewhere]) + Sites.join([elsewhere, elsewhere])
    assert joined.kind == elsewhere.kind == ("classification", "network")
    with pytest.raises(ArgumentError, match=r"sites of a posterior, got SFRPosterior: .*\.sites"):
        SFRPosterior(mlp(), "classification").from_sites(regression)
    here = fitted().sites
    for mixed in (lambda: Sites.join([here, elsewhere]), lambda: here + elsewhere):
        with pytest.raises(MismatchError, match="at the prior: build both alike"):
            mixed()
    unknown = Sites.none(inputs(10), CLASSES)
    assert Sites.join([unknown, elsewhere]).kind == (unknown + elsewhere).kind == elsewhere.kind
    assert SFRPosterior(mlp(), "classification").from_sites(unknown).num_data == 0
