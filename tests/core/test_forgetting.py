"""Forgetting a person: nothing of their rows is left, and all else is as if they never came."""

import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sfr_cl import SFRPosterior, SFRWarning, greedy, noise, random
from sfr_cl.data.inputs import matching
from sfr_cl.errors import DataError, MismatchError
from support.posteriors import assert_same_contents, contents
from support.users import (
    DRAWN,
    bytes_left,
    forget_everybody,
    leaving,
    network,
    people,
    stays,
    traces,
)

X, Y = people()
NEW = X[:20] + 0.5


def posterior(inducing: Any, **options: Any) -> SFRPosterior:
    torch.manual_seed(0)
    options.setdefault("prior_precision", 1.0)
    return SFRPosterior(network(), "classification", inducing=inducing, **options)


def assert_close(found: SFRPosterior, expected: SFRPosterior, tolerance: float = 1e-6) -> None:
    for mine, theirs in zip(
        _moments(found.predict_f(NEW)), _moments(expected.predict_f(NEW)), strict=True
    ):
        torch.testing.assert_close(mine, theirs, atol=tolerance, rtol=0)


def _moments(latent: Any) -> tuple[Tensor, Tensor]:
    return latent.mean, latent.variance


@pytest.mark.parametrize("name", DRAWN)
def test_a_hundred_people_leave_no_trace(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = people()
    found = posterior(DRAWN[name]).fit((x[:300], y[:300])).update((x[300:], y[300:]))
    before = len(found.inducing_inputs)
    forget_everybody(found, lambda x, y: found.forget((x, y)), tmp_path / "file", monkeypatch)
    assert before - len(found.inducing_inputs) > 20  # there was something to drop


@pytest.mark.parametrize("name", ["count", "custom"])
def test_so_they_do_from_a_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaded and saved again; a posterior from a file starts again without them too."""
    monkeypatch.setattr("os.fsync", lambda _: None)
    (x, y), path = people(), tmp_path / "file"
    posterior(DRAWN[name]).fit((x, y)).save(path)
    z, gone = SFRPosterior.load(path, network()).inducing_inputs, list(leaving())
    for rows in gone:
        found = SFRPosterior.load(path, network()).forget((x[rows], y[rows]))
        found.save(path)
        assert traces(path, x[rows]) == []
    others = stays(gone)
    found = SFRPosterior.load(path, network())
    assert bytes_left(pickle.dumps(found), x[~others]) == []
    assert not matching(found.inducing_inputs, x[~others].double()).any()
    again = found.fit((x[others], y[others]))
    assert torch.equal(again.inducing_inputs, z[~matching(z, x[~others])])
    assert_close(again, posterior(again.inducing_inputs).fit((x[others], y[others])))


@pytest.mark.parametrize(
    "options",
    [
        {"output_kernel": "per_output"},
        {"linearize_at": "network"},
        {"parameters": "last_layer"},
        {"dtype": torch.float32},
        {"num_outputs": 4},
    ],
    ids=str,
)
def test_whatever_the_options(options: dict[str, Any], tmp_path: Path) -> None:
    (x, y), rows = people(), slice(0, 90)
    size = 12 if "parameters" in options else 40
    found = posterior(random(size), **options).fit((x, y))
    dropped = int(matching(found.inducing_inputs, x[rows]).sum())
    found.forget([(x[0:31], y[0:31]), (x[31:90], y[31:90])])  # in batches
    assert len(found.inducing_inputs) == size - dropped < size
    found.save(tmp_path / "file")
    assert traces(tmp_path / "file", x[rows]) == []
    never = posterior(found.inducing_inputs, **options).fit((x[90:], y[90:]))
    assert_close(found, never, 1e-6 if "dtype" not in options else 1e-4)


class Parts(nn.Module):
    """Takes a mapping of numbers and of categories, or a pair of them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.rest = nn.Embedding(9, 4), nn.Linear(4 + 5, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Any) -> Tensor:
        real, kind = (x["real"], x["kind"]) if isinstance(x, dict) else x
        return self.head(torch.tanh(self.rest(torch.cat([real, self.table(kind)], 1))))


@pytest.mark.parametrize("form", [dict, tuple])
def test_inputs_of_several_parts_are_equal_if_all_parts_are(form: type, tmp_path: Path) -> None:
    (x, y), kind = people(), torch.arange(360) % 9

    def made(rows: Any, kinds: Tensor = kind) -> Any:
        parts = x[rows], kinds[rows]
        return dict(zip(("real", "kind"), parts, strict=True)) if form is dict else parts

    torch.manual_seed(0)
    found = SFRPosterior(Parts(), "classification", inducing=random(60), prior_precision=1.0)
    found.fit((made(slice(None)), y))
    z = found.inducing_inputs
    real = z["real"] if form is dict else z[0]
    mine = int(matching(real, x[:90]).sum())
    assert mine > 0
    alike = made(slice(0, 90), (kind + 1) % 9)
    found.update((alike, y[:90])).forget((alike, y[:90]))  # the same numbers of another kind
    assert len(found.state.basis.factor[0]) == 60
    found.forget((made(slice(0, 90)), y[:90]))
    assert len(found.state.basis.factor[0]) == 60 - mine
    found.save(tmp_path / "file")
    assert traces(tmp_path / "file", x[:90]) == []
    again = SFRPosterior(
        Parts(), "classification", inducing=found.inducing_inputs, prior_precision=1.0
    ).fit((made(slice(90, None)), y[90:]))
    left, right = (each.predict_f(made(slice(0, 9))) for each in (found, again))
    torch.testing.assert_close(left.mean, right.mean, atol=1e-6, rtol=0)


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x.to(self.layers[0].weight.dtype))
        return out


@pytest.mark.parametrize("given", [torch.int64, torch.uint8, torch.float32])
def test_rows_of_whole_numbers(given: torch.dtype) -> None:
    _, y = people()
    x = torch.randint(0, 50, (360, 5), generator=torch.Generator().manual_seed(1))
    found = SFRPosterior(Counts(), "classification", inducing=greedy(40)).fit((x.int(), y))
    mine = int(matching(found.inducing_inputs, x[:90]).sum())
    assert mine > 0
    found.forget((x[:90].to(given), y[:90]))
    assert len(found.inducing_inputs) == 40 - mine


def test_rows_are_equal_at_the_precision_of_the_posterior() -> None:
    x = torch.tensor([[0.1, -0.0], [0.2, 1.0]])
    assert matching(x.double(), x[:1].double()).tolist() == [True, False]
    assert matching(x, torch.tensor([[0.1, 0.0]])).tolist() == [True, False]
    assert matching(x, torch.zeros(3, 4)).tolist() == [False, False]
    near = torch.tensor([[0.1 + 1e-9, 0.0]], dtype=torch.float64)
    y = torch.tensor([0, 1])
    for dtype, left in ((torch.float32, 1), (torch.float64, 2)):
        found = SFRPosterior(nn.Linear(2, 2), "classification", inducing=2, dtype=dtype)
        found.fit((x.double(), y)).forget((near, y[:1]))
        assert len(found.inducing_inputs) == left


def test_a_row_that_two_people_share_stays_in_the_data_of_one() -> None:
    x, y = people()
    x[3:6], y[3:6] = x[:3], y[:3]
    found = posterior(DRAWN["custom"])
    with pytest.warns(SFRWarning, match="duplicates"):
        found.fit((x, y))
    found.forget((x[:3], y[:3]))
    assert found.num_data == 357
    assert not matching(found.inducing_inputs, x[:3].double()).any()
    assert_close(found, posterior(found.inducing_inputs).fit((x[3:], y[3:])))


# Inducing inputs that are no data ------------------------------------------------------------


def test_noise_keeps_nobody_and_loses_nothing(tmp_path: Path) -> None:
    x, y = people()
    found = posterior(noise(40)).fit((x, y))
    found.save(tmp_path / "file")
    assert traces(tmp_path / "file", x) == []
    found.forget((x[:90], y[:90]))
    assert len(found.inducing_inputs) == 40


def test_given_inducing_inputs_stay_with_a_warning() -> None:
    x, y = people()
    found = posterior(x[:40]).fit((x, y))
    with pytest.warns(SFRWarning, match=r"^3 of the inducing inputs that were given .* stay"):
        found.forget((x[:3], y[:3]))
    assert len(found.inducing_inputs) == 40
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found.replace_inducing(x[3:40]).forget((x[50:60], y[50:60]))


def test_a_warning_made_an_error_changes_nothing() -> None:
    x, y = people()
    found = posterior(x[:40]).fit((x, y))
    before = contents(found)
    with pytest.raises(SFRWarning):
        found.forget((x[:3], y[:3]))
    assert_same_contents(found, before)


@pytest.mark.parametrize("given", [True, False])
def test_a_file_and_sites_know_whether_inducing_inputs_were_given(
    given: bool, tmp_path: Path
) -> None:
    x, y = people()
    found = posterior(x[:40] if given else DRAWN["custom"]).fit((x, y))
    found.save(tmp_path / "file")
    loaded = SFRPosterior.load(tmp_path / "file", network())
    carried = posterior(None).from_sites(found.sites)
    for each in (loaded, carried, pickle.loads(pickle.dumps(found)), found.to("cpu")):
        assert each.state.basis.given is given
    grown = posterior(None).from_sites(found.sites).add_inducing(NEW).grow_outputs(4)
    assert grown.state.basis.given is given


# Refusals ------------------------------------------------------------------------------------


def test_the_last_inducing_inputs_are_not_dropped() -> None:
    x, y = people()
    found = posterior(DRAWN["custom"]).fit((x, y))
    before = contents(found)
    with pytest.raises(DataError, match=r"expected to leave some inducing input, got .* all 40"):
        found.forget((x[:40], y[:40]))
    assert_same_contents(found, before)
    found.forget((x[1:40], y[1:40]))
    assert len(found.inducing_inputs) == 1


BAD = {
    "too many": [(X, Y), (X, Y)],
    "not seen": (50 * X[:30], Y[:30]),
    "no label": (X[:3], Y[:3] + 9),
    "in the second batch": [(X[:3], Y[:3]), (X[3:6] * float("nan"), Y[3:6])],
    "of another form": (X[:3, :2], Y[:3]),
    "nothing": [],
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_leaves_all_as_it_was(case: str) -> None:
    found = posterior(random(40)).fit((X, Y))
    before = contents(found)
    with pytest.raises((DataError, MismatchError), match="expected"):
        found.forget(BAD[case])
    assert_same_contents(found, before)


# Merging -------------------------------------------------------------------------------------


def test_workers_that_forgot_differently_are_merged_exactly(tmp_path: Path) -> None:
    x, y = people()
    start = posterior(greedy(40)).init((x, y))
    start.save(tmp_path / "file")
    one, two = (SFRPosterior.load(tmp_path / "file", network()) for _ in range(2))
    one.update((x[:180], y[:180])).forget((x[:30], y[:30])).forget((x[60:90], y[60:90]))
    two.update((x[180:], y[180:])).forget((x[180:240], y[180:240]))
    sizes = [len(each.inducing_inputs) for each in (one, two)]
    before = [contents(each) for each in (one, two)]
    gone = [slice(0, 30), slice(60, 90), slice(180, 240)]
    left = stays(gone)
    for merged in (one + two, two + one, sum([one, two, start])):
        assert not matching(merged.inducing_inputs, x[~left].double()).any()
        assert len(merged.inducing_inputs) == sum(sizes) - 40
        assert_close(merged, posterior(merged.inducing_inputs).fit((x[left], y[left])))
        merged.save(tmp_path / "merged")
        assert traces(tmp_path / "merged", x[~left]) == []
        loaded = SFRPosterior.load(tmp_path / "merged", network())
        assert len((loaded + start).inducing_inputs) == len(merged.inducing_inputs)
    for each, known in zip((one, two), before, strict=True):
        assert_same_contents(each, known)


def test_other_inducing_inputs_are_still_refused() -> None:
    x, y = people()
    one = posterior(greedy(40)).fit((x, y))
    two = posterior(DRAWN["custom"]).fit((x, y)).forget((x[:3], y[:3]))
    fewer = posterior(one.inducing_inputs[1:]).init()
    before = contents(one)
    for other in (two, fewer):
        with pytest.raises(MismatchError, match="same inducing inputs"):
            one + other
    assert_same_contents(one, before)


def test_nothing_in_common_is_refused() -> None:
    x, y = people()
    start = posterior(DRAWN["custom"]).fit((x, y))
    state = start.state_dict()
    one, two = (posterior(None).load_state_dict(state) for _ in range(2))
    one.forget((x[:20], y[:20]))
    two.forget((x[20:40], y[20:40]))
    with pytest.raises(MismatchError, match="same inducing inputs"):
        one + two
