"""What the README's prose says in numbers, each from the results it speaks about.

A claim is a function that gives the words as the README must have them: a number is computed,
or checked before they are given. What is no measurement is listed with the reason.
"""

import re
from collections.abc import Callable, Iterable

from readme_tables import between, rows_of
from sfr_cl.benchmarks.cl.demo import MEMORY, STRATEGIES
from sfr_cl.benchmarks.ood.summary import directions
from sfr_cl.benchmarks.uci import checks
from sfr_cl.benchmarks.uci.summary import Table

NUMBERS = {2: "two", 3: "three", 5: "five", 8: "eight", 10: "ten"}
MINUTE = 60.0


def in_words(number: int) -> str:
    return NUMBERS[number]


def only(values: Iterable[object]) -> object:
    """The one value that all have."""
    (value,) = set(values)
    return value


def seeds(name: str) -> str:
    return in_words(len({row["seed"] for row in rows_of(name)}))


def figure_made_in() -> str:
    assert 1 < sum(row["seconds"] for row in rows_of("figure1")) < 20
    return "are made by `sfr-cl figure1 --out docs/results/figure1` in a few seconds"


def absorbed_in() -> str:
    (row,) = (row for row in rows_of("figure1") if row["method"] == "updated")
    assert 1e-3 < row["seconds"] < 0.1
    return "added to sums in milliseconds"


def demo_takes() -> str:
    chosen = [row for row in rows_of("digits") if row["strategy"] in STRATEGIES.split(",")]
    assert only(row["memory"] for row in chosen) == MEMORY
    assert sum(row["seconds"] for row in chosen) < MINUTE
    return "make demo # Split-Digits: our strategies against baselines, a report, in under a minute"


def tasks() -> str:
    for name, count in (("digits", 5), ("mnist", 5), ("fmnist", 5), ("pmnist", 10)):
        assert only(len(row["accuracy_matrix"][-1]) for row in rows_of(name)) == count
    return "in five tasks of two classes; Permuted-MNIST, ten tasks of ten classes"


def longest_row() -> str:
    longest = max(row["seconds"] for row in rows_of("pmnist")) / MINUTE
    return f"a row of it takes up to {longest:.0f} minutes"


def seeds_compared() -> str:
    names = ("digits", "mnist", "fmnist", "pmnist")
    return f"mean and standard deviation over {only(map(seeds, names))} seeds"


def stored() -> str:
    others = only(row["memory"] for name in ("mnist", "fmnist", "pmnist") for row in rows_of(name))
    digits = only(row["memory"] for row in rows_of("digits"))
    return f"store {others} samples per task if any (Split-Digits: {digits};"


def noise_images() -> str:
    rows = [row for name in ("digits", "mnist", "fmnist") for row in rows_of(name)]
    found = [row["settings"] for row in rows if row["strategy"].startswith("sfr-condition")]
    assert only(settings["inducing"] for settings in found) == "smooth_noise"
    return f"{only(settings['num_inducing'] for settings in found):,} noise images"


def grids() -> str:
    rows = [row for name in ("digits", "mnist", "fmnist") for row in rows_of(name)]
    assert only(len(row["settings"]["grid"]) for row in rows) == 6
    return "the best of six by `sfr-cl tune`"


def one_seed_of_streams() -> str:
    assert only(row["seed"] for row in rows_of("stream")) == 0
    return "predicted, then learned, with one seed"


def seeds_of_the_paper() -> str:
    return f"test NLPD, mean over {seeds('uci')} seeds"


def margin() -> str:
    return f"higher by more than {checks.MARGIN:g} plus one standard error"


def untuned_lead() -> str:
    table = Table(rows_of("uci"))
    least = {
        data: min(
            -difference.mean
            for other in ("bnn", "glm")
            if (difference := table.difference(data, ("sfr", False), (other, False)))
        )
        for data in table.data
    }
    assert min(least.values()) > 0
    assert {data for data, lead in least.items() if lead < 0.01} == {"australian", "waveform"}
    return (
        "Untuned, `sfr` has a lower NLPD than `bnn` and `glm` on all eight, on Australian and "
        "Waveform by less than 0.01"
    )


def seeds_of_updates() -> str:
    return f"Test NLPD on both halves, mean over {seeds('update')} seeds"


def seeds_of_late_labels() -> str:
    return f"test rows of both, mean over {seeds('update-classes')} seeds"


def seeds_of_images() -> str:
    return f"AUROC, mean over {seeds('ood')} seeds"


def time_of_images() -> str:
    rows = rows_of("ood")
    baseline = sum(row["seconds"] for row in rows if row["method"] == "kron-glm")
    assert baseline > 0.9 * sum(row["seconds"] for row in rows)
    return "nearly all of its time is for `kron-glm`"


def inducing_images() -> str:
    return f"{only(row['settings']['num_inducing'] for row in rows_of('ood'))} inducing inputs"


def novelty() -> str:
    gaps = []
    for one in directions(rows_of("ood")):
        ours, theirs = (one.methods[name].at("auroc_novelty") for name in ("sfr", "kron-glm"))
        assert ours is not None
        assert theirs is not None
        gaps.append(abs(ours - theirs))
    bound = 0.003
    assert bound - 0.001 < max(gaps) <= bound
    return f"they are within {bound} of each other"


def baselines_in_parts() -> str:
    assert max(row.get("peer_seconds", 0.0) for row in rows_of("speed")) > 2 * MINUTE
    return "Baselines that take minutes are given a part of the data"


CLAIMS: tuple[Callable[[], str], ...] = (
    figure_made_in,
    absorbed_in,
    demo_takes,
    tasks,
    longest_row,
    seeds_compared,
    stored,
    noise_images,
    grids,
    one_seed_of_streams,
    seeds_of_the_paper,
    margin,
    untuned_lead,
    seeds_of_updates,
    seeds_of_late_labels,
    seeds_of_images,
    time_of_images,
    inducing_images,
    novelty,
    baselines_in_parts,
)

NO_MEASUREMENT = {
    "Python 3.11": "what pyproject.toml asks for",
    "[2023]": "a year",
    "[2024]": "a year",
    "2023 paper": "a year",
    "classes 7, 8 and 9": "what the example does",
    "D1": "a name",
    "D2": "a name",
    "at f = 0": "a place",
    "| 512, by": "a default",
    "1 for custom likelihoods": "a default",
    "about three digits": "what float32 holds of sums",
    "1000 outputs' samples": "a case by its size",
    "against seconds": "an axis",
    "processor seconds of the update": "a column",
}
"""Words with numbers or times that nothing was measured for, with the reason."""

NUMBER = re.compile(r"[^ ]*\d[^ ]*|\b(?:milliseconds|seconds|minutes?|hours?)\b")


def prose(page: str, tables: Iterable[str]) -> str:
    """A page without its tables of results and its Python, on one line; links are their text."""
    for name in tables:
        before, _, after = between(page, name)
        page = before + after
    page = re.sub(r"```python.*?```", "", page, flags=re.DOTALL)
    page = re.sub(r"\]\([^)]*\)", "]", page)
    return " ".join(page.split())


def unexplained(text: str) -> list[str]:
    """Numbers and times in prose that are in no claim, and not listed."""
    for words in (*(claim() for claim in CLAIMS), *NO_MEASUREMENT):
        text = text.replace(words, " ")
    return NUMBER.findall(re.sub(r"`[^`]*`", "", text))
