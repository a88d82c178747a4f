"""The kernel equals the contraction of vmap(jacrev), for any module."""

import pytest
import torch

from sfr_cl import SFRPosterior
from sfr_cl.benchmarks.harness.kernel_cases import CASES, Case
from sfr_cl.data.inputs import length
from sfr_cl.kernel import TangentKernel, tangent
from sfr_cl.kernel.network import FrozenNetwork
from support.oracles import jacobian, ntk


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


def frozen(case: Case, parameters="all") -> FrozenNetwork:
    network = FrozenNetwork(case.network(), parameters, torch.float64)
    network.bind(case.inputs(1))
    return network


@pytest.mark.parametrize("rules", [True, False], ids=["rules", "generic"])
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "per output"])
def test_equals_jacobian_contraction(case: Case, shared: bool, rules: bool) -> None:
    network = frozen(case)
    x, z = case.inputs(7), case.inputs(5, seed=1)
    outputs = network(x).shape[1]
    rule = TangentKernel(network, outputs, shared, x, layers=None if rules else ())
    at_z = rule.inducing(z, batch_size=2)
    values = at_z(x, diagonal=True)
    source = case.network()
    torch.testing.assert_close(
        values.cross, ntk(source, x, z, shared=shared), rtol=1e-10, atol=1e-10
    )
    torch.testing.assert_close(at_z.gram, ntk(source, z, z, shared=shared), rtol=1e-10, atol=1e-10)
    full = ntk(source, x, x, shared=shared)
    torch.testing.assert_close(rule.gram(x), full, rtol=1e-10, atol=1e-10)
    diagonal = full.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(values.diagonal, diagonal, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(values.outputs, source.eval()(x).detach())


def test_posterior_over_any_network(case: Case) -> None:
    network = case.network()
    x = case.inputs(12)
    outputs = frozen(case)(x).shape[1]
    posterior = SFRPosterior(
        network,
        "regression",
        inducing=case.inputs(6),
        noise_variance=0.1,
        prior_precision=1.0,
        output_kernel="per_output",
    ).fit((x, torch.randn(12, outputs)))
    full = ntk(network, x, x, shared=False).diagonal(dim1=1, dim2=2).T
    variance = posterior.predict_f(x).variance
    assert (variance > 0).all()
    assert (variance < full).all()


def test_inducing_side_is_recomputed_when_it_is_too_large_to_keep(monkeypatch) -> None:
    case = CASES[0]
    z, x = case.inputs(9), case.inputs(4, seed=1)
    kept = TangentKernel(frozen(case), 3, False, x).inducing(z, 4)
    monkeypatch.setattr(tangent, "CACHE_BYTES", 0)
    recomputed = TangentKernel(frozen(case), 3, False, x).inducing(z, 4)
    torch.testing.assert_close(recomputed(x).cross, kept(x).cross, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(recomputed.gram, kept.gram, rtol=1e-12, atol=1e-12)
    monkeypatch.setattr(tangent, "BLOCK_BYTES", 1)
    blocks = TangentKernel(frozen(case), 3, False, x).gram(z)
    torch.testing.assert_close(blocks, kept.gram, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("parameters", "names"),
    [("last_layer", ["4.weight", "4.bias"]), (["0.weight", "4.bias"], ["0.weight", "4.bias"])],
)
def test_chosen_parameters(parameters, names) -> None:
    case = CASES[0]
    network = frozen(case, parameters)
    assert network.names == names
    x = case.inputs(5)
    rule = TangentKernel(network, 3, True, x)
    torch.testing.assert_close(rule.gram(x), ntk(case.network(), x, x, shared=True, names=names))


def test_a_shared_kernel_keeps_the_first_outputs() -> None:
    case = CASES[0]
    x = case.inputs(5)
    rule = TangentKernel(frozen(case), 2, True, x)
    j = jacobian(case.network(), x)[:, :2]
    torch.testing.assert_close(rule.gram(x)[0], torch.einsum("acp,bcp->ab", j, j) / 2)
    assert length(x) == 5


RULED = {
    "mlp": 3,
    "cnn": 3,
    "batchnorm": 5,
    "layernorm": 3,
    "embedding": 2,
    "transformer": 10,  # embedding, head, and of each layer two linear and two normalising ones
    "tied": 0,
    "used twice": 2,
    "functional parameter": 1,
    "dict inputs": 3,
    "residual block": 6,
    "sequence first": 1,
    "positions folded into the batch": 1,
    "borrowed weight": 2,  # of the borrowed one, the bias
    "hooked": 1,
    "parametrized": 1,
}


@pytest.mark.parametrize("name", RULED)
def test_rules_cover_what_they_can_and_leave_what_they_must(name: str) -> None:
    case = next(case for case in CASES if case.name == name)
    rule = TangentKernel(frozen(case), 2, True, case.inputs(1))
    assert len(rule.layers) == RULED[name]
    covered = {getattr(layer.module, n) for layer in rule.layers for n in layer.names}
    assert (rule.fallback is None) == (covered == set(rule.network.module.parameters()))
