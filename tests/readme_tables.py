"""The README's tables, from the results that its commands made.

To renew them after a run: ``python tests/readme_tables.py``.
"""

from collections.abc import Callable
from typing import Any

from sfr_cl.benchmarks.cl import report as cl
from sfr_cl.benchmarks.cl import summary
from sfr_cl.benchmarks.figure1 import report as figure1
from sfr_cl.benchmarks.ood import report as ood
from sfr_cl.benchmarks.ood.summary import directions
from sfr_cl.benchmarks.report import numbers
from sfr_cl.benchmarks.report.seeds import Spread
from sfr_cl.benchmarks.stream import report as stream
from sfr_cl.benchmarks.uci import report as uci
from sfr_cl.benchmarks.uci.summary import TITLES, Table
from sfr_cl.benchmarks.update import classes_report
from sfr_cl.benchmarks.update import report as update
from sfr_cl.benchmarks.update.summary import data_sets
from support.paths import ROOT
from support.results import rows_in

COMPARISONS = {
    "digits": "--data digits --memory 20",
    "mnist": "--data mnist",
    "fmnist": "--data fmnist",
    "pmnist": "--data pmnist --strategies sfr,sfr-l2,naive,joint,online-ewc,replay,der++",
    "mnist-40": "--data mnist --memory 40 --strategies sfr,sfr-l2",
}
"""Folders of results, and the options of the `sfr-cl cl` that made them."""
IN_TABLE = ("digits", "mnist", "fmnist", "pmnist")


def rows_of(name: str) -> list[dict[str, Any]]:
    """What a command wrote into ``docs/results``."""
    return rows_in(ROOT / "docs" / "results" / name)


def markdown(lines: list[list[str]]) -> str:
    """A table, its names first."""
    ruled = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "\n".join(f"| {' | '.join(line)} |" for line in ruled)


def comparison() -> str:
    """Every strategy on every benchmark, the most accurate on Split-MNIST first."""
    found = {
        data: {strategy.name: strategy for strategy in summary.strategies(rows_of(data))}
        for data in IN_TABLE
    }
    titles = [cl.BENCHMARKS[data] for data in IN_TABLE]
    costs = [f"{cost} {titles[1]}" for cost in ("bytes kept", "processor seconds")]
    names = ["strategy", *titles, *costs, *(f"NLPD {title}" for title in titles[:3])]
    lines = [names]
    for name in found["mnist"]:
        measures = [of.get(name) and of[name].measures for of in found.values()]
        accuracies = [numbers.percent(m["accuracy"] if m else None) for m in measures]
        cost = found["mnist"][name].measures
        costs = [numbers.size(cost["state_bytes"]), numbers.seconds(cost["seconds"])]
        nlpds = [numbers.plain(m["nlpd"] if m else None, 2) for m in measures[:3]]
        shown = f"**`{name}`**" if "sfr" in name else f"`{name}`"
        lines.append([shown, *accuracies, *costs, *nlpds])
    return markdown(lines)


def commands() -> str:
    """What made the rows of the comparison, and how long their training took."""
    lines = [["command", "rows", "minutes of one core"]]
    for name, options in COMPARISONS.items():
        rows = rows_of(name)
        minutes = sum(row["seconds"] for row in rows) / 60
        command = f"`sfr-cl cl {options} --out docs/results/{name}`"
        lines.append([command, str(len(rows)), f"{minutes:.0f}"])
    return markdown(lines)


def identities() -> str:
    """SFR's curvature against the identity in its place: accuracy of each seed, and the pairs."""
    names = ["benchmark", "memory per task", "`sfr`", "`sfr-l2`", "difference", "standard error"]
    lines = [[*names, "bytes kept", "processor seconds"]]
    for name in ("mnist-40", "mnist", "fmnist", "pmnist"):
        rows = rows_of(name)
        ours, theirs = (
            {row["seed"]: row["accuracy"] for row in rows if row["strategy"] == strategy}
            for strategy in ("sfr", "sfr-l2")
        )
        pairs = Spread.of(100 * (ours[seed] - theirs[seed]) for seed in ours.keys() & theirs)
        assert pairs is not None  # both were run with some seed
        accuracies = [
            ", ".join(f"{100 * accuracy:.2f}" for _, accuracy in sorted(one.items()))
            for one in (ours, theirs)
        ]
        benchmark, memory = cl.BENCHMARKS[rows[0]["data"]], str(rows[0]["memory"])
        found = [f"{pairs.mean:+.2f}", f"{pairs.error:.2f}"]
        both = [next(s for s in summary.strategies(rows) if s.name == n) for n in ("sfr", "sfr-l2")]
        kept = ", ".join(numbers.size(one.measures["state_bytes"]) for one in both)
        seconds = ", ".join(numbers.seconds(one.measures["seconds"]) for one in both)
        lines.append([benchmark, memory, *accuracies, *found, kept, seconds])
    return markdown(lines)


def figure() -> str:
    """The posterior of the first figure, before and after new data, and trained on all."""
    posteriors = {
        "D1 only": "trained on the first data",
        "updated": "updated by conditioning",
        "retrained": "retrained from scratch",
    }
    lines = [["posterior", "test NLPD", "RMSE", "ready after"]]
    for row in rows_of("figure1"):
        if row["method"] in posteriors:
            ready = figure1.readable(row["seconds"])
            name = posteriors[row["method"]]
            lines.append([name, f"{row['nlpd']:.2f}", f"{row['rmse']:.2f}", ready])
    return markdown(lines)


def speed() -> str:
    """Our time in every case, and how much longer the baseline takes."""
    lines = [["case", "baseline", "ours", "ratio"]]
    for row in rows_of("speed"):
        if "ratio" in row and "case table" not in row["case"]:
            ratio = f"{row['ratio']:.2g}" if row["ratio"] < 10 else f"{row['ratio']:.0f}"
            lines.append([row["case"], row["peer"], f"{row['seconds']:.2g} s", ratio])
    return markdown(lines)


def streams() -> str:
    """Every method on every stream."""
    names = ["stream", "method", *(f"{name} {unit}".strip() for _, name, unit in stream.COLUMNS)]
    lines = [names[:-1]]
    for data, methods in stream.gathered(rows_of("stream")).items():
        for method in methods:
            shown = f"**`{method.name}`**" if "sfr" in method.name else f"`{method.name}`"
            lines.append([data, shown, *method.cells()[:-1]])
    return markdown(lines)


def latencies() -> str:
    """One sample learned, one answered, and a million."""
    lines = [["inducing inputs", "samples before", "median", "99th percentile"]]
    for row in rows_of("stream-limits"):
        if row["case"] != "learn_many":
            times = [f"{row[name]:.1f} ms" for name in ("median_ms", "p99_ms")]
            lines.append([str(row["num_inducing"]), f"{row['samples']:,}", *times])
    return markdown(lines)


def paper() -> str:
    """NLPD of every method, tuned, ours and published."""
    found = Table(rows_of("uci"))
    settings = found.settings(tuned=True)
    lines = [
        [TITLES[data], *(uci.short(found, data, setting) for setting in settings)]
        for data in found.data
    ]
    return markdown([["", *(name for name, _ in settings)], *lines])


def updates() -> str:
    """D2 absorbed, against retraining: our own figures, and the gap between the best forms."""
    lines = [[*update.COLUMNS[:-1]]]
    closed = update.COLUMNS.index("closed")
    for one in data_sets(rows_of("update")):
        cells = update.cells(one)[:-1]
        cells[closed] += f" ({one.closed_between_bests:.0%})"
        lines.append(cells)
    return markdown(lines)


def late_labels() -> str:
    """Late labels absorbed, against training on them."""
    lines = [[*classes_report.COLUMNS]]
    lines += map(classes_report.cells, classes_report.summaries(rows_of("update-classes")))
    return markdown(lines)


def ood_images() -> str:
    """How well each method tells them from test images, both ways."""
    lines = [["trained on", *ood.COLUMNS]]
    for one in directions(rows_of("ood")):
        lines += [[one.data, *ood.cells(method)] for method in one.methods.values()]
    return markdown(lines)


TABLES: dict[str, Callable[[], str]] = {
    "figure": figure,
    "comparison": comparison,
    "commands": commands,
    "identities": identities,
    "streams": streams,
    "latencies": latencies,
    "paper": paper,
    "updates": updates,
    "late labels": late_labels,
    "ood": ood_images,
    "speed": speed,
}


def between(text: str, name: str) -> tuple[str, str, str]:
    """A page before, in and after one of its tables."""
    start, end = f"<!-- {name} -->\n\n", f"\n\n<!-- end of {name} -->"
    before, rest = text.split(start)
    inside, after = rest.split(end)
    return before + start, inside, end + after


if __name__ == "__main__":
    path = ROOT / "README.md"
    for name, table in TABLES.items():
        before, _, after = between(path.read_text(), name)
        path.write_text(before + table() + after)
