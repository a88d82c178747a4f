"""All works on a device that is not the CPU, and gives what it gives there."""

from __future__ import annotations

import copy
import io
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.utils.data import DataLoader, TensorDataset

from sfr_cl import (
    SFRPosterior,
    StreamingPosterior,
    class_balanced,
    greedy,
    noise,
    random,
    smooth_noise,
)
from sfr_cl.benchmarks.harness.kernel_cases import CASES
from sfr_cl.core import tune
from sfr_cl.likelihoods import is_built_in
from sfr_cl.streaming import Autosave
from sfr_cl.streaming.river import StreamingClassifier, StreamingRegressor
from sfr_cl.testing import check_refusal
from support.device import DEVICE, assert_same_on_device, device
from support.posteriors import (
    CLASSES,
    OUTPUTS,
    Poisson,
    contents,
    data,
    grown,
    inputs,
    mlp,
)
from support.zoo import ZOO

Place = torch.device
Scenario = Callable[[Place], Any]


# The device itself -------------------------------------------------------------------------------

ON = DEVICE

REFUSED: dict[str, tuple[Scenario, str]] = {
    "sum": (lambda on: torch.ones(3, device=on) + torch.ones(3), "same device"),
    "sum with a scalar of the device": (
        lambda on: torch.ones(3) + torch.ones((), device=on),
        "same device",
    ),
    "sum into a scalar": (lambda on: torch.ones(()).add_(torch.ones((), device=on)), "same device"),
    "product": (lambda on: torch.ones(3, 3) @ torch.ones(3, device=on), "same device"),
    "concatenation": (lambda on: torch.cat([torch.ones(3, device=on), torch.ones(3)]), "same"),
    "stack of scalars": (
        lambda on: torch.stack([torch.ones((), device=on), torch.ones(())]),
        "same",
    ),
    "comparison": (lambda on: torch.equal(torch.ones(3, device=on), torch.ones(3)), "same device"),
    "gather": (
        lambda on: torch.ones(3, device=on).gather(0, torch.zeros(1, dtype=torch.long)),
        "same",
    ),
    "index on the device": (lambda on: torch.ones(3)[torch.zeros(1, device=on).long()], "same"),
    "mask on the device": (lambda on: torch.ones(3)[torch.ones(3, device=on) > 0], "same device"),
    "values put": (
        lambda on: torch.ones(3, device=on).index_put((torch.tensor([0, 1]),), torch.ones(2)),
        "same",
    ),
    "generator": (
        lambda on: torch.randn(3, generator=torch.Generator(), device=on),
        "'cuda' device type for generator",
    ),
    "generator of the device": (
        lambda on: torch.randn(3, generator=torch.Generator(on)),
        "device type for generator",
    ),
    "numpy": (lambda on: torch.ones(3, device=on).numpy(), "can't convert cuda"),
    "array": (lambda on: np.asarray(torch.ones(3, device=on)), "can't convert cuda"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_the_device_refuses_what_a_gpu_refuses(case: str) -> None:
    call, message = REFUSED[case]
    with device() as on, pytest.raises((RuntimeError, TypeError), match=message):
        call(on)


TAKEN: dict[str, Scenario] = {
    "scalar": lambda on: 1 + torch.ones(3, device=on) * torch.tensor(2.0),
    "index": lambda on: torch.arange(3, device=on)[torch.tensor([2, 0])],
    "list as index": lambda on: torch.arange(3, device=on)[[2, 0]],
    "mask": lambda on: torch.arange(3, device=on)[torch.tensor([True, False, True])],
    "scalar put": lambda on: torch.ones(3, device=on).index_put(
        (torch.tensor([0]),), torch.tensor(2.0)
    ),
    "values set": lambda on: _set(torch.zeros(3, device=on), [0, 2], 1.0),
    "part set": lambda on: _set(torch.zeros(3, 2, device=on), slice(1, 2), torch.ones(1, 2).to(on)),
    "copy": lambda on: torch.zeros(3, device=on).copy_(torch.ones(3)),
    "move": lambda on: torch.ones(3).to(on),
    "numbers": lambda on: torch.tensor([1.0, 2.0], device=on),
    "more numbers": lambda on: torch.ones(3, device=on).new_tensor([1, 2]),
    "factories": lambda on: [
        torch.eye(2, device=on),
        torch.arange(3, device=on),
        torch.linspace(0, 1, 3, device=on),
        torch.ones(3, device=on).new_zeros(2),
    ],
    "back": lambda on: torch.ones(3, device=on).cpu().numpy().tolist(),
    "numbers out": lambda on: [torch.ones(3, device=on).tolist(), float(torch.ones((), device=on))],
    "generator": lambda on: torch.randn(3, generator=torch.Generator(on).manual_seed(0), device=on),
    "copies": lambda on: copy.deepcopy({"a": torch.ones(3, device=on)}),
    "pickles": lambda on: pickle.loads(pickle.dumps(torch.ones(3, device=on))),
    "backward": lambda on: _gradient(torch.ones(3, device=on)),
    "network": lambda on: list(_moved(on).double().state_dict().values()),
}


def _set(tensor: Tensor, at: Any, value: Any) -> Tensor:
    tensor[at] = value
    return tensor


def _gradient(x: Tensor) -> Tensor:
    x.requires_grad_(True).exp().sum().backward()
    assert x.grad is not None
    return x.grad


def _moved(on: Place) -> nn.Module:
    network = mlp().to(on)
    network(inputs().to(on)).sum().backward()
    torch.optim.Adam(network.parameters()).step()
    return copy.deepcopy(network)


@pytest.mark.parametrize("case", TAKEN)
def test_the_device_takes_what_a_gpu_takes(case: str) -> None:
    assert_same_on_device(TAKEN[case])


# Posteriors --------------------------------------------------------------------------------------

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "classification": ("classification", {}),
    "per output": ("classification", {"output_kernel": "per_output"}),
    "last layer": ("classification", {"parameters": "last_layer"}),
    "names": ("classification", {"parameters": ["0.weight", "2.bias"]}),
    "at the network": ("classification", {"linearize_at": "network"}),
    "mean network": ("classification", {"mean": "network"}),
    "mean dual": ("classification", {"mean": "dual", "output_kernel": "per_output"}),
    "float32": ("classification", {"dtype": torch.float32, "prior_precision": 0.3}),
    "small batches": ("classification", {"batch_size": 5}),
    "binary": ("binary", {"linearize_at": "network"}),
    "regression": ("regression", {}),
    "regression, network": ("regression", {"mean": "network", "noise_variance": 0.1}),
    "regression, two outputs": ("two", {"output_kernel": "per_output", "prior_precision": 0.1}),
    "regression, two noises": ("two", {"noise_variance": [0.1, 0.2]}),
    "custom": ("poisson", {"linearize_at": "network"}),
    "custom, at its mode": ("poisson", {}),
    "classification, at its mode": ("classification", {"linearize_at": "posterior"}),
}


def sample(kind: str, rows: int = 24, seed: int = 1) -> tuple[Tensor, Tensor]:
    if kind == "two":
        x = inputs(rows, seed)
        return x, x[:, :2].sin()
    if kind == "poisson":
        x = inputs(rows, seed)
        return x, x.abs().sum(1, keepdim=True).round()
    return data(kind, rows, seed)


def build(kind: str, on: Place, **options: Any) -> SFRPosterior:
    likelihood: Any = {"two": "regression", "poisson": Poisson()}.get(kind, kind)
    network = mlp({"two": 2, "poisson": 1}.get(kind) or OUTPUTS[kind]).to(on)
    return SFRPosterior(network, likelihood, **{"inducing": inputs(10, seed=2), **options})


def moved(pair: tuple[Tensor, Tensor], on: Place) -> tuple[Tensor, Tensor]:
    return pair[0].to(on), pair[1].to(on)


def gradients(penalty: Tensor, network: nn.Module) -> list[Any]:
    penalty.backward()
    return [penalty, [p.grad for p in network.parameters()]]


def changed(network: nn.Module) -> nn.Module:
    with torch.no_grad():
        for p in network.parameters():
            p.mul_(1.1)
    return network


Verb = Callable[[SFRPosterior, tuple[Tensor, Tensor]], Any]

READ: dict[str, Verb] = {
    "predict": lambda it, at: [it.predict(at[0], link=link) for link in ("probit", "mc", "map")],
    "log_prob": lambda it, at: it.predict(at[0]).log_prob(at[1]),
    "predict_f": lambda it, at: it.predict_f(at[0]),
    "full covariance": lambda it, at: it.predict_f(at[0][:4], full_cov=True),
    "predict_f_at": lambda it, at: it.predict_f_at(at[0], [0.1, 2.0]),
    "novelty": lambda it, at: it.novelty(at[0]),
    "nlpd": lambda it, at: it.nlpd(at),
    "evidence": lambda it, _: it.log_marginal_likelihood(),
    "noise": lambda it, _: it.noise_variance,
    "properties": lambda it, _: [
        it.num_data,
        it.num_outputs,
        it.is_fitted,
        it.inducing_inputs,
        it.prior_precision,
        repr(it),
    ],
    "penalty": lambda it, _: gradients(it.penalty(net := changed(copy.deepcopy(it.network))), net),
    "state_dict": lambda it, _: it.state_dict()["tensors"],
}

CHANGE: dict[str, Verb] = {
    "update": lambda it, at: it.update(at),
    "forget": lambda it, at: it.update(at).forget((at[0][:3], at[1][:3])),
    "discount": lambda it, _: it.discount(0.9),
    "tune": lambda it, _: it.tune_prior_precision(),
    "add": lambda it, _: it + it,
    "add_inducing": lambda it, at: it.add_inducing(at[0][:2]),
    "replace_inducing": lambda it, at: it.replace_inducing(at[0]),
    "with_prior_precision": lambda it, _: it.with_prior_precision(0.3),
    "from_sites": lambda it, _: SFRPosterior.of(it.spec, it.network).from_sites(it.sites),
    "load_state_dict": lambda it, _: it.load_state_dict(it.state_dict()),
    "from_state_dict": lambda it, _: SFRPosterior.from_state_dict(
        **it.state_dict(),
        network=it.network,
        likelihood=None if is_built_in(it.spec.likelihood) else it.spec.likelihood,
    ),
    "over": lambda it, _: SFRPosterior.over(it.spec, it.state),
    "pickle": lambda it, _: pickle.loads(pickle.dumps(it)),
    "init": lambda it, at: it.init().update(at),
    "recalibrate": lambda it, at: it.recalibrate(at),
}

OF_ANY_ORDER = ("forget", "add")
"""What is refused where data is linearised at its mode."""


def takes(it: SFRPosterior, name: str) -> bool:
    """Whether a posterior of its kind does not refuse this."""
    if name == "recalibrate":
        return it.spec.has_prior_logits
    return it.spec.linearize_at != "posterior" or name not in OF_ANY_ORDER


def absorbed(it: SFRPosterior, at: tuple[Tensor, Tensor]) -> Any:
    absorption = it.absorption()
    predicted = absorption.step(*at)
    absorption.finish()
    return [predicted, it.predict(at[0])]


@pytest.mark.parametrize("case", KINDS)
def test_posterior(case: str) -> None:
    """Fitted to data on the CPU, as of a loader, and used with data of the device."""
    kind, options = KINDS[case]

    def scenario(on: Place) -> Any:
        at = moved(sample(kind, 7, seed=4), on)
        it = build(kind, on, **options).fit(sample(kind))
        found = {name: verb(it, at) for name, verb in READ.items()}
        for name, verb in CHANGE.items():
            if takes(it, name):
                other = verb(copy.deepcopy(it), at)
                found[name] = [other.predict_f(at[0]), other.predict(at[0])]
        return {**found, "absorption": absorbed(it, at)}

    assert_same_on_device(scenario)


@pytest.mark.parametrize("kind", OUTPUTS)
def test_targets_on_the_cpu(kind: str) -> None:
    x, y = sample(kind, 7, seed=4)
    assert_same_on_device(lambda on: build(kind, on).fit(sample(kind)).predict(x).log_prob(y))


@pytest.mark.filterwarnings("ignore:the best prior precision lies at the edge")
@pytest.mark.parametrize("kind", OUTPUTS)
def test_tuned_by_validation(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "DELTAS", [0.01, 0.1, 1.0, 10.0])

    def scenario(on: Place) -> Any:
        it = build(kind, on).fit(sample(kind)).tune_prior_precision(sample(kind, 7, seed=4))
        return [it.prior_precision, it.logit_scale, it.predict(inputs(3, seed=3))]

    assert_same_on_device(scenario)


WITHOUT_RULES = (
    "RNN",
    "TransformerEncoder",
    "PReLU",
    "experts, rows routed",
    "Fourier operator",
    "complex activations",
    "nested inputs",
    "neural ODE",
    "checkpoint",
    "autograd.Function",
)
"""Networks with parameters that no rule covers."""

NETWORKS = {case.name: case for case in CASES} | {name: ZOO[name] for name in WITHOUT_RULES}


@pytest.mark.parametrize("name", NETWORKS)
def test_network(name: str) -> None:
    case = NETWORKS[name]
    network, x = case.network(), case.inputs(12)
    outputs = copy.deepcopy(network).eval()(x).shape[1]
    y = torch.stack([torch.linspace(-1, 1, 12)] * outputs, 1)

    def scenario(on: Place) -> Any:
        moved = copy.deepcopy(network).to(on)
        it = SFRPosterior(moved, "regression", output_kernel="per_output", inducing=8)
        return [it.fit((x, y)).predict(x), it.novelty(x)]

    assert_same_on_device(scenario)


SELECTORS: dict[str, Any] = {
    "count": 8,
    "default": None,
    "random": random(8),
    "class_balanced": class_balanced(8),
    "greedy": greedy(8, candidates=12),
    "noise": noise(8),
    "noise of a scale": noise(8, scale=2.0),
    "smooth_noise": smooth_noise(8),
    "inputs": torch.randn(8, 1, 4, 4, generator=torch.Generator().manual_seed(3)),
    "own": lambda batches, _: next(iter(batches))[0][:8],
}


def convolutions() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(12, CLASSES),
    )


@pytest.mark.parametrize("case", SELECTORS)
def test_selector(case: str) -> None:
    x = torch.randn(24, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    y = torch.arange(24) % CLASSES

    def scenario(on: Place) -> Any:
        wanted = SELECTORS[case]
        it = SFRPosterior(convolutions().to(on), "classification", inducing=wanted)
        torch.manual_seed(0)
        found = [it.fit(DataLoader(TensorDataset(x, y), 10)).inducing_inputs, it.predict(x)]
        torch.manual_seed(0)
        if case in ("random", "class_balanced", "greedy"):
            found.append(it.select((x.to(on), y.to(on))).tolist())
        return found

    assert_same_on_device(scenario)


FORMS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "dataset": TensorDataset,
    "loader": lambda x, y: DataLoader(TensorDataset(x, y), 10),
    "batches": lambda x, y: [(x[:9], y[:9]), (x[9:], y[9:])],
    "arrays": lambda x, y: (x.cpu().numpy(), y.cpu().numpy()),
}


@pytest.mark.parametrize("data_on", ["cpu", ON.type])
@pytest.mark.parametrize("form", FORMS)
def test_form_of_data(form: str, data_on: str) -> None:
    def scenario(on: Place) -> Any:
        there = Place("cpu") if on.type == "cpu" else Place(data_on)
        given = FORMS[form](*moved(sample("classification"), there))
        it = build("classification", on, inducing=6).fit(given)
        return [it.predict(inputs(3, seed=3)), it.nlpd(given), it.update(given).num_data]

    assert_same_on_device(scenario)


@pytest.mark.parametrize("carry", [True, False])
def test_grown_outputs(carry: bool) -> None:
    def scenario(on: Place) -> Any:
        options = {} if carry else {"output_kernel": "per_output", "linearize_at": "network"}
        it = build("classification", on, **options).fit(sample("classification"))
        larger = grown(mlp(), CLASSES + 2).to(on)
        found = [it.grow_outputs(larger).predict_f(inputs(3, seed=3))]
        if carry:
            found.append(it.grow_outputs(CLASSES + 3).predict_f(inputs(3, seed=3)))
        found.append(it.update((inputs(2, seed=4), torch.tensor([1, CLASSES + 1]))).num_data)
        return [*found, it.predict(inputs(3, seed=3)), it.penalty(larger)]

    assert_same_on_device(scenario)


def kept_on(on: Place) -> SFRPosterior:
    return build("classification", on).fit(sample("classification"))


def in_inference_mode(on: Place) -> Any:
    with torch.inference_mode():
        it = kept_on(on)
        return [it.predict(inputs(3)), it.update(sample("classification")).predict(inputs(3))]


def second_derivative(on: Place) -> Any:
    network = changed(mlp()).to(on)
    weights = list(network.parameters())
    first = torch.autograd.grad(kept_on(on).penalty(network), weights, create_graph=True)
    return list(torch.autograd.grad(sum(g.square().sum() for g in first), weights))


def derivative_by_func(on: Place) -> Any:
    network = changed(mlp()).to(on)
    penalty = kept_on(on).as_penalty().like(network)

    def value(weights: dict[str, Tensor]) -> Tensor:
        return penalty.at(functional_call(network, weights, (penalty.z,)))

    return grad(value)(dict(network.named_parameters()))


def drawn(on: Place) -> Any:
    latent, joint = (kept_on(on).predict_f(inputs(3), full_cov=full) for full in (False, True))
    torch.manual_seed(0)
    return [latent.sample(), joint.rsample(), kept_on(on).predict(inputs(3)).sample()]


USES: dict[str, Scenario] = {
    "inference mode": in_inference_mode,
    "second derivative": second_derivative,
    "derivative by func": derivative_by_func,
    "samples": drawn,
}


@pytest.mark.parametrize("case", USES)
def test_use(case: str) -> None:
    assert_same_on_device(USES[case])


# From one device to another ----------------------------------------------------------------------


def test_moved_there_and_back() -> None:
    it, x = build("regression", Place("cpu")).fit(sample("regression")), inputs(3, seed=3)
    expected = it.predict(x)
    with device() as on:
        assert it.to(on).predict(x).mean.device == on
        assert {p.device.type for p in it.network.parameters()} == {"cpu"}
        it.update(sample("regression")).forget(sample("regression")).tune_prior_precision()
        assert it.to("cpu").predict(x).mean.device.type == "cpu"
        assert it.fit(sample("regression")).predict(x).mean.device.type == "cpu"
    torch.testing.assert_close(it.predict(x).mean, expected.mean)


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_file(kind: str, tmp_path: Path) -> None:
    x = inputs(3, seed=3)
    here = build(kind, Place("cpu")).fit(sample(kind))
    expected = here.predict(x)
    with device() as on:
        there = build(kind, on).fit(sample(kind))
        for at, (saved, place) in enumerate([(there, on), (there, "cpu"), (here, on)]):
            saved.save(path := tmp_path / f"{at}.safetensors")
            loaded = SFRPosterior.load(path, saved.network.to(place))
            found = loaded.update(sample(kind)).forget(sample(kind)).predict(x).mean
            assert found.device.type == Place(place).type
            torch.testing.assert_close(found.cpu(), expected.mean, equal_nan=True)
            loaded.load_state_dict(saved.state_dict())


def test_of_two_devices() -> None:
    """Workers on different devices are merged, and penalties follow the network."""
    x, kind = inputs(3, seed=3), "classification"
    here = build(kind, Place("cpu"), mean="network").fit(sample(kind))
    both, penalty = here + here, here.penalty(changed(mlp()))
    expected = both.predict(x).probs
    with device() as on:
        there = build(kind, on, mean="network").fit(sample(kind))
        for one, two in ((here, there), (there, here)):
            found = (one + two).predict(x).probs
            assert found.device == one.predict(x).probs.device
            torch.testing.assert_close(found.cpu(), expected)
            carried = SFRPosterior.of(one.spec, one.network).from_sites(two.sites)
            assert carried.predict(x).probs.device == found.device
        for it in (here, there):
            for place in (on, Place("cpu"), on):
                found = it.penalty(changed(mlp()).to(place))
                assert found.device.type == place.type
                torch.testing.assert_close(found.cpu(), penalty)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_device_without_float64_is_refused(dtype: torch.dtype) -> None:
    here, later = (build("classification", Place("cpu"), dtype=dtype) for _ in range(2))
    here.fit(sample("classification"))
    with device(lacks=(torch.float64,)) as on:
        later.network.to(on)
        calls: list[Callable[[], Any]] = [
            lambda: build("classification", on, dtype=dtype),
            lambda: later.fit(sample("classification")),
            lambda: stream(on),
            lambda: here.to(on),
        ]
        for call in calls:
            check_refusal(
                call,
                lambda: [contents(here), contents(later)],
                error=ValueError,
                message="expected a device with float64.*got meta: use the CPU",
            )


# What the device can't carry ---------------------------------------------------------------------


def loaded_elsewhere(on: Place) -> Any:
    torch.save(kept_on(on).state_dict()["tensors"], file := io.BytesIO())
    file.seek(0)
    found = torch.load(file, map_location="cpu", weights_only=False)
    assert {value.device.type for value in found.values()} == {"cpu"}


def loaded_as_weights(on: Place) -> Any:
    torch.save(kept_on(on).state_dict()["tensors"], file := io.BytesIO())
    file.seek(0)
    return torch.load(file)


def with_old_weight_norm(on: Place) -> Any:
    return nn.utils.weight_norm(nn.Linear(3, 2)).to(on)


LIMITS: dict[str, tuple[Scenario, type[Exception], str]] = {
    "nn.utils.weight_norm": (
        with_old_weight_norm,
        RuntimeError,
        "parameters that are moved are swapped, which torch refuses where a graph holds them.",
    ),
    "torch.load with map_location": (
        loaded_elsewhere,
        AssertionError,
        "torch maps the storages in a file; a wrapper has none. On a GPU map_location moves what "
        "state_dict gave, and what save_checkpoint wrote.",
    ),
    "torch.load of weights only": (
        loaded_as_weights,
        pickle.UnpicklingError,
        "torch refuses classes it does not know, and the wrapper is one.",
    ),
}
"""What works on a GPU and not here, and why. What begins to work leaves the table."""


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("case", LIMITS)
def test_the_device_can_not_carry(case: str) -> None:
    call, error, _ = LIMITS[case]
    with device() as on, pytest.raises(error):
        call(on)


# Streams -----------------------------------------------------------------------------------------


def stream(on: Place, kind: str = "classification", **settings: Any) -> StreamingPosterior:
    return StreamingPosterior(build(kind, on, inducing=inputs(8, seed=2)), **settings)


def chosen(on: Place, kind: str = "classification", **settings: Any) -> StreamingPosterior:
    """One that chooses its inducing inputs itself."""
    return StreamingPosterior(build(kind, on, inducing=6), **settings)


def told(it: StreamingPosterior, x: Tensor | None = None) -> list[Any]:
    """All that a stream says."""
    x = inputs(5, seed=3) if x is None else x
    found = [it.predict(x), it.predict_f(x), it.predict_many(x), it.predict_one(x[0])]
    found += [it.is_empty, it.n_seen, it.num_data, it.inducing_inputs]
    return [*found, it.residual_bound.__dict__, it.excess_nll]


def one_by_one(on: Place) -> Any:
    it = stream(on, calibrate=True)
    for x, y in zip(*sample("classification", 30), strict=True):
        it.learn_one(x, y)
    return [told(it), it.predict_proba_one(inputs(1)[0])]


def by_name(on: Place) -> Any:
    it = stream(on, "regression")
    for row in inputs(30).tolist():
        it.learn_one(dict(zip("abc", row, strict=True)), sum(row))
    return [told(it), it.predict_one({"a": 1.0, "c": 2.0})]


def learned(make: Any, kind: str = "classification", **settings: Any) -> Scenario:
    def scenario(on: Place) -> Any:
        it = make(on, kind, **settings)
        x, y = sample(kind, 70, seed=5)
        it.learn_many(x[:40].to(on), y[:40].to(on))  # as they come: from there, and from the CPU
        it.learn_many(x[40:], y[40:])
        return told(it)

    return scenario


def swapped(**settings: Any) -> Scenario:
    """One whose inducing inputs are exchanged where a new region appears."""

    def scenario(on: Place) -> Any:
        it = chosen(on, swap=True, **settings)
        x, y = sample("classification", 400)
        x = 0.3 * x
        x[200:, 0] += 3
        it.learn_many(x, y)
        assert bool((it.inducing_inputs[:, 0] > 1.5).any())
        return told(it)

    return scenario


def aged(on: Place) -> Any:
    it = stream(on, discount=0.9, discount_per="second")
    x, y = sample("classification", 30)
    it.learn_many(x, y, time=torch.arange(30.0))
    it.learn_one(x[0], y[0], time=3.0)
    it.forget_many(x[:2].to(on), y[:2].to(on), at=torch.arange(2.0, device=on))
    it.forget_one(x[3], y[3], at=3.0)
    it.discount(0.5)
    return told(it)


def forgotten(on: Place) -> Any:
    it = stream(on)
    x, y = sample("classification", 30)
    it.learn_many(x, y)
    it.forget_many(x[:4], y[:4])
    it.forget_many(x[4:6].to(on), y[4:6].to(on), at=[4, 5])
    return told(it)


def windowed(on: Place) -> Any:
    it = stream(on, window=20)
    x, y = sample("classification", 50)
    it.learn_many(x, y)
    it.forget_many(x[-5:-2], y[-5:-2])
    it.forget_one(x[-1].to(on), y[-1].to(on))
    it.discount(0.5)
    it.grow_outputs(CLASSES + 1)
    it.learn_one(x[0], CLASSES)
    it.relinearize(changed(mlp()).to(on), data=(x, y))
    return told(it)


def merged(on: Place) -> Any:
    x, y = sample("classification", 40)
    one, two, there = stream(on), stream(on), stream(Place("cpu"))
    for it, rows in ((one, slice(0, 20)), (two, slice(20, 30)), (there, slice(30, 40))):
        it.learn_many(x[rows], y[rows])
    one.merge(two)
    one.merge(there)
    return told(one)


def relinearized(on: Place) -> Any:
    x, y = sample("classification", 40)
    it = stream(on)
    it.learn_many(x, y)
    cost = it.relinearize(changed(mlp()).to(on), data=(x, y))
    return [cost.divergence, cost.nlpd_before, cost.nlpd_after, told(it), it.nlpd((x, y))]


def from_posterior(on: Place) -> Any:
    it = StreamingPosterior(build("regression", on).fit(sample("regression")))
    it.learn_many(*sample("regression", 30, seed=6))
    return [told(it), it.posterior.predict(inputs(3)), copy.deepcopy(it).predict(inputs(3))]


def drifting(on: Place) -> Any:
    drifts: list[Any] = []
    it = stream(on, on_drift=drifts.append)
    x, y = sample("classification", 400)
    it.learn_many(x[:300], y[:300])
    it.learn_many(x[300:], (y[300:] + 1) % CLASSES)
    return [[(drift.position, drift.score) for drift in drifts], told(it)]


STREAMS: dict[str, Scenario] = {
    "one by one": one_by_one,
    "by name": by_name,
    "classification": learned(stream),
    "binary": learned(stream, "binary"),
    "regression": learned(stream, "regression", staleness=3),
    "two outputs": learned(stream, "two"),
    "custom": learned(stream, "poisson"),
    "chosen": learned(chosen, "regression"),
    "swapped": swapped(),
    "swapped, aging": swapped(discount=0.99),
    "swapped, in a window": swapped(window=25),
    "aged": aged,
    "forgotten": forgotten,
    "windowed": windowed,
    "merged": merged,
    "relinearized": relinearized,
    "from a posterior": from_posterior,
    "drifting": drifting,
}


@pytest.mark.parametrize("case", STREAMS)
def test_stream(case: str) -> None:
    assert_same_on_device(STREAMS[case])


@pytest.mark.parametrize("settings", [{}, {"window": 12}, {"swap": True}], ids=str)
def test_stream_file(settings: dict[str, Any], tmp_path: Path) -> None:
    def scenario(on: Place) -> Any:
        make = chosen if settings else stream
        x, y = sample("classification", 30)
        it = make(on, **settings)
        it.learn_many(x, y)
        it.save(path := tmp_path / f"{on.type}.stream", cursor=30)
        it.close()
        loaded, cursor = StreamingPosterior.load(path, mlp().to(on))
        for each in (it, loaded):
            each.learn_many(x, y)
        return [cursor, told(loaded), told(it)]

    assert_same_on_device(scenario)


def test_stream_file_elsewhere(tmp_path: Path) -> None:
    x, y = sample("classification", 30)
    with device() as on:
        it = stream(on, window=20)
        it.learn_many(x, y)
        it.save(tmp_path / "stream")
        it.close()
        expected = it.predict(x).probs.cpu()
    here, _ = StreamingPosterior.load(tmp_path / "stream", mlp())
    here.learn_many(x, y)
    here.forget_many(x[-3:], y[-3:])
    here, _ = StreamingPosterior.load(tmp_path / "stream", mlp())
    torch.testing.assert_close(here.predict(x).probs, expected)


def test_autosave(tmp_path: Path) -> None:
    def scenario(on: Place) -> Any:
        it, (x, y) = stream(on), sample("classification", 20)
        with Autosave(it, path := tmp_path / on.type, samples=8) as autosave:
            saved = []
            for start in range(0, 20, 5):
                it.learn_many(x[start : start + 5], y[start : start + 5])
                saved.append(autosave(start + 5))
        loaded, cursor = StreamingPosterior.load(path, mlp().to(on))
        return [saved, cursor, told(loaded)]

    assert_same_on_device(scenario)


@pytest.mark.parametrize("kind", ["classifier", "regressor"])
def test_river(kind: str) -> None:
    pd = pytest.importorskip("pandas")
    rows = inputs(30).tolist()

    def scenario(on: Place) -> Any:
        make = StreamingClassifier if kind == "classifier" else StreamingRegressor
        model = make(network=mlp(1).to(on), inducing=6)
        frame = pd.DataFrame(rows, columns=list("abc"))
        y = [
            ("low", "high", "none")[at % 3] if kind == "classifier" else sum(rows[at])
            for at in range(30)
        ]
        for features, target in zip(frame.to_dict("records"), y, strict=True):
            model.learn_one(features, target)
        model.learn_many(frame, pd.Series(y))
        found = [model.predict_one({"a": 1.0, "b": 0.0}), model.predict_many(frame).tolist()]
        if kind == "classifier":
            found.append(model.predict_proba_one({"a": 1.0}))
            found.append(model.predict_proba_many(frame).to_numpy().tolist())
        return found

    assert_same_on_device(scenario)


# All of it ---------------------------------------------------------------------------------------

NOT_USED: dict[str, str] = {
    "solved": "a record below the verbs, which all use it",
    "inducing": "what was asked for, as it was given",
    "fit_sites": "the old name of from_sites",
    "coverage": "the old name of residual_bound",
    "num_learned": "the old name of n_seen",
    "relinearise": "the old name of relinearize",
    "surprise": "the old name of excess_nll",
    "claim": "what Autosave calls, and holds no tensor",
    "save_with": "what Autosave calls to save",
}
"""Public names that no scenario uses itself, and why."""


@pytest.mark.parametrize("face", [SFRPosterior, StreamingPosterior])
def test_every_public_name_is_used(face: type) -> None:
    names = {name for name in vars(face) if not name.startswith("_")}
    scenarios = Path(__file__).read_text(encoding="utf-8").split("NOT_USED")[0]
    used = {name for name in names if re.search(rf"\.{name}\b", scenarios)}
    assert names - used == names & NOT_USED.keys()
