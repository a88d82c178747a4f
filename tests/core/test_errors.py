"""Bad input meets one family of errors, and changes nothing."""

import copy
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

from sfr_cl import (
    SFRError,
    SFRPosterior,
    SFRWarning,
    class_balanced,
    greedy,
    noise,
    random,
    smooth_noise,
)
from support.posteriors import (
    CLASSES,
    OUTPUTS,
    Poisson,
    assert_same_contents,
    contents,
    data,
    fingerprint,
    fitted,
    grown,
    inputs,
    mlp,
)

NAN, INF = float("nan"), float("inf")
X, Y = data()
Call = Callable[[SFRPosterior], Any]


def table(cases: dict[str, tuple[Any, ...]]) -> Any:
    return [pytest.param(*case, id=name) for name, case in cases.items()]


def assert_refused(
    call: Callable[[], Any], builtin: type[Exception] | tuple[type[Exception], ...], message: str
) -> None:
    """One of ours, the built-in people expect, and words on what was expected and what came."""
    with pytest.raises(SFRError) as caught:
        call()
    assert isinstance(caught.value, builtin)
    text = str(caught.value)
    assert "expected" in text
    assert "got" in text
    assert re.search(message, text, re.DOTALL), text


def assert_refused_unchanged(
    posterior: SFRPosterior,
    call: Call,
    builtin: type[Exception] | tuple[type[Exception], ...],
    message: str,
) -> None:
    before, network = contents(posterior), fingerprint(posterior.network)
    assert_refused(lambda: call(posterior), builtin, message)
    assert_same_contents(posterior, before)
    assert fingerprint(posterior.network) == network


# Data -------------------------------------------------------------------------------------------


def bad_batch(kind: str, *, x: Any = None, y: Any = None) -> tuple[str, Callable[[], Any]]:
    """A batch of four that is right but for what is given."""

    def make() -> tuple[Any, Any]:
        good = data(kind, rows=4, seed=3)
        return (good[0] if x is None else x), (good[1] if y is None else y)

    return kind, make


def inputs_with(value: float) -> Tensor:
    x = inputs(4, seed=3)
    x[2, 1] = value
    return x


def column(*values: float) -> Tensor:
    return torch.tensor(values)[:, None]


BAD_BATCHES = {
    "nan-x": (
        *bad_batch("classification", x=inputs_with(NAN)),
        ValueError,
        "finite inputs, got NaN or infinity in row 2 .*: drop or impute",
    ),
    "inf-x": (
        *bad_batch("regression", x=inputs_with(-INF)),
        ValueError,
        "finite inputs, got NaN or infinity in row 2 .*: drop or impute",
    ),
    "x-features": (*bad_batch("classification", x=torch.ones(4, 5)), ValueError, r"\d, 5\]"),
    "x-extra-axis": (*bad_batch("binary", x=torch.ones(4, 3, 2)), ValueError, r"\[4, 3, 2\]"),
    "x-scalar": (*bad_batch("regression", x=torch.tensor(1.0)), ValueError, "batch dimension"),
    "x-none": (bad_batch("binary")[0], lambda: (None, torch.ones(4)), TypeError, "NoneType"),
    "x-words": (
        *bad_batch("classification", x=np.array([["a"] * 3] * 4)),
        TypeError,
        "numbers|tensor",
    ),
    "x-objects": (
        *bad_batch("classification", x=np.array([[None] * 3] * 4)),
        TypeError,
        "numbers|tensor",
    ),
    "label-too-large": (
        *bad_batch("classification", y=torch.tensor([0, 1, 3, 0])),
        ValueError,
        r"labels in 0\.\.2, got 3: .*grow_outputs",
    ),
    "label-negative": (
        *bad_batch("classification", y=torch.tensor([0, 1, -1, 0])),
        ValueError,
        r"labels in 0\.\.2, got -1: drop rows without a label$",
    ),
    "label-float": (
        *bad_batch("classification", y=torch.tensor([0.0, 1, 2, 0])),
        TypeError,
        r"integer class labels, got torch\.float32: use y\.long\(\)",
    ),
    "label-nan": (
        *bad_batch("classification", y=torch.tensor([0.0, 1, NAN, 0])),
        TypeError,
        "integer class labels",
    ),
    "label-bool": (
        *bad_batch("classification", y=torch.tensor([True, False, True, False])),
        TypeError,
        r"integer class labels, got torch\.bool",
    ),
    "label-words": (
        *bad_batch("classification", y=np.array(["a", "b", "a", "b"])),
        TypeError,
        "labels|targets",
    ),
    "label-rank": (
        *bad_batch("classification", y=torch.zeros(4, 1, dtype=torch.long)),
        ValueError,
        r"shape \[B\], got \[4, 1\]",
    ),
    "label-scalar": (*bad_batch("classification", y=torch.tensor(1)), ValueError, "batch dim"),
    "label-count": (
        *bad_batch("classification", y=torch.tensor([0, 1, 2])),
        ValueError,
        "one target for each input, got 4 inputs and 3 targets",
    ),
    "binary-two": (*bad_batch("binary", y=torch.tensor([0, 1, 2, 0])), ValueError, "0 and 1"),
    "binary-negative": (*bad_batch("binary", y=column(0, 1, -1, 1)), ValueError, "0 and 1"),
    "binary-nan": (*bad_batch("binary", y=column(0, 1, NAN, 0)), ValueError, "0 and 1"),
    "binary-columns": (*bad_batch("binary", y=torch.zeros(4, 2)), ValueError, r"got \[4, 2\]"),
    "binary-complex": (
        *bad_batch("binary", y=torch.zeros(4, dtype=torch.complex64)),
        TypeError,
        "complex64",
    ),
    "target-nan": (
        *bad_batch("regression", y=column(0, NAN, 1, 2)),
        ValueError,
        "finite targets, got NaN or infinity: drop",
    ),
    "target-inf": (
        *bad_batch("regression", y=column(0, INF, 1, 2)),
        ValueError,
        "finite targets, got NaN or infinity: drop",
    ),
    "target-columns": (
        *bad_batch("regression", y=torch.zeros(4, 2)),
        ValueError,
        r"shape \[B, 1\].*got \[4, 2\]",
    ),
    "target-rank": (
        *bad_batch("regression", y=torch.zeros(4, 1, 1)),
        ValueError,
        r"got \[4, 1, 1\]",
    ),
    "target-complex": (
        *bad_batch("regression", y=torch.zeros(4, 1, dtype=torch.complex64)),
        TypeError,
        "real targets, got torch.complex64",
    ),
}

OPERATIONS: dict[str, Callable[[SFRPosterior, Any], Any]] = {
    "fit": lambda posterior, bad: posterior.fit(bad),
    "update": lambda posterior, bad: posterior.update(bad),
    "forget": lambda posterior, bad: posterior.forget(bad),
    "nlpd": lambda posterior, bad: posterior.nlpd(bad),
    "tune": lambda posterior, bad: posterior.tune_prior_precision(bad),
}


@pytest.mark.parametrize(
    ("operation", "late"),
    [
        (name, late)
        for name in OPERATIONS
        for late in (False, True)
        if (name, late) != ("tune", True)
    ],
)
@pytest.mark.parametrize(("kind", "batch", "builtin", "message"), table(BAD_BATCHES))
def test_bad_batch(
    kind: str,
    batch: Callable[[], Any],
    builtin: type[Exception],
    message: str,
    operation: str,
    late: bool,
) -> None:
    posterior = fitted(kind)
    bad = [data(kind, rows=8), batch()] if late else batch()
    assert_refused_unchanged(posterior, lambda it: OPERATIONS[operation](it, bad), builtin, message)


def test_bad_batch_late_in_tuning() -> None:
    _, batch, builtin, message = BAD_BATCHES["nan-x"]
    bad = [data(rows=8), batch()]
    assert_refused_unchanged(fitted(), lambda it: it.tune_prior_precision(bad), builtin, message)


@pytest.mark.parametrize("inducing", [None, 6, random(6), class_balanced(6), greedy(6), noise(6)])
@pytest.mark.parametrize("name", ["nan-x", "x-features", "label-too-large"])
def test_bad_batch_while_choosing_inducing_inputs(inducing: Any, name: str) -> None:
    _, batch, builtin, message = BAD_BATCHES[name]
    posterior = fitted(inducing=inducing)
    bad = [data(rows=8), batch()]
    assert_refused_unchanged(posterior, lambda it: it.fit(bad), builtin, message)


def used_up() -> Iterator[Any]:
    batches = iter([data(rows=4)])
    next(batches)
    return batches


NOT_DATA = {
    "empty-loader": (
        lambda: DataLoader(TensorDataset(X[:0], Y[:0]), batch_size=4),
        ValueError,
        "expected data, got none",
    ),
    "empty-tensors": (
        lambda: (inputs(0), torch.zeros(0, dtype=torch.long)),
        ValueError,
        "expected data, got none",
    ),
    "empty-list": (list, ValueError, "expected data, got none"),
    "used-up-generator": (used_up, ValueError, "got none.*generator"),
    "tensor-alone": (lambda: inputs(4), TypeError, "pair .*got a Tensor"),
    "number": (lambda: 3, TypeError, "pair .*got a int"),
    "words": (lambda: "data", TypeError, "pair .*got a str"),
    "dict": (lambda: {"x": inputs(4)}, TypeError, "pair .*got a dict"),
    "triples": (lambda: [(*data(rows=4), 1)], TypeError, "got a tuple of 3"),
    "inputs-only": (lambda: DataLoader(inputs(4)), TypeError, "pairs .*got a Tensor"),
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(("make", "builtin", "message"), table(NOT_DATA))
def test_not_data(
    make: Callable[[], Any], builtin: type[Exception], message: str, operation: str
) -> None:
    call = OPERATIONS[operation]
    assert_refused_unchanged(fitted(), lambda it: call(it, make()), builtin, message)


@pytest.mark.parametrize("inducing", [None, 4, random(4), noise(4)])
def test_one_shot_generator_in_fit(inducing: Any) -> None:
    posterior = fitted(inducing=inducing)
    batches = (data(rows=8, seed=seed) for seed in range(2))
    message = "walked through twice.*one-shot iterator: give a DataLoader.*inducing as a tensor"
    assert_refused_unchanged(posterior, lambda it: it.fit(batches), TypeError, message)


def test_one_shot_generator_serves_once_where_once_is_enough() -> None:
    batches = [data(rows=8, seed=seed) for seed in range(2)]
    posterior = fitted().fit(iter(batches))
    assert_same_contents(posterior, contents(fitted().fit(batches)))


def test_overflow_is_refused() -> None:
    x, y = data("regression")
    message = "finite, got an overflow"
    assert_refused_unchanged(
        fitted("regression"), lambda it: it.update((x, y.double() * 1e160)), ValueError, message
    )


@pytest.mark.parametrize(
    "awkward",
    [lambda a: np.flip(np.flip(a).copy()), lambda a: np.broadcast_to(a, a.shape)],
    ids=["negative-strides", "read-only"],
)
def test_awkward_arrays_are_data_too(awkward: Callable[[Any], Any]) -> None:
    x, y = data()
    posterior = fitted().fit((awkward(x.numpy()), awkward(y.numpy())))
    assert_same_contents(posterior, contents(fitted()))


PREDICTIONS = {
    "nan": (inputs_with(NAN), ValueError, "finite .*inputs.*row 2"),
    "features": (torch.ones(4, 5), ValueError, r"\[4, 5\]"),
    "none": (inputs(0), ValueError, "inputs to predict, got none"),
    "no-batch-axis": (inputs(4)[0], ValueError, r"\[3\]|batch"),
    "overflow": (inputs(4).double() * 1e200, ValueError, "large|finite|overflow"),
    "words": ("x", TypeError, "tensor.*got str: convert"),
    "two-sizes": ((inputs(4), inputs(3)), ValueError, r"one batch size, got sizes \[3, 4\]"),
    "empty-tree": ({}, ValueError, "at least one tensor"),
}


@pytest.mark.parametrize("method", ["predict", "predict_f", "full_cov", "novelty"])
@pytest.mark.parametrize(("x", "builtin", "message"), table(PREDICTIONS))
def test_bad_input_to_predict(x: Any, builtin: type[Exception], message: str, method: str) -> None:
    def call(posterior: SFRPosterior) -> Any:
        if method == "predict":
            return posterior.predict(x, link="probit")
        if method == "novelty":
            return posterior.novelty(x)
        return posterior.predict_f(x, full_cov=method == "full_cov")

    # A network whose outputs grow with its inputs.
    network = mlp()
    network[1] = nn.Softplus()
    assert_refused_unchanged(fitted(network=network), call, builtin, message)


BAD_STEPS = {
    "fewer-targets": (inputs(5), torch.tensor([0, 1]), "got 5 inputs and 2 targets"),
    "one-target": (inputs(5), torch.tensor([0]), "got 5 inputs and 1 targets"),
    "none": (inputs(0), torch.zeros(0, dtype=torch.long), "got none"),
    "scalar": (inputs(1), torch.tensor(0), "batch dimension, got a scalar"),
    "words": (inputs(2), ["a", "b"], "numbers"),
}


@pytest.mark.parametrize(("x", "y", "message"), table(BAD_STEPS))
def test_bad_batch_in_an_absorption(x: Tensor, y: Any, message: str) -> None:
    call = lambda it: it.absorption().step(x, y)  # noqa: E731
    assert_refused_unchanged(fitted(), call, (ValueError, TypeError), message)


@pytest.mark.parametrize("value", [None, 1.0, 3])
def test_prior_precisions_are_several(value: Any) -> None:
    message = f"list of prior precisions, got {value!r}"
    assert_refused_unchanged(fitted(), lambda it: it.predict_f_at(X, value), ValueError, message)


def test_no_prior_precision_gives_nothing_but_checks_its_inputs() -> None:
    assert fitted().predict_f_at(X, []) == []
    message = "inputs to predict, got none"
    assert_refused_unchanged(
        fitted(), lambda it: it.predict_f_at(inputs(0), []), ValueError, message
    )


# Options ----------------------------------------------------------------------------------------

NOT_POSITIVE = [0, 0.0, -1.0, NAN, INF, -INF, "1", None, True]


@pytest.mark.parametrize("value", NOT_POSITIVE, ids=str)
@pytest.mark.parametrize("name", ["prior_precision", "noise_variance", "gamma", "weight"])
def test_number_that_must_be_positive(name: str, value: Any) -> None:
    if name == "prior_precision" and value is None:
        pytest.skip("None is the default: learned, or 1")
    calls: dict[str, Call] = {
        "prior_precision": lambda it: SFRPosterior(it.network, "binary", prior_precision=value),
        "noise_variance": lambda it: SFRPosterior(it.network, "regression", noise_variance=value),
        "gamma": lambda it: it.discount(value),
        "weight": lambda it: it.forget(data(rows=2), weight=value),
    }
    message = f"positive {name}.*got {re.escape(repr(value))}"
    assert_refused_unchanged(fitted(), calls[name], ValueError, message)


OPTIONS = {
    "likelihood": (
        {"likelihood": "softmax"},
        "'classification', 'binary', 'regression'.*'softmax'",
    ),
    "likelihood-class": ({"likelihood": Poisson}, "Likelihood object"),
    "output_kernel": ({"output_kernel": "full"}, "output_kernel .*shared, per_output; got 'full'"),
    "mean": ({"mean": "zero"}, "mean .*natural, dual, network; got 'zero'"),
    "mean-none": ({"mean": None}, "mean .*natural, dual, network; got None"),
    "linearize_at": (
        {"linearize_at": "zero"},
        "linearize_at .*prior, posterior, network; got 'zero'",
    ),
    "dual-at-prior": ({"mean": "dual", "linearize_at": "prior"}, "leave linearize_at out"),
    "network-at-prior": ({"mean": "network", "linearize_at": "prior"}, "leave linearize_at out"),
    "parameters": ({"parameters": "first_layer"}, "'all', 'last_layer'.*'first_layer'"),
    "parameter-name": ({"parameters": ["0.weight", "9.weight"]}, "0.weight, 0.bias.*'9.weight'"),
    "no-parameter-name": ({"parameters": []}, "names.*got none"),
    "parameters-number": ({"parameters": 3}, "'all', 'last_layer'.*3"),
    "noise_variance": (
        {"likelihood": "regression", "noise_variance": "auto"},
        "noise_variance or 'learn', got 'auto'",
    ),
    "dtype": ({"dtype": torch.float16}, "float64 or torch.float32, got torch.float16"),
    "dtype-words": ({"dtype": "float64"}, "torch.float64"),
    "batch_size-zero": ({"batch_size": 0}, "positive batch_size, got 0"),
    "batch_size-negative": ({"batch_size": -4}, "positive batch_size, got -4"),
    "batch_size-fraction": ({"batch_size": 2.5}, "positive batch_size, got 2.5"),
    "batch_size-bool": ({"batch_size": True}, "positive batch_size, got True"),
}


@pytest.mark.parametrize(("options", "message"), table(OPTIONS))
def test_option(options: dict[str, Any], message: str) -> None:
    options = {"likelihood": "classification", **options}
    assert_refused(lambda: SFRPosterior(mlp(), **options), ValueError, message)


@pytest.mark.parametrize("link", ["logit", "", 3])
def test_unknown_link(link: Any) -> None:
    assert_refused_unchanged(
        fitted(), lambda it: it.predict(inputs(2), link=link), ValueError, "probit, mc, map; got"
    )


@pytest.mark.parametrize("device", ["nowhere", "maia", "hpu"])
def test_unknown_device(device: str) -> None:
    """One torch has no name for, no kernels, or no module."""
    message = f"a device torch can use, got '{device}'"
    assert_refused_unchanged(fitted(), lambda it: it.to(device), ValueError, message)


def test_gamma_above_one() -> None:
    assert_refused_unchanged(fitted(), lambda it: it.discount(1.5), ValueError, r"\(0, 1\].*1.5")


# Inducing inputs --------------------------------------------------------------------------------

INDUCING = {
    "count-above-data": (25, ValueError, "at least 25 data .*got 24: lower inducing"),
    "random-above-data": (random(25), ValueError, "at least 25 data .*got 24: lower inducing"),
    "balanced-above-data": (class_balanced(25), ValueError, "at least 25 data .*got 24: lower"),
    "greedy-above-data": (greedy(25), ValueError, "at least 25 data .*got 24: lower inducing"),
    "greedy-above-candidates": (greedy(8, candidates=5), ValueError, "candidates"),
    "zero": (0, ValueError, "positive number of inducing inputs, got 0"),
    "negative": (-3, ValueError, "positive number of inducing inputs, got -3"),
    "bool": (True, ValueError, "positive number of inducing inputs, got True"),
    "fraction": (2.5, TypeError, r"inducing to be .*sfr_cl\.greedy\(512\).*got 2.5"),
    "words": ("greedy", TypeError, r"inducing to be .*sfr_cl\.greedy\(512\).*got 'greedy'"),
    "dataset": (TensorDataset(X), TypeError, r"inducing to be .*got <torch.*TensorDataset"),
    "random-zero": (random(0), ValueError, "positive number of inducing inputs, got 0"),
    "noise-fraction": (noise(2.5), ValueError, "positive number .*got 2.5"),
    "noise-scale": (noise(4, scale=-1.0), ValueError, "positive scale, got -1"),
    "noise-scale-nan": (noise(4, scale=NAN), ValueError, "positive scale, got nan"),
    "noise-scale-inf": (noise(4, scale=INF), ValueError, "positive scale, got inf"),
    "smooth-noise-of-vectors": (smooth_noise(4), ValueError, "images .*nn.Flatten .*or use noise"),
    "tensor-features": (torch.ones(4, 5), ValueError, r"\[4, 5\]"),
    "tensor-nan": (inputs_with(NAN), ValueError, "finite .*inputs.*row 2"),
    "tensor-empty": (inputs(0), ValueError, "inducing inputs, got none"),
    "selector-of-nothing": (lambda *_: None, TypeError, "got NoneType"),
    "selector-of-none": (lambda *_: inputs(0), ValueError, "inducing inputs, got none"),
}


@pytest.mark.parametrize(("inducing", "builtin", "message"), table(INDUCING))
def test_inducing(inducing: Any, builtin: type[Exception], message: str) -> None:
    posterior = SFRPosterior(mlp(), "classification", inducing=inducing)
    posterior.load_state_dict(fitted().state_dict())
    assert_refused_unchanged(posterior, lambda it: it.fit(data()), builtin, message)


@pytest.mark.parametrize("blur", [0.0, -1.0, NAN, INF])
def test_blur_that_must_be_positive(blur: float) -> None:
    signals = inputs()[:, None]
    network = nn.Sequential(nn.Flatten(), *mlp())
    posterior = SFRPosterior(network, "classification", inducing=smooth_noise(4, blur=blur))
    message = f"positive blur, got {blur}"
    assert_refused_unchanged(posterior, lambda it: it.fit((signals, Y)), ValueError, message)


def test_class_balanced_needs_classes() -> None:
    posterior = SFRPosterior(mlp(1), "regression", inducing=class_balanced(4))
    message = "class labels .*got real-valued.*use random or greedy"
    assert_refused_unchanged(posterior, lambda it: it.fit(data("regression")), TypeError, message)


ADDED = {
    "nan": (inputs_with(NAN), ValueError, "finite .*inputs.*row 2"),
    "features": (torch.ones(4, 5), ValueError, r"\[4, 5\]"),
    "none": (inputs(0), ValueError, "got none"),
    "words": ("more", TypeError, "got str"),
    "other-tree": ({"x": inputs(2)}, (ValueError, TypeError), "inputs"),
}


@pytest.mark.parametrize(("z", "builtin", "message"), table(ADDED))
def test_add_inducing(z: Any, builtin: type[Exception], message: str) -> None:
    assert_refused_unchanged(fitted(), lambda it: it.add_inducing(z), builtin, message)


def twins(gap: float) -> Tensor:
    return torch.cat([inputs(8, seed=2), inputs(8, seed=2)[:4] + gap]).double()


DUPLICATES = {
    "exact": twins(0.0),
    "near": twins(1e-9),
    "nearer": twins(1e-13),
    "all-the-same": inputs(1).expand(8, -1),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("kernel", ["shared", "per_output"])
@pytest.mark.parametrize("name", DUPLICATES)
def test_duplicates_work_with_a_warning(name: str, kernel: str, dtype: torch.dtype) -> None:
    z, x = DUPLICATES[name], inputs(6, seed=4)
    posterior = SFRPosterior(mlp(), "classification", inducing=z, output_kernel=kernel, dtype=dtype)
    with pytest.warns(SFRWarning, match=r"duplicates or nearly so.*remove them"):
        posterior.fit(data())
    latent = posterior.predict_f(x)
    assert latent.mean.isfinite().all()
    assert latent.variance.isfinite().all()
    # What twins add is nothing: the posterior is that of the distinct inputs.
    distinct = z[:1] if name == "all-the-same" else z[:8]
    clean = SFRPosterior(
        mlp(), "classification", inducing=distinct, output_kernel=kernel, dtype=dtype
    ).fit(data())
    tolerance = 1e-4 if dtype == torch.float64 else 5e-2
    torch.testing.assert_close(latent.mean, clean.predict_f(x).mean, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("kernel", ["shared", "per_output"])
def test_duplicates_may_be_added(kernel: str) -> None:
    posterior, x = fitted(output_kernel=kernel), inputs(6, seed=4)
    before = posterior.predict_f(x)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        posterior.add_inducing(posterior.inducing_inputs[:3])
        after = posterior.update(data(rows=6)).forget(data(rows=6)).predict_f(x)
    assert any(issubclass(w.category, SFRWarning) for w in caught)
    torch.testing.assert_close(after.mean, before.mean, atol=1e-4, rtol=1e-4)


# Merging ----------------------------------------------------------------------------------------


def trained() -> nn.Module:
    network = mlp()
    with torch.no_grad():
        network[0].weight[0, 0] += 1e-6
    return network


def with_noise(**options: Any) -> SFRPosterior:
    return fitted("regression", **options)


def tuned() -> SFRPosterior:
    posterior = fitted().tune_prior_precision(data(seed=5))
    assert posterior.logit_scale != 1.0
    return posterior


MERGES = {
    "network": (fitted, lambda: fitted(network=mlp(4)), "networks"),
    "weights": (fitted, lambda: fitted(network=trained()), "networks"),
    "architecture": (
        fitted,
        lambda: fitted(network=nn.Sequential(nn.Linear(3, 3))),
        "networks",
    ),
    "inducing": (fitted, lambda: fitted(inducing=inputs(10, seed=8)), "inducing"),
    "fewer-inducing": (fitted, lambda: fitted(inducing=inputs(9, seed=2)), "inducing"),
    "prior-precision": (fitted, lambda: fitted(prior_precision=2.0), "prior precisions"),
    "output-kernel": (fitted, lambda: fitted(output_kernel="per_output"), "options"),
    "linearize-at": (fitted, lambda: fitted(linearize_at="network"), "options"),
    "mean": (fitted, lambda: fitted(mean="network"), "options"),
    "dtype": (fitted, lambda: fitted(dtype=torch.float32), "options"),
    "parameters": (fitted, lambda: fitted(parameters="last_layer"), "options"),
    "likelihood": (
        lambda: fitted("binary"),
        lambda: fitted("regression"),
        "likelihoods",
    ),
    "noise": (
        lambda: with_noise(noise_variance=0.1),
        lambda: with_noise(noise_variance=1),
        "noise",
    ),
    "learned-noise": (lambda: with_noise(noise_variance=1.0), with_noise, "noise"),
    "grown": (fitted, lambda: fitted().grow_outputs(grown(mlp(), 4)), "networks"),
    "kernel-of-fewer-outputs": (
        lambda: fitted().grow_outputs(grown(mlp(), 4)),
        lambda: fitted(network=grown(mlp(), 4)),
        "kernel|outputs",
    ),
    "logit-scale": (
        tuned,
        lambda: fitted(prior_precision=tuned().prior_precision),
        "logit scale",
    ),
}


@pytest.mark.parametrize(("left", "right", "message"), table(MERGES))
def test_merging_what_does_not_fit(
    left: Callable[[], SFRPosterior], right: Callable[[], SFRPosterior], message: str
) -> None:
    a, b = left(), right()
    for one, other in ((a, b), (b, a)):
        kept = contents(other)
        assert_refused_unchanged(one, lambda it, other=other: it + other, ValueError, message)
        assert_same_contents(other, kept)


@pytest.mark.parametrize(
    "other", [3, None, "posterior", nn.Linear(1, 1)], ids=lambda o: type(o).__name__
)
def test_merging_with_no_posterior(other: Any) -> None:
    posterior = fitted()
    before = contents(posterior)
    for call in (lambda: posterior + other, lambda: other + posterior):
        with pytest.raises(TypeError):
            call()
    assert_same_contents(posterior, before)


def test_merging_with_one_that_is_not_fitted() -> None:
    empty = SFRPosterior(mlp(), "classification")
    assert_refused_unchanged(fitted(), lambda it: it + empty, RuntimeError, "call fit first")
    assert_refused(lambda: empty + fitted(), RuntimeError, "call fit first")


# Forgetting -------------------------------------------------------------------------------------

FORGET: dict[str, tuple[Call, str]] = {
    "more-than-seen": (lambda it: it.forget(data(rows=27)), "at most .*24 samples .*check"),
    "more-of-a-class": (
        lambda it: it.forget((X[:9], torch.zeros(9, dtype=torch.long))),
        r"at most .*24 samples \(8, 8, 8 by output\)",
    ),
    "twice": (lambda it: it.forget([(X, Y), (X, Y)]), "at most what was seen"),
    "weight-too-large": (lambda it: it.forget((X, Y), weight=1.1), "at most .*the weight"),
    "never-seen": (lambda it: it.forget((X[:6] * 9, Y[:6])), "indefinite.*never seen.*discounted"),
}


@pytest.mark.parametrize("kernel", ["shared", "per_output"])
@pytest.mark.parametrize(("call", "message"), table(FORGET))
def test_forgetting_too_much(call: Call, message: str, kernel: str) -> None:
    assert_refused_unchanged(fitted(output_kernel=kernel), call, ValueError, message)


def test_forgetting_what_was_discounted_at_full_weight() -> None:
    posterior = fitted().discount(0.5)
    assert_refused_unchanged(posterior, lambda it: it.forget((X, Y)), ValueError, "the weight")
    assert posterior.forget((X, Y), weight=0.5).num_data == 0


@pytest.mark.parametrize("method", ["log_marginal_likelihood", "tune_prior_precision", "penalty"])
def test_all_forgotten(method: str) -> None:
    posterior = fitted().forget((X, Y))
    args = [mlp()] if method == "penalty" else []
    message = "with data, got one that has forgotten"
    assert_refused_unchanged(posterior, lambda it: getattr(it, method)(*args), ValueError, message)


# Before fit -------------------------------------------------------------------------------------

BEFORE_FIT: dict[str, Call] = {
    "update": lambda it: it.update((X, Y)),
    "forget": lambda it: it.forget((X, Y)),
    "discount": lambda it: it.discount(0.5),
    "add": lambda it: it + it,
    "add_inducing": lambda it: it.add_inducing(X),
    "grow_outputs": lambda it: it.grow_outputs(grown(mlp(), 4)),
    "predict_f": lambda it: it.predict_f(X),
    "predict": lambda it: it.predict(X),
    "nlpd": lambda it: it.nlpd((X, Y)),
    "log_marginal_likelihood": lambda it: it.log_marginal_likelihood(),
    "tune": lambda it: it.tune_prior_precision(),
    "tune-on-data": lambda it: it.tune_prior_precision((X, Y)),
    "penalty": lambda it: it.penalty(mlp()),
    "num_data": lambda it: it.num_data,
    "num_outputs": lambda it: it.num_outputs,
    "inducing_inputs": lambda it: it.inducing_inputs,
    "noise_variance": lambda it: it.noise_variance,
    "state_dict": lambda it: it.state_dict(),
    "to": lambda it: it.to("cpu"),
}


@pytest.mark.parametrize("call", BEFORE_FIT.values(), ids=BEFORE_FIT)
def test_before_fit(call: Call) -> None:
    posterior = SFRPosterior(mlp(), "classification")
    assert_refused_unchanged(posterior, call, RuntimeError, "fitted posterior.*call fit first")
    assert "not fitted" in repr(posterior)


def test_saving_before_fit_writes_nothing(tmp_path: Path) -> None:
    posterior = SFRPosterior(mlp(), "classification")
    assert_refused(lambda: posterior.save(tmp_path / "p"), RuntimeError, "call fit first")
    assert not list(tmp_path.iterdir())


# Networks ---------------------------------------------------------------------------------------


class Then(nn.Module):
    """A network followed by something that goes wrong."""

    def __init__(self, then: Callable[[Tensor], Any], outputs: int = CLASSES) -> None:
        super().__init__()
        self.body, self.then = mlp(outputs), then

    def forward(self, x: Tensor) -> Any:
        return self.then(self.body(x))


class Keeping(nn.Module):
    """Keeps a lock, which nobody can copy."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp()
        self.kept = threading.Lock()

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


def fails(error: Exception) -> Callable[[Tensor], Any]:
    def then(_: Tensor) -> Any:
        raise error

    return then


def nan_weights() -> nn.Module:
    network = mlp()
    with torch.no_grad():
        network[2].weight[1, 1] = NAN
    return network


NETWORKS = {
    "no-parameters": (nn.Flatten, "classification", "with parameters"),
    "nan-weights": (nan_weights, "classification", "finite weights.*'2.weight'"),
    "no-module": (lambda: torch.sin, "classification", "torch.nn.Module"),
    "uninitialised": (lambda: nn.LazyLinear(3), "classification", "initiali[sz]ed|forward"),
    "not-copyable": (Keeping, "classification", "cop(y|ied)"),
    "three-axes": (lambda: Then(lambda f: f[:, :, None]), "classification", r"\[B, C\], got"),
    "no-axes": (lambda: Then(lambda f: f.sum()), "classification", r"\[B, C\], got"),
    "two-outputs": (lambda: Then(lambda f: (f, f)), "classification", r"\[B, C\], got tuple"),
    "too-few-rows": (
        lambda: Then(lambda f: f.mean(0, keepdim=True)),
        "classification",
        r"\[B, C\], got",
    ),
    "no-columns": (lambda: Then(lambda f: f[:, :0]), "regression", r"\[B, C\], got"),
    "integers": (lambda: Then(lambda f: f.long()), "classification", "float|differentiable"),
    "nan-outputs": (lambda: Then(lambda f: f * NAN), "classification", "finite"),
    "runtime-error": (lambda: Then(fails(RuntimeError("boom"))), "classification", "boom"),
    "attribute-error": (lambda: Then(fails(AttributeError("boom"))), "classification", "boom"),
    "assertion": (lambda: Then(fails(AssertionError("boom"))), "classification", "boom"),
    "binary-with-two-outputs": (
        lambda: mlp(2),
        "binary",
        "one output .*got 2: use 'classification'",
    ),
    "classification-with-one": (lambda: mlp(1), "classification", "two or more .*got 1: use 'bin"),
}


@pytest.mark.parametrize("inducing", [inputs(6, seed=2), 6], ids=["tensor", "count"])
@pytest.mark.parametrize(("make", "kind", "message"), table(NETWORKS))
def test_network(make: Callable[[], Any], kind: str, message: str, inducing: Any) -> None:
    network = make()
    assert_refused(
        lambda: SFRPosterior(network, kind, inducing=inducing).fit(data(kind)),
        (ValueError, TypeError, ArithmeticError),
        message,
    )


def test_network_spoiled_after_a_fit() -> None:
    posterior = fitted()
    with torch.no_grad():
        posterior.network[0].bias[0] = INF
    message = "finite weights.*'0.bias'"
    assert_refused_unchanged(posterior, lambda it: it.fit(data()), ValueError, message)
    assert posterior.predict(X).probs.isfinite().all()


GROWTH = {
    "not-grown": (mlp, "more than 3 outputs, got 3"),
    "fewer": (lambda: mlp(2), "rows added"),
    "other-weights": (lambda: grown(mlp(seed=5), 4), "weights .*call fit again"),
    "other-architecture": (
        lambda: nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 4)),
        "same parameters",
    ),
    "other-features": (lambda: mlp(4, features=5), "'0.weight' of shape"),
    "nan": (nan_weights, "finite weights"),
    "no-module": (lambda: "network", "torch.nn.Module"),
}


@pytest.mark.parametrize(("make", "message"), table(GROWTH))
def test_growing_into_what_does_not_fit(make: Callable[[], Any], message: str) -> None:
    network = make()
    assert_refused_unchanged(fitted(), lambda it: it.grow_outputs(network), ValueError, message)


def test_growing_without_a_kernel_for_the_new_outputs() -> None:
    posterior = fitted("regression")
    message = "use output_kernel='per_output'"
    assert_refused_unchanged(
        posterior, lambda it: it.grow_outputs(grown(mlp(1), 2)), ValueError, message
    )


PENALTIES = {
    "fewer-outputs": (lambda: mlp(2), ValueError, "at least 3 outputs, got 2"),
    "other-features": (lambda: mlp(features=5), ValueError, "network"),
    "no-parameters": (nn.Flatten, ValueError, "parameters"),
    "no-module": (lambda: "network", (ValueError, TypeError), "torch.nn.Module"),
    "raises": (lambda: Then(fails(RuntimeError("boom"))), ValueError, "boom"),
}


@pytest.mark.parametrize(("make", "builtin", "message"), table(PENALTIES))
def test_penalty_of_what_does_not_fit(
    make: Callable[[], Any], builtin: type[Exception], message: str
) -> None:
    network = make()
    before = fingerprint(network) if isinstance(network, nn.Module) else None
    assert_refused_unchanged(fitted(), lambda it: it.penalty(network), builtin, message)
    assert before is None or fingerprint(network) == before


# Memory -----------------------------------------------------------------------------------------


class LargestTensor(TorchDispatchMode):
    """Bytes of the largest tensor that any operation made."""

    size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, list | tuple) else [result]:
            if isinstance(value, Tensor):
                self.size = max(self.size, value.untyped_storage().nbytes())
        return result


def assert_refused_for_memory(posterior: SFRPosterior, call: Call, free: int, knob: str) -> None:
    before = contents(posterior)
    with pytest.raises(MemoryError) as caught, LargestTensor() as largest:
        call(posterior)
    assert isinstance(caught.value, SFRError)
    text = str(caught.value)
    match = re.search(r"needs ([\d,]+) bytes .* has ([\d,]+) free: (.*)", text)
    assert match, text
    needed, had = (int(match[i].replace(",", "")) for i in (1, 2))
    assert had == free < needed
    assert knob in match[3], text
    assert largest.size < free
    assert_same_contents(posterior, before)


MEMORY: dict[str, tuple[dict[str, Any], Call, int, str]] = {
    "tensor": (
        {"output_kernel": "per_output"},
        lambda it: it.fit(data()),
        50_000_000,
        "inducing",
    ),
    "noise": ({"inducing": noise(10**15)}, lambda it: it.fit(data()), 10**8, "inducing"),
    "count": ({"inducing": 200}, lambda it: it.fit(data(rows=800)), 10**6, "inducing"),
    "random": ({"inducing": random(600)}, lambda it: it.fit(data(rows=800)), 10**6, "inducing"),
    "batch_size": ({"batch_size": 10**9}, lambda it: it.fit(data()), 10**8, "batch_size"),
}


@pytest.mark.parametrize(("options", "call", "free", "knob"), table(MEMORY))
def test_memory_limit_of_fit(
    options: dict[str, Any], call: Call, free: int, knob: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"inducing": inputs(2000) if knob == "inducing" else inputs(10), **options}
    posterior = SFRPosterior(mlp(), "classification", **options)
    posterior.load_state_dict(
        fitted(**{**options, "inducing": inputs(8), "batch_size": None}).state_dict()
    )
    monkeypatch.setattr("sfr_cl.data.memory.available_bytes", lambda _: free)
    assert_refused_for_memory(posterior, call, free, knob)


@pytest.mark.parametrize("method", ["add_inducing", "full_cov"])
def test_memory_limit_of_a_fitted_posterior(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, free = inputs(1500), 10**7
    posterior = fitted()
    monkeypatch.setattr("sfr_cl.data.memory.available_bytes", lambda _: free)
    if method == "add_inducing":
        assert_refused_for_memory(posterior, lambda it: it.add_inducing(x), free, "inducing")
    else:
        assert_refused_for_memory(
            posterior, lambda it: it.predict_f(x, full_cov=True), free, "inputs"
        )


def test_memory_that_suffices_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = contents(fitted())
    for free in (10**6, None):
        monkeypatch.setattr("sfr_cl.data.memory.available_bytes", lambda _, free=free: free)
        assert_same_contents(fitted(), kept)


# After a refusal ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", OUTPUTS)
def test_life_after_a_refusal(kind: str) -> None:
    posterior, other = fitted(kind), fitted(kind)
    x, y = data(kind, rows=6, seed=7)
    for call in (
        lambda it: it.update((x * NAN, y)),
        lambda it: it.fit((x[:, :1], y)),
        lambda it: it.forget([(x, y)] * 9),
        lambda it: it.discount(0.0),
        lambda it: it.predict(x * INF),
    ):
        with pytest.raises(SFRError):
            call(copy.copy(posterior))
        with pytest.raises(SFRError):
            call(posterior)
    for it in (posterior, other):
        it.update((x, y))
    assert_same_contents(posterior, contents(other))
    assert posterior.nlpd((x, y)) == other.nlpd((x, y))


# Other forms of data ----------------------------------------------------------------------------

ROWS = [{"x": x, "y": y} for x, y in zip(X, Y, strict=True)]
OTHER_FORMS = {
    "triples": (lambda: DataLoader(TensorDataset(X, Y, Y)), "got a list of 3.*collate_fn"),
    "dicts": (lambda: DataLoader(ROWS), "got a dict.*collate_fn"),
    "lists": (lambda: (X.tolist(), Y.tolist()), "got a list.*torch.as_tensor"),
    "frames": (lambda: (pd.DataFrame(X.numpy()), pd.Series(Y)), "got a DataFrame.*to_numpy"),
}


@pytest.mark.parametrize(("make", "message"), OTHER_FORMS.values(), ids=OTHER_FORMS)
def test_data_that_is_no_pairs(make: Callable[[], Any], message: str) -> None:
    posterior = SFRPosterior(mlp(), "classification", inducing=4)
    assert_refused(lambda: posterior.fit(make()), TypeError, message)


class Masked(nn.Module):
    """Two arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(X.shape[1], CLASSES)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.last(x * mask)


@pytest.mark.parametrize("x", [X, (X, X), {"x": X, "mask": X}], ids=["tensor", "tuple", "dict"])
def test_networks_of_several_arguments(x: Any) -> None:
    posterior = SFRPosterior(Masked(), "classification", inducing=4)
    message = "given as one argument: .* a small module that unpacks"
    assert_refused(lambda: posterior.fit((x, Y)), ValueError, message)


class Coded(nn.Module):
    """The first column is a category."""

    def __init__(self) -> None:
        super().__init__()
        self.codes, self.last = nn.Embedding(2, CLASSES), nn.Linear(X.shape[1], CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.codes(x[:, 0].long()) + self.last(x)


def test_noise_for_categories() -> None:
    x = torch.cat([torch.arange(len(X))[:, None] % 2, X[:, 1:]], 1)
    posterior = SFRPosterior(Coded(), "classification", inducing=noise(50, scale=9.0))
    message = "takes noise, got .*categories; use greedy or random"
    assert_refused(lambda: posterior.fit((x, Y)), ValueError, message)


# Custom likelihoods -----------------------------------------------------------------------------

COUNTS = torch.arange(8.0)[:, None]
NOT_FITTING = {
    "targets": (lambda _, y, _count: y[:, 0].double(), r"gradient.*\[8, 1\], got \[8, 8\]"),
    "log_prob": (lambda _, f, y: f * y, r"log_prob.*\[8\], got \[8, 1\]"),
    "gradient": (lambda _, f, y: (y - f.exp())[:, 0], r"gradient.*\[8, 1\], got \[8\]"),
    "curvature": (lambda _, f, _y: f.new_ones(()), r"curvature.*\[8, 1\], got \[\]"),
}


def counts(**methods: Any) -> Poisson:
    """A likelihood some methods of which are others."""
    return type("Odd", (Poisson,), methods)()


@pytest.mark.parametrize("linearize_at", ["prior", "posterior", "network"])
@pytest.mark.parametrize("method", NOT_FITTING)
def test_a_likelihood_of_other_shapes(method: str, linearize_at: str) -> None:
    broken, message = NOT_FITTING[method]
    posterior = SFRPosterior(
        mlp(1), counts(**{method: broken}), inducing=4, linearize_at=linearize_at
    )
    message = f"expected {message}.*check_likelihood"
    assert_refused(lambda: posterior.fit((inputs(8), COUNTS)), ValueError, message)


@pytest.mark.parametrize("linearize_at", ["prior", "posterior", "network"])
def test_a_likelihood_of_no_numbers(linearize_at: str) -> None:
    likelihood = counts(gradient=lambda _, f, _y: f * NAN)
    posterior = SFRPosterior(mlp(1), likelihood, inducing=4, linearize_at=linearize_at)
    message = "numbers from gradient of 'poisson', got NaN"
    assert_refused(lambda: posterior.fit((inputs(8), COUNTS)), ValueError, message)


def test_a_likelihood_without_a_name() -> None:
    assert_refused(
        lambda: SFRPosterior(mlp(1), counts(name=None)), ValueError, "a likelihood with a name"
    )


@pytest.mark.parametrize("y", [-1 - COUNTS, COUNTS * NAN, COUNTS.expand(-1, 2)])
def test_targets_that_a_likelihood_fails_at(y: Tensor) -> None:
    posterior = SFRPosterior(mlp(1), Poisson(), inducing=4).fit((inputs(8), COUNTS))
    message = "expected targets that .*, got .*(support|invalid)"
    for call in (posterior.update, posterior.nlpd):
        assert_refused(lambda call=call: call((inputs(8), y)), ValueError, message)
