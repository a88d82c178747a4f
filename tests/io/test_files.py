"""Files give back the same posterior, bit for bit, or an error; opening one runs no code."""

import copy
import hashlib
import json
import os
import pickle
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from sfr_cl import Likelihood, SFRError, SFRPosterior, StreamingPosterior
from sfr_cl.errors import ArgumentError, FileError, MismatchError
from sfr_cl.io import files
from sfr_cl.likelihoods import GaussianLikelihood
from support.posteriors import (
    FEATURES,
    OUTPUTS,
    Poisson,
    assert_same_contents,
    contents,
    data,
    fitted,
    grown,
    inputs,
    mlp,
)

# Round trips ------------------------------------------------------------------------------------


class Tree(nn.Module):
    """Takes a dict, tuple or list of inputs."""

    def __init__(self, *path: Any) -> None:
        super().__init__()
        self.body, self.path = mlp(), path

    def forward(self, x: Any) -> Tensor:
        first, second = x, x
        for key in self.path[0]:
            first = first[key]
        for key in self.path[1]:
            second = second[key]
        return self.body(first + 2 * second)


class Tokens(nn.Module):
    """Takes integers."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.embed, self.head = nn.Embedding(11, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embed(x).mean(1).tanh())


def tree(shape: Callable[[Tensor, Tensor], Any], *path: Any) -> Any:
    """Posterior, a fresh network and inputs, for a tree of two tensors."""

    def make() -> tuple[SFRPosterior, nn.Module, Any]:
        x, y = data()
        z = shape(inputs(10, seed=2), inputs(10, seed=3))
        posterior = SFRPosterior(Tree(*path), "classification", inducing=z)
        posterior.fit((shape(x, inputs(seed=5)), y))
        return posterior, Tree(*path), shape(inputs(5, seed=6), inputs(5, seed=7))

    return make


def tokens() -> tuple[SFRPosterior, nn.Module, Any]:
    x = torch.randint(11, (24, 4), generator=torch.Generator().manual_seed(0))
    posterior = SFRPosterior(Tokens(), "classification", inducing=x[:6])
    return posterior.fit((x, data()[1])), Tokens(), x[5:9]


def plain(kind: str, **options: Any) -> Any:
    return lambda: (fitted(kind, **options), mlp(OUTPUTS[kind], seed=8), inputs(5, seed=6))


def tuned(kind: str) -> tuple[SFRPosterior, nn.Module, Any]:
    posterior = fitted(kind).tune_prior_precision(data(kind, seed=5))
    assert posterior.prior_precision != 1.0
    assert kind == "regression" or posterior.logit_scale != 1.0
    return posterior, mlp(OUTPUTS[kind], seed=8), inputs(5, seed=6)


def with_growth(**options: Any) -> Any:
    def make() -> tuple[SFRPosterior, nn.Module, Any]:
        posterior = fitted(**options).grow_outputs(grown(mlp(), 5))
        posterior.update((inputs(4, seed=9), torch.tensor([3, 4, 4, 0])))
        return posterior, mlp(5, seed=8), inputs(5, seed=6)

    return make


def with_history() -> tuple[SFRPosterior, nn.Module, Any]:
    posterior = fitted().update(data(seed=3)).discount(0.7).forget(data(rows=3), weight=0.7)
    return posterior.add_inducing(inputs(3, seed=4)), mlp(seed=8), inputs(5, seed=6)


ROUND_TRIPS: dict[str, Callable[[], tuple[SFRPosterior, nn.Module, Any]]] = {
    "classification": plain("classification"),
    "per-output": plain("classification", output_kernel="per_output"),
    "binary": plain("binary"),
    "regression-learned": plain("regression"),
    "regression-given": plain("regression", noise_variance=0.05),
    "last-layer": plain("classification", parameters="last_layer"),
    "named-parameters": plain("classification", parameters=["2.weight", "0.bias"]),
    "at-network": plain("classification", linearize_at="network"),
    "mean-network": plain("regression", mean="network"),
    "mean-dual": plain("binary", mean="dual"),
    "float32": plain("classification", dtype=torch.float32),
    "batch-size": plain("classification", batch_size=2),
    "prior-precision": plain("classification", prior_precision=0.3),
    "tuned": lambda: tuned("classification"),
    "tuned-regression": lambda: tuned("regression"),
    "grown": with_growth(),
    "grown-per-output": with_growth(output_kernel="per_output"),
    "history": with_history,
    "tokens": tokens,
    "dict": tree(lambda a, b: {"a": a, "b": b}, ["a"], ["b"]),
    "tuple": tree(lambda a, b: (a, b), [0], [1]),
    "list": tree(lambda a, b: [a, b], [0], [1]),
    "nested": tree(lambda a, b: {"a": (a,), "b": {"c": b}}, ["a", 0], ["b", "c"]),
    "dict-of-numbers": tree(lambda a, b: {0: a, 1: b}, [0], [1]),
    "dotted-names": tree(lambda a, b: {"a.b": a, "a": {"b": b}}, ["a.b"], ["a", "b"]),
}


def assert_same_posterior(left: SFRPosterior, right: SFRPosterior, x: Any) -> None:
    """The same answers to every question, bit for bit."""
    assert_same_contents(left, contents(right))
    f, g = left.predict_f(x), right.predict_f(x)
    assert torch.equal(f.mean, g.mean)
    assert torch.equal(f.variance, g.variance)
    p, q = left.predict(x), right.predict(x)
    assert type(p) is type(q)
    value = getattr(p, "probs", p.mean)
    assert torch.equal(value, getattr(q, "probs", q.mean))
    for name in ("prior_precision", "logit_scale", "noise_variance", "num_data", "num_outputs"):
        assert getattr(left, name) == getattr(right, name), name
    assert left.log_marginal_likelihood() == right.log_marginal_likelihood()
    assert repr(left) == repr(right)


@pytest.mark.parametrize("make", ROUND_TRIPS.values(), ids=ROUND_TRIPS)
def test_round_trip(make: Callable[[], Any], tmp_path: Path) -> None:
    posterior, network, x = make()
    posterior.save(tmp_path / "p.safetensors")
    loaded = SFRPosterior.load(tmp_path / "p.safetensors", network)
    assert_same_posterior(loaded, posterior, x)
    y = posterior.predict(x).sample()
    assert_same_posterior(loaded.update((x, y)), posterior.update((x, y)), x)
    loaded.save(str(tmp_path / "p.safetensors"))  # over the old one, by a name that is a string
    assert_same_posterior(SFRPosterior.load(tmp_path / "p.safetensors", network), posterior, x)


@pytest.mark.parametrize("make", ROUND_TRIPS.values(), ids=ROUND_TRIPS)
def test_state_dict_round_trip(make: Callable[[], Any]) -> None:
    posterior, network, x = make()
    options = {
        name: getattr(posterior.spec, name)
        for name in ("output_kernel", "parameters", "mean", "linearize_at", "dtype")
    }
    other = SFRPosterior(network, posterior.likelihood, **options)
    other.load_state_dict(posterior.state_dict())
    assert_same_posterior(other, posterior, x)


def test_loaded_posterior_merges_with_its_original(tmp_path: Path) -> None:
    posterior = fitted(parameters="last_layer")
    posterior.save(tmp_path / "p")
    both = posterior + SFRPosterior.load(tmp_path / "p", mlp(seed=8))
    assert both.num_data == 2 * posterior.num_data


def test_likelihood_of_ones_own(tmp_path: Path) -> None:
    x = inputs()
    y = torch.arange(24) % 4
    posterior = SFRPosterior(mlp(1), Poisson(), inducing=x[:8]).fit((x, y))
    path = tmp_path / "p"
    posterior.save(path)
    loaded = SFRPosterior.load(path, mlp(1, seed=8), likelihood=Poisson())
    assert_same_contents(loaded, contents(posterior))
    assert torch.equal(loaded.predict(x).mean, posterior.predict(x).mean)
    with pytest.raises(SFRError, match=r"expected .*'poisson'.*likelihood="):
        SFRPosterior.load(path, mlp(1))


def test_likelihood_that_is_not_the_files(tmp_path: Path) -> None:
    fitted("regression").save(tmp_path / "p")
    with pytest.raises(MismatchError, match="likelihood"):
        SFRPosterior.load(tmp_path / "p", mlp(1), likelihood=Poisson())


class Scaled(GaussianLikelihood):
    """A custom likelihood under a name that is built in."""


class Counted(Poisson):
    """With a setting, and no way to take another."""

    def __init__(self, level: float = 1.0) -> None:
        self.level = level

    def settings(self) -> dict[str, Any]:
        return {"level": self.level}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("learn", [False, True])
def test_a_subclass_of_a_built_in_likelihood_stays_one(
    learn: bool, stream: bool, tmp_path: Path
) -> None:
    posterior = SFRPosterior(mlp(1), Scaled(0.3, learn=learn), inducing=inputs(8))
    posterior.fit(data("regression"))
    assert type(posterior.solved.likelihood) is Scaled
    face: Any = SFRPosterior
    if stream:
        face = StreamingPosterior
        saved = StreamingPosterior(posterior)
        saved.save(tmp_path / "p")
        saved.close()
    else:
        posterior.save(tmp_path / "p")

    def load(**given: Any) -> Any:
        found = face.load(tmp_path / "p", mlp(1, seed=8), **given)
        return found[0].posterior if stream else found

    loaded = load(likelihood=Scaled(0.3, learn=learn))
    assert type(loaded.likelihood) is Scaled
    assert type(loaded.solved.likelihood) is Scaled
    x = inputs(5, seed=6)
    torch.testing.assert_close(loaded.predict(x).stddev, posterior.predict(x).stddev)
    for given in ({}, {"likelihood": GaussianLikelihood(0.3, learn=learn)}):
        with pytest.raises(MismatchError, match=r"a custom likelihood 'regression'.*likelihood="):
            load(**given)


def test_a_subclass_is_not_added_to_its_base() -> None:
    pair = [
        SFRPosterior(mlp(1), likelihood, inducing=inputs(8)).fit(data("regression"))
        for likelihood in (Scaled(0.3), GaussianLikelihood(0.3))
    ]
    with pytest.raises(MismatchError, match="same likelihoods"):
        _ = pair[0] + pair[1]


def test_a_subclass_is_not_what_a_built_in_likelihood_made(tmp_path: Path) -> None:
    fitted("regression", noise_variance=0.3).save(tmp_path / "p")
    with pytest.raises(MismatchError, match=r"the built-in likelihood 'regression'.*got Scaled"):
        SFRPosterior.load(tmp_path / "p", mlp(1), likelihood=Scaled(0.3))


def test_settings_that_are_not_the_files(tmp_path: Path) -> None:
    path = tmp_path / "p"

    def load(likelihood: Likelihood) -> SFRPosterior:
        return SFRPosterior.load(path, mlp(1), likelihood=likelihood)

    fitted("regression", noise_variance=0.3).save(path)
    assert load(GaussianLikelihood(0.3)).noise_variance == 0.3
    with pytest.raises(MismatchError, match=r"noise_variance=0\.3, got noise_variance=9\.0"):
        load(GaussianLikelihood(9.0))
    with pytest.raises(MismatchError, match=r"learn=False.*, got learn=True"):
        load(GaussianLikelihood(0.3, learn=True))

    posterior = fitted("regression")
    posterior.save(path)
    loaded = load(GaussianLikelihood(5.0, learn=True))  # where learning starts is no setting
    assert loaded.noise_variance == posterior.noise_variance
    with pytest.raises(MismatchError, match="learn=True"):
        load(GaussianLikelihood(1.0))

    SFRPosterior(mlp(1), Counted(2.0), inducing=inputs(8)).init().save(path)
    assert load(Counted(2.0)).likelihood.settings() == {"level": 2.0}
    with pytest.raises(MismatchError, match=r"level=2\.0, got level=1\.0"):
        load(Counted())


@pytest.mark.filterwarnings("ignore:the best scale of logits lies at the edge")
def test_the_next_fit_starts_as_it_was_given(tmp_path: Path) -> None:
    options = {"prior_precision": 7.0, "batch_size": 5, "num_outputs": 4}
    posterior = fitted(**options).tune_prior_precision(data(seed=5))
    assert posterior.prior_precision != 7.0
    posterior.save(tmp_path / "p")
    loaded = SFRPosterior.load(tmp_path / "p", mlp())
    assert loaded.prior_precision == posterior.prior_precision
    assert loaded.spec == replace(posterior.spec, likelihood=loaded.likelihood)
    assert loaded.replace_inducing(inputs(6)).state.basis.batch_size == 5
    for each in (posterior, loaded):
        each.fit(data(seed=3))
        assert (each.prior_precision, each.state.basis.batch_size, each.num_outputs) == (7.0, 5, 4)

    stream = StreamingPosterior(fitted(**options))
    stream.save(tmp_path / "s")
    stream.close()
    again = StreamingPosterior.load(tmp_path / "s", mlp())[0].posterior
    assert (again.spec.prior_precision, again.spec.batch_size) == (7.0, 5)


def test_what_a_posterior_was_given_itself_stays() -> None:
    stored = fitted(prior_precision=7.0, batch_size=5).state_dict()
    own = SFRPosterior(mlp(), "classification", prior_precision=0.5, inducing=inputs(10))
    own.load_state_dict(stored)
    assert own.prior_precision == 7.0
    own.fit(data())
    assert (own.prior_precision, own.state.basis.batch_size) == (0.5, 5)


def test_a_default_delta_stays_one_that_is_learned(tmp_path: Path) -> None:
    posterior = fitted("regression").tune_prior_precision(data("regression", seed=5))
    posterior.save(tmp_path / "p")
    loaded = SFRPosterior.load(tmp_path / "p", mlp(1)).fit(data("regression"))
    assert loaded.spec.learns_precision
    assert loaded.prior_precision == fitted("regression").prior_precision


OTHER_NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "shape": lambda: mlp(5),
    "features": lambda: mlp(features=FEATURES + 1),
    "more-layers": lambda: nn.Sequential(*mlp(), nn.Linear(3, 3)),
    "fewer-layers": lambda: nn.Sequential(nn.Linear(3, 3)),
    "names": lambda: nn.Sequential(nn.Identity(), *mlp()),
    "more-buffers": lambda: nn.Sequential(*mlp(), nn.BatchNorm1d(3, affine=False)),
    "no-bias": lambda: nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 3, bias=False)),
}


@pytest.mark.parametrize("parameters", ["all", "last_layer", ["2.weight"]], ids=str)
@pytest.mark.parametrize("make", OTHER_NETWORKS.values(), ids=OTHER_NETWORKS)
def test_network_that_is_not_the_files(
    make: Callable[[], nn.Module], parameters: Any, tmp_path: Path
) -> None:
    fitted(parameters=parameters).save(tmp_path / "p")
    with pytest.raises(MismatchError, match=r"expected .*got .*architecture"):
        SFRPosterior.load(tmp_path / "p", make())


# What is in a file ------------------------------------------------------------------------------


def header(content: bytes) -> tuple[dict[str, Any], int]:
    """The header of a safetensors file and where its tensors begin, read by hand."""
    size = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + size].decode()), 8 + size


def test_file_is_tensors_and_plain_values_and_nothing_else(tmp_path: Path) -> None:
    fitted("regression").save(tmp_path / "p")
    content = (tmp_path / "p").read_bytes()
    entries, begin = header(content)
    metadata = entries.pop("__metadata__")
    assert all(isinstance(value, str) for value in metadata.values())

    def is_plain(value: Any) -> bool:
        if isinstance(value, dict):
            return all(isinstance(key, str) and is_plain(v) for key, v in value.items())
        if isinstance(value, list):
            return all(map(is_plain, value))
        return value is None or isinstance(value, str | int | float | bool)

    assert is_plain(json.loads(metadata["values"]))
    # The tensors follow each other without a gap to the end of the file: there is no room for more.
    position = 0
    for entry in sorted(entries.values(), key=lambda entry: entry["data_offsets"]):
        assert set(entry) == {"dtype", "shape", "data_offsets"}
        assert entry["dtype"] in {"F64", "F32", "I64"}
        assert entry["data_offsets"][0] == position
        position = entry["data_offsets"][1]
    assert begin + position == len(content)
    assert not content.startswith((b"PK", b"\x80"))
    with pytest.raises(pickle.UnpicklingError):
        pickle.loads(content)


def test_a_file_holds_no_data_but_the_inducing_inputs(tmp_path: Path) -> None:
    posterior = fitted().update(data())
    posterior.save(tmp_path / "p")
    small = (tmp_path / "p").stat().st_size
    posterior.update(data(rows=999)).save(tmp_path / "p")
    # Scores and delta are numbers with more or fewer digits.
    assert abs((tmp_path / "p").stat().st_size - small) <= 300


@pytest.mark.parametrize("function", ["replace", "fsync", "serialise"])
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()], ids=repr)
def test_interrupted_save_leaves_the_old_file(
    function: str, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "p"
    posterior = fitted()
    posterior.save(path)
    before = path.read_bytes()
    posterior.update(data(seed=4))
    kept = contents(posterior)

    def fail(*_: Any) -> None:
        raise error

    if function == "serialise":
        monkeypatch.setattr(safetensors.torch, "save", fail)
    else:
        monkeypatch.setattr(os, function, fail)
    with pytest.raises(type(error)):
        posterior.save(path)
    monkeypatch.undo()
    assert [entry.name for entry in tmp_path.iterdir()] == ["p"]
    assert path.read_bytes() == before
    assert_same_contents(posterior, kept)


def test_contents_are_on_disk_before_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def watch(name: str) -> None:
        original = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a: (order.append(name), original(*a))[1])

    watch("fsync")
    watch("replace")
    fitted().save(tmp_path / "p")
    assert order[:2] == ["fsync", "replace"]


def test_save_into_no_folder(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        fitted().save(tmp_path / "nowhere" / "p")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_permissions_follow_the_umask(umask: int, mode: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        fitted().save(tmp_path / "p")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "p").stat().st_mode) == mode


# Damaged and foreign files ----------------------------------------------------------------------


class Trap:
    """Unpickling it leaves a mark."""

    sprung = False

    def __reduce__(self) -> Any:
        return (setattr, (Trap, "sprung", True))


def whole() -> bytes:
    state = fitted().state_dict()
    return signed(state["tensors"], json.dumps(state["values"], sort_keys=True))


def signed(tensors: dict[str, Tensor], text: str) -> bytes:
    """A file with a right checksum, whatever is in it."""
    tensors = {name: value.contiguous().clone() for name, value in tensors.items()}
    metadata = {"format": files.FORMAT, "values": text, "sha256": files._digest(tensors, text)}
    return safetensors.torch.save(tensors, metadata)


def refuses(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(FileError, match=r"expected .*got") as caught:
        SFRPosterior.load(path, mlp())
    assert str(path) in str(caught.value)
    assert path.read_bytes() == content


def test_the_undamaged_file_loads(tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(whole())
    assert_same_contents(SFRPosterior.load(tmp_path / "p", mlp()), contents(fitted()))


def test_truncated(tmp_path: Path) -> None:
    content = whole()
    begin = header(content)[1]
    lengths = {*range(20), *range(0, len(content), 61), begin - 1, begin, begin + 1}
    lengths |= {len(content) - 1, len(content) - 8}
    for length in sorted(lengths):
        refuses(tmp_path / "p", content[:length])


def test_extended(tmp_path: Path) -> None:
    for tail in (b"\0", b"x" * 4096, pickle.dumps(Trap())):
        refuses(tmp_path / "p", whole() + tail)
    assert not Trap.sprung


@pytest.mark.parametrize("bit", range(8))
def test_bit_flipped(bit: int, tmp_path: Path) -> None:
    content = whole()
    begin = header(content)[1]
    # The length, every byte of the header at one of the eight bits, and a sample of the tensors.
    offsets = [*range(8), *range(8 + bit, begin, 8), *range(begin + bit, len(content), 61)]
    for offset in offsets:
        damaged = bytearray(content)
        damaged[offset] ^= 1 << bit
        refuses(tmp_path / "p", bytes(damaged))


def torch_saved(value: Any, path: Path) -> bytes:
    torch.save(value, path)
    return path.read_bytes()


def test_foreign(tmp_path: Path) -> None:
    path = tmp_path / "p"
    state = fitted().state_dict()
    old_format = {"format": "sfr-cl posterior 0", "values": "{}", "sha256": ""}
    for content in (
        b"",
        b"\0" * 64,
        b"\xff" * 64,
        b"not a posterior at all",
        (2**63).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"{}",
        pickle.dumps(Trap()),
        pickle.dumps(state),
        torch_saved(Trap(), path),
        torch_saved(state, path),
        torch_saved(mlp().state_dict(), path),
        safetensors.torch.save(mlp().state_dict()),
        safetensors.torch.save(mlp().state_dict(), {"format": "pt"}),
        safetensors.torch.save(mlp().state_dict(), {"format": files.FORMAT}),
        safetensors.torch.save(mlp().state_dict(), old_format),
    ):
        refuses(path, content)
    assert not Trap.sprung


FORGED = {
    "not-json": "{",
    "empty": "",
    "no-values": "{}",
    "list": "[]",
    "null": "null",
    "number": "3",
    "nan": "NaN",
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("text", FORGED.values(), ids=FORGED)
def test_forged_values(text: str, tmp_path: Path) -> None:
    refuses(tmp_path / "p", signed(fitted().state_dict()["tensors"], text))


def test_forged_tensors(tmp_path: Path) -> None:
    state = fitted().state_dict()
    text = json.dumps(state["values"], sort_keys=True)
    for name in state["tensors"]:
        tensors = dict(state["tensors"])
        del tensors[name]
        (tmp_path / "p").write_bytes(signed(tensors, text))
        with pytest.raises(SFRError, match=r"expected .*got"):
            SFRPosterior.load(tmp_path / "p", mlp())


@pytest.mark.parametrize("kind", [SFRPosterior, StreamingPosterior])
def test_no_file(tmp_path: Path, kind: Any) -> None:
    path = tmp_path / "p"
    for error in (FileNotFoundError, FileError):
        with pytest.raises(error, match=f"expected {path} .*got no file there: check the path"):
            kind.load(path, mlp())
    with pytest.raises(FileError, match=f"expected {tmp_path} .*got a folder"):
        kind.load(tmp_path, mlp())


def test_no_folder(tmp_path: Path) -> None:
    folder = tmp_path / "none"
    stream = StreamingPosterior(fitted())
    for save in (fitted().save, stream.save):
        for error in (FileNotFoundError, FileError):
            with pytest.raises(error, match=f"expected a folder to write p in, got {folder}, "):
                save(folder / "p")
    assert not folder.exists()


@pytest.mark.parametrize("kind", [SFRPosterior, StreamingPosterior])
def test_no_network(tmp_path: Path, kind: Any) -> None:
    saved = fitted() if kind is SFRPosterior else StreamingPosterior(fitted())
    saved.save(tmp_path / "p")
    with pytest.raises(ArgumentError, match=r"expected a torch.nn.Module .*got NoneType"):
        kind.load(tmp_path / "p", None)


# load_state_dict --------------------------------------------------------------------------------

STATE = fitted("regression", noise_variance=0.5).update(data("regression", seed=3)).state_dict()
LATER = (
    "given",
    "custom_likelihood",
    "scores",
    "bound",
    "discriminant",
    "forecast",
    "inducing_origin",
)
"""Not in files of version 0.1.0."""

SOLVED = [name for name in STATE["tensors"] if not name.startswith(("network.", "inducing."))]


def refuses_state(state: Any) -> None:
    posterior = fitted("regression", noise_variance=0.5)
    before, x = contents(posterior), inputs(5, seed=6)
    mean = posterior.predict(x).mean
    with pytest.raises(SFRError, match=r"expected .*got"):
        posterior.load_state_dict(state)
    assert_same_contents(posterior, before)
    assert torch.equal(posterior.predict(x).mean, mean)


def changed(part: str, name: str, value: Any) -> dict[str, Any]:
    state = copy.deepcopy(STATE)
    state[part][name] = value
    return state


def test_state_is_what_load_state_dict_takes() -> None:
    posterior = fitted("regression", noise_variance=0.5).load_state_dict(copy.deepcopy(STATE))
    assert_same_contents(posterior, STATE)


@pytest.mark.parametrize(
    "state", [None, 3, [], {}, "state", mlp().state_dict()], ids=lambda state: type(state).__name__
)
def test_state_of_a_wrong_type(state: Any) -> None:
    refuses_state(state)


@pytest.mark.parametrize("part", ["tensors", "values"])
@pytest.mark.parametrize("value", [None, 3, [], {}])
def test_part_of_a_wrong_type(part: str, value: Any) -> None:
    refuses_state({**STATE, part: value})
    refuses_state({name: content for name, content in STATE.items() if name != part})


@pytest.mark.parametrize(
    ("part", "name"),
    [(part, name) for part in ("tensors", "values") for name in STATE[part] if name not in LATER],
)
def test_missing_key(part: str, name: str) -> None:
    state = copy.deepcopy(STATE)
    del state[part][name]
    refuses_state(state)


@pytest.mark.parametrize("name", STATE["tensors"])
def test_tensor_of_a_wrong_shape(name: str) -> None:
    tensor = STATE["tensors"][name]
    refuses_state(changed("tensors", name, tensor[None]))
    refuses_state(changed("tensors", name, tensor[:-1] if tensor.ndim else tensor.expand(2)))


@pytest.mark.parametrize("name", STATE["tensors"])
def test_tensor_of_a_wrong_type(name: str) -> None:
    refuses_state(changed("tensors", name, STATE["tensors"][name].tolist()))
    refuses_state(changed("tensors", name, None))


@pytest.mark.parametrize("name", SOLVED)
def test_sums_of_another_precision(name: str) -> None:
    refuses_state(changed("tensors", name, STATE["tensors"][name].float()))


@pytest.mark.parametrize("value", [None, "x", -1, [], {"x": 1}], ids=repr)
@pytest.mark.parametrize("name", STATE["values"])
def test_wrong_value(name: str, value: Any) -> None:
    if name in ("prior_precision", "logit_scale", "forecast") and value is None:
        pytest.skip("None is a value: learned, or none yet")
    refuses_state(changed("values", name, value))


def test_good_values_are_not_taken_over_with_a_bad_one() -> None:
    state = changed("values", "prior_precision", 3.0)
    state["values"]["logit_scale"] = -1.0
    refuses_state(state)


@pytest.mark.parametrize("change", [{"prior_precision": -1.0}, {"batch_size": 2.5}, {"x": 1}])
def test_a_wrong_start_of_the_next_fit(change: dict[str, Any]) -> None:
    refuses_state(changed("values", "given", {**STATE["values"]["given"], **change}))


@pytest.mark.parametrize("dropped", [None, "x", [-1], [1.5], [11], [0, 0], [True]], ids=repr)
def test_places_that_were_none(dropped: Any) -> None:
    refuses_state(changed("values", "inducing_origin", {"given": True, "dropped": dropped}))


@pytest.mark.parametrize("name", LATER)
def test_files_of_before_have_less(name: str) -> None:
    state = fitted(prior_precision=3.0).state_dict()
    del state["values"][name]
    posterior = SFRPosterior(mlp(), "classification").load_state_dict(state)
    assert posterior.prior_precision == 3.0
    assert posterior.spec.prior_precision == (None if name == "given" else 3.0)


def test_unknown_tensor() -> None:
    refuses_state(changed("tensors", "network.extra", torch.ones(2)))


@pytest.mark.parametrize(
    "options", [{"output_kernel": "per_output"}, {"mean": "dual"}, {"dtype": torch.float32}]
)
def test_state_of_other_options(options: dict[str, Any]) -> None:
    refuses_state(fitted("regression", noise_variance=0.5, **options).state_dict())


def test_state_of_another_likelihood() -> None:
    refuses_state(fitted("binary").state_dict())


def test_state_is_not_tied_to_its_origin() -> None:
    posterior = fitted()
    state = posterior.state_dict()
    other = SFRPosterior(mlp(), "classification").load_state_dict(state)
    kept = contents(other)
    for tensor in state["tensors"].values():
        tensor.data.zero_()
    assert_same_contents(other, kept)


def test_digest_is_a_checksum_of_everything() -> None:
    tensors = {"a": torch.arange(3.0), "b": torch.zeros(0)}
    digest = files._digest(tensors, "{}")
    assert len(digest) == len(hashlib.sha256().hexdigest())
    others = [
        ({"a": torch.arange(3.0), "c": torch.zeros(0)}, "{}"),
        ({"a": torch.arange(3.0)[:, None], "b": torch.zeros(0)}, "{}"),
        ({"a": torch.arange(3.0).view(torch.int32), "b": torch.zeros(0)}, "{}"),
        (tensors, "{} "),
    ]
    assert all(files._digest(*other) != digest for other in others)


def test_complex_tensors(tmp_path: Path) -> None:
    torch.manual_seed(0)
    values = {"a": torch.randn(2, 3, dtype=torch.cdouble), "b": torch.arange(3.0)}
    values["c"] = values["a"].conj()
    files.write(tmp_path / "p", values, {"one": 1})
    tensors, _ = files.read(tmp_path / "p")
    assert tensors.keys() == values.keys()
    for name, value in values.items():
        assert tensors[name].dtype == value.dtype
        assert torch.equal(tensors[name], value), name


@pytest.mark.parametrize(
    "text", ['["b"]', '["d"]', "[1]", "[[]]", "3", "{", "[" * 100_000], ids=range(7)
)
def test_forged_names_of_complex_tensors(text: str, tmp_path: Path) -> None:
    files.write(tmp_path / "p", {"b": torch.arange(3.0)}, {"one": 1})
    with safetensors.safe_open(tmp_path / "p", framework="pt") as file:
        metadata = file.metadata()
        tensors = {"b": file.get_tensor("b")}
    safetensors.torch.save_file(tensors, tmp_path / "p", {**metadata, "complex": text})
    with pytest.raises(FileError, match="restore it from a copy"):
        files.read(tmp_path / "p")


def test_a_network_of_other_activations(tmp_path: Path) -> None:
    posterior = fitted()
    posterior.save(tmp_path / "p")
    other = mlp()
    other[1] = nn.ReLU()
    with pytest.raises(MismatchError, match=r"expected .*outputs stored.*got others.*architecture"):
        SFRPosterior.load(tmp_path / "p", other)


def test_refitting_a_loaded_posterior_keeps_its_inducing_inputs(tmp_path: Path) -> None:
    posterior = fitted()
    posterior.save(tmp_path / "p")
    again = SFRPosterior.load(tmp_path / "p", posterior.network).fit(data(seed=3))
    assert torch.equal(again.inducing_inputs, posterior.inducing_inputs)
