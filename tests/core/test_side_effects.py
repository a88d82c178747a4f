"""The user's network, its inputs and the random state are as they were after any call."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from sfr_cl import SFRPosterior, SFRWarning, class_balanced, greedy, noise, random
from support.posteriors import (
    CLASSES,
    FEATURES,
    OUTPUTS,
    assert_same_contents,
    contents,
    data,
    fingerprint,
    fitted,
    inputs,
)

Z = inputs(10, seed=2)
NEW = data(rows=8, seed=4)


def delicate(mode: str, outputs: int = CLASSES) -> nn.Sequential:
    """Dropout, BatchNorm with a past, a frozen parameter, a gradient, a hook, an attribute."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(
            nn.Linear(FEATURES, 8),
            nn.BatchNorm1d(8),
            nn.Tanh(),
            nn.Dropout(0.5),
            nn.Linear(8, outputs),
        )
        network(torch.randn(50, FEATURES) * 3 + 1)  # running statistics that are not the default
    network[0].bias.requires_grad_(False)
    network[4].weight.grad = torch.ones_like(network[4].weight)
    network[2].register_forward_hook(lambda *_: None)
    network.note = "mine"
    network.train(mode != "eval")
    if mode == "mixed":
        network[1].eval()
    return network


def larger(network: nn.Sequential) -> nn.Sequential:
    """The network with one output more."""
    result = delicate("train", CLASSES + 1)
    with torch.no_grad():
        for name, value in result.state_dict().items():
            old = network.state_dict()[name]
            (value[: len(old)] if old.ndim else value).copy_(old)
    return result


Call = Callable[[nn.Sequential, SFRPosterior, Path], Any]


def build(network: nn.Module, **options: Any) -> SFRPosterior:
    return SFRPosterior(network, "classification", **{"inducing": Z, **options})


def saved(posterior: SFRPosterior, folder: Path) -> Path:
    posterior.save(folder / "posterior.safetensors")
    return folder / "posterior.safetensors"


CALLS: dict[str, Call] = {
    "constructor": lambda net, *_: build(net),
    "constructor-last-layer": lambda net, *_: build(net, parameters="last_layer"),
    "fit": lambda _, it, __: it.fit(data()),
    "fit-last-layer": lambda net, *_: build(net, parameters="last_layer").fit(data()),
    "fit-float32": lambda net, *_: build(net, dtype=torch.float32).fit(data()),
    "fit-per-output": lambda net, *_: build(net, output_kernel="per_output").fit(data()),
    "fit-at-network": lambda net, *_: build(net, linearize_at="network").fit(data()),
    "fit-mean-network": lambda net, *_: build(net, mean="network").fit(data()).predict(NEW[0]),
    "fit-mean-dual": lambda net, *_: build(net, mean="dual").fit(data()).predict(NEW[0]),
    "fit-random": lambda net, *_: build(net, inducing=random(6)).fit(data()),
    "fit-class-balanced": lambda net, *_: build(net, inducing=class_balanced(6)).fit(data()),
    "fit-greedy": lambda net, *_: build(net, inducing=greedy(6)).fit(data()),
    "fit-noise": lambda net, *_: build(net, inducing=noise(6)).fit(data()),
    "update": lambda _, it, __: it.update(NEW),
    "forget": lambda _, it, __: it.forget(data(rows=3)),
    "discount": lambda _, it, __: it.discount(0.9),
    "add": lambda _, it, __: it + it,
    "add_inducing": lambda _, it, __: it.add_inducing(inputs(2, seed=6)),
    "grow_outputs": lambda net, it, _: it.grow_outputs(larger(net)).update(NEW),
    "predict_f": lambda _, it, __: it.predict_f(NEW[0]),
    "full_cov": lambda _, it, __: it.predict_f(NEW[0], full_cov=True),
    "novelty": lambda _, it, __: it.novelty(NEW[0]),
    "probit": lambda _, it, __: it.predict(NEW[0], link="probit"),
    "mc": lambda _, it, __: it.predict(NEW[0], link="mc"),
    "map": lambda _, it, __: it.predict(NEW[0], link="map"),
    "nlpd": lambda _, it, __: it.nlpd(NEW),
    "log_marginal_likelihood": lambda _, it, __: it.log_marginal_likelihood(),
    "tune": lambda _, it, __: it.tune_prior_precision(data(seed=5)),
    "penalty": lambda net, it, _: it.penalty(net),
    "penalty-of-another": lambda _, it, __: it.penalty(delicate("train")).backward(),
    "state_dict": lambda _, it, __: it.state_dict(),
    "load_state_dict": lambda net, it, _: build(net).load_state_dict(it.state_dict()),
    "save": lambda _, it, folder: saved(it, folder),
    "load": lambda net, it, folder: SFRPosterior.load(saved(it, folder), net),
    "to": lambda _, it, __: it.to("cpu").predict(NEW[0]),
    "properties": lambda _, it, __: (it.num_data, it.inducing_inputs, it.noise_variance, repr(it)),
}


@pytest.mark.parametrize("mode", ["train", "eval", "mixed"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_network_is_untouched(call: Call, mode: str, tmp_path: Path) -> None:
    network = delicate(mode)
    posterior = build(network).fit(data())
    before = fingerprint(network)
    call(network, posterior, tmp_path)
    assert fingerprint(network) == before


@pytest.mark.parametrize("mode", ["train", "eval", "mixed"])
def test_grown_network_is_untouched(mode: str) -> None:
    network = delicate(mode)
    after = larger(network)
    after.train(mode == "train")
    before = fingerprint(after)
    build(network).fit(data()).grow_outputs(after).update(NEW).predict(NEW[0])
    assert fingerprint(after) == before


def test_the_fingerprint_sees_what_it_should() -> None:
    changes: list[Callable[[nn.Sequential], Any]] = [
        lambda net: net[1].eval(),
        lambda net: net.double(),
        lambda net: net[1].running_mean.add_(0.0),
        lambda net: net[0].weight.data.mul_(1.0000001),
        lambda net: net[0].bias.requires_grad_(),
        lambda net: net.zero_grad(),
        lambda net: net[0].register_forward_hook(lambda *_: None),
        lambda net: setattr(net, "extra", 1),
        lambda net: setattr(net[0], "weight", nn.Parameter(net[0].weight.detach().clone())),
        lambda net: net(inputs()),
    ]
    for change in changes:
        network = delicate("train")
        before = fingerprint(network)
        change(network)
        assert fingerprint(network) != before


@pytest.mark.parametrize("mode", ["train", "eval", "mixed"])
def test_penalty_reaches_parameters_and_not_running_statistics(mode: str) -> None:
    network = delicate(mode)
    posterior = build(network).fit(data())
    with torch.no_grad():
        for p in network.parameters():
            p.add_(0.1)
    network.zero_grad()
    before = copy.deepcopy(dict(network.named_buffers()))
    modes = [module.training for module in network.modules()]
    penalty = posterior.penalty(network)
    assert penalty.shape == ()
    assert penalty.item() > 0
    assert penalty.item() == posterior.penalty(network).item()  # no dropout inside
    penalty.backward()
    for name, p in network.named_parameters():
        assert (p.grad is None) == (not p.requires_grad), name
        assert p.grad is None or (p.grad.isfinite().all() and p.grad.abs().sum() > 0), name
    for name, value in network.named_buffers():
        assert torch.equal(value, before[name]), name
    assert [module.training for module in network.modules()] == modes


def test_penalty_of_the_network_itself_is_zero() -> None:
    network = delicate("train")
    assert build(network).fit(data()).penalty(network).item() < 1e-10


# Predicting is pure ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", OUTPUTS)
@pytest.mark.parametrize("link", ["probit", "mc", "map"])
def test_same_prediction_twice(kind: str, link: str) -> None:
    posterior, x = fitted(kind), inputs(7, seed=3)
    before = contents(posterior)
    first = posterior.predict(x, link=link)
    posterior.nlpd(data(kind, rows=5, seed=6))
    posterior.predict_f(x, full_cov=True)
    second = posterior.predict(x, link=link)
    assert torch.equal(first.mean.nan_to_num(), second.mean.nan_to_num())
    y = data(kind, rows=7)[1]
    y = y if kind == "classification" else y.reshape(-1, 1).double()
    assert torch.equal(first.log_prob(y), second.log_prob(y))
    assert_same_contents(posterior, before)


READS: dict[str, Callable[[SFRPosterior], Any]] = {
    "predict": lambda it: it.predict(NEW[0]),
    "predict-mc": lambda it: it.predict(NEW[0], link="mc"),
    "full_cov": lambda it: it.predict_f(NEW[0], full_cov=True),
    "novelty": lambda it: it.novelty(NEW[0]),
    "nlpd": lambda it: it.nlpd(NEW),
    "nlpd-dataset": lambda it: it.nlpd(TensorDataset(*NEW)),
    "update": lambda it: it.update(NEW),
    "update-batches": lambda it: it.update([NEW, NEW]),
    "update-dataset": lambda it: it.update(TensorDataset(*NEW)),
    "forget-dataset": lambda it: it.forget(TensorDataset(*data(rows=3))),
    "log_marginal_likelihood": lambda it: it.log_marginal_likelihood(),
    "tune": lambda it: it.tune_prior_precision(data(seed=5)),
    "penalty": lambda it: it.penalty(it.network),
    "add": lambda it: it + it,
    "add_inducing": lambda it: it.add_inducing(inputs(2, seed=6)),
    "fit-at-given-inputs": lambda it: it.fit(data()),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_global_random_state_is_untouched(read: Callable[[SFRPosterior], Any]) -> None:
    posterior = build(delicate("train")).fit(data())
    before = torch.get_rng_state()
    read(posterior)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("select", [random, greedy, class_balanced, noise])
def test_random_choices_follow_the_seed(select: Any) -> None:
    chosen = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        chosen.append(fitted(inducing=select(6)).inducing_inputs)
    assert torch.equal(chosen[0], chosen[1])
    if select is not greedy:  # with so few data greedy draws them all, and chooses the same
        assert not torch.equal(chosen[0], chosen[2])


# The posterior keeps what it was fitted with ------------------------------------------------------


def train(network: nn.Module) -> None:
    network.train()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    x, y = data()
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()


def test_later_training_does_not_reach_the_posterior() -> None:
    network, other = delicate("train"), delicate("train")
    posterior, untrained = build(network).fit(data()), build(other).fit(data())
    train(network)
    assert_same_contents(posterior, contents(untrained))
    for it in (posterior, untrained):
        it.update(NEW).add_inducing(inputs(2, seed=6)).to("cpu")
    assert_same_contents(posterior, contents(untrained))
    x = inputs(5, seed=8)
    assert torch.equal(posterior.predict_f(x).mean, untrained.predict_f(x).mean)


def test_fit_takes_the_weights_of_its_time() -> None:
    network = delicate("train")
    posterior = build(network)
    train(network)
    assert_same_contents(posterior.fit(data()), contents(build(copy.deepcopy(network)).fit(data())))
    old = contents(posterior)
    assert old is not None
    train(network)
    again = contents(posterior.fit(data()))
    assert again is not None
    assert not torch.equal(again["tensors"]["factor"], old["tensors"]["factor"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_later_changes_of_the_inputs_do_not_reach_the_posterior(dtype: torch.dtype) -> None:
    x, y = data()
    x, z = x.to(dtype), inputs(10, seed=2).to(dtype)
    posterior = build(delicate("eval"), inducing=z, dtype=dtype).fit((x, y))
    kept, before = contents(posterior), posterior.predict_f(NEW[0]).mean
    for tensor in (x, y, z):
        tensor.zero_()
    assert_same_contents(posterior, kept)
    assert torch.equal(posterior.to("cpu").predict_f(NEW[0]).mean, before)


def test_inputs_are_untouched() -> None:
    x, y = data()
    kept_x, kept_y, versions = x.clone(), y.clone(), (x._version, y._version)
    posterior = build(delicate("train"), inducing=x).fit((x, y)).update((x, y))
    with pytest.warns(SFRWarning, match="24 of the inducing inputs that were given .* stay"):
        posterior.forget((x, y))
    posterior.predict(x)
    posterior.nlpd((x, y))
    assert torch.equal(x, kept_x)
    assert torch.equal(y, kept_y)
    assert (x._version, y._version) == versions


def test_a_merged_posterior_is_a_new_one() -> None:
    network = delicate("train")
    left, right = build(network).fit(data()), build(network).fit(NEW)
    kept = contents(left), contents(right)
    (left + right).update(NEW).discount(0.5).tune_prior_precision(data(seed=5))
    assert_same_contents(left, kept[0])
    assert_same_contents(right, kept[1])
