"""Reports hold what the rows say, whatever rows there are, and nothing from outside."""

import re
from html.parser import HTMLParser
from importlib.resources import files
from io import StringIO
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image
from rich.console import Console

from sfr_cl.benchmarks.cl import figures, report, summary
from sfr_cl.benchmarks.cl.strategies import RECIPES
from sfr_cl.benchmarks.report import plots, style
from sfr_cl.errors import DataError
from support.report_rows import CHARACTERS, Row, full_report, make_row, make_rows

PICTURES = {"accuracy.png", "calibration.png", "cost.png", "forgetting.png", "matrices.png"}


class Page(HTMLParser):
    """A page, read: its tags with attributes, its text, and whether every tag is closed."""

    VOID = ("br", "link", "meta")

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open[-1:]:
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def terminal_text(rows: list[Row]) -> str:
    console = Console(width=80, record=True, file=StringIO())
    console.print(report.table(rows))
    return console.export_text()


@pytest.fixture(scope="module")
def full_rows() -> list[Row]:
    return make_rows(list(CHARACTERS))


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return full_report(tmp_path_factory).parent


@pytest.fixture(scope="module")
def page(out: Path) -> Page:
    return Page(out / "report.html")


def test_page_is_one_small_whole_file(out: Path, page: Page) -> None:
    assert page.open == []
    assert 100_000 < (out / "report.html").stat().st_size < 1_500_000
    assert not list(out.glob(".*"))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [a[key] or "" for _, a in page.tags for key in ("href", "src") if key in a]
    assert links
    assert all(link == "data:," or link.removeprefix("#") in ids for link in links)
    assert not re.search(r"https?:|url\((?!#)|@import|<script", page.source)


def test_untuned_strategies_are_marked_with_the_way_to_tune_them(
    full_rows: list[Row], page: Page
) -> None:
    terminal = " ".join(terminal_text(full_rows).split())
    untuned = [s.name for s in summary.strategies(full_rows) if s.untuned]
    assert {"replay", "naive"} < set(untuned)
    assert not {"sfr", "ewc", "der++"} & set(untuned)
    advice = f"sfr-cl tune --strategies {','.join(untuned)}"
    for shown in (terminal.replace(" ", ""), "".join(page.text.split())):
        assert advice.replace(" ", "") in shown
        assert "--settingsresults/tune/mnist-class.json" in shown
    assert "replay ‡ " in terminal
    assert "ewc ‡ " not in terminal
    alone = [row for row in full_rows if row["strategy"] in ("naive", "replay")]
    assert "sfr-cltune--all" in terminal_text(alone).replace(" ", "").replace("\n", "")
    tuned = [row for row in full_rows if row["strategy"] not in untuned]
    assert "‡" not in terminal_text(tuned)
    assert "tune" not in terminal_text(tuned)


def test_page_shows_the_environment_of_its_rows(tmp_path: Path) -> None:
    here = {"python": "3.11.7", "torch": "2.13.0", "cores": 2, "torch_threads": 1}
    rows = make_rows(["sfr", "naive"], 2)
    origins = [
        here | {"commit": "aaa", "dirty": False},
        here | {"commit": "aaa", "dirty": False},
        here | {"commit": "aaa", "dirty": True},
        here | {"commit": "bbb", "dirty": False, "torch": "2.14.0"},
    ]
    mixed = [row | origin for row, origin in zip(rows, origins, strict=True)]
    text = " ".join(Page(report.write(tmp_path, mixed)).text.split())
    assert "torch 2.13.0, 2.14.0" in text.replace("torch2", "torch 2")
    assert "aaa (2 rows)" in text
    assert "aaa, with uncommitted changes (1 row)" in text
    assert "bbb (1 row)" in text
    assert "The rows come from 3 commits." in text
    one = [row | origins[0] for row in rows]
    text = Page(report.write(tmp_path, one)).text
    assert "aaa" in text
    assert "commits" not in text
    text = Page(report.write(tmp_path, rows)).text  # of an earlier version
    assert "not known" in text


def test_page_is_accessible(page: Page) -> None:
    assert page.all("html") == [{"lang": "en"}]
    assert len(page.all("title")) == len(page.all("h1")) == 1
    assert len(page.all("h2")) == 8
    assert all(attributes.get("scope") in ("col", "row") for attributes in page.all("th"))
    assert all(a["role"] == "img" and "aria-label" in a for a in page.all("svg"))
    sections = [attributes["aria-labelledby"] for attributes in page.all("section")]
    assert sections == [attributes["id"] for attributes in page.all("h2")]


def test_page_and_terminal_show_the_means(full_rows: list[Row], page: Page) -> None:
    terminal = terminal_text(full_rows)
    for name in CHARACTERS:
        rows = [row for row in full_rows if row["strategy"] == name]
        accuracy = [100 * row["accuracy"] for row in rows]
        shown = f"{np.mean(accuracy):.1f} ± {np.std(accuracy, ddof=1):.1f}"
        nlpd = f"{np.mean([row['nlpd'] for row in rows]):.2f}"
        assert re.search(rf"{re.escape(name)}[†‡]*\s+{shown}\s", page.text)
        assert re.search(rf"{re.escape(name)}[ †‡]+{shown} .* {nlpd} ", terminal)


def test_terminal_table_fits_80_columns(full_rows: list[Row]) -> None:
    text = terminal_text(full_rows)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "…" not in text


def test_values_on_the_edge_of_a_grid_are_marked(full_rows: list[Row], page: Page) -> None:
    assert {"ewc†", "online-ewc†"} == set(re.findall(r"[\w+-]+†", page.text))
    assert "edge of the grid" in page.text
    assert set(re.findall(r"([\w+-]+) †", terminal_text(full_rows))) == {"ewc", "online-ewc"}
    assert "†" not in terminal_text(make_rows(["sfr", "naive"]))


def test_matrices_and_grids_are_on_the_page(full_rows: list[Row], page: Page) -> None:
    matrices = [row["accuracy_matrix"] for row in full_rows if row["strategy"] == "gem"]
    for value in 100 * np.mean(matrices, 0).ravel():
        assert f">{value:.1f}<" in page.source
    assert "ewc_lambda: 5 tried, best on the edge" in page.text
    assert "alpha: 3 tried" in page.text
    assert page.text.count("hidden 256, 256") == 1  # shared by all


def test_page_names_environment_and_command(page: Page) -> None:
    assert "torch threads" in page.text
    assert "--seeds 0,1,2 --memory 200" in page.text


def test_pictures_are_readable_pictures(out: Path) -> None:
    assert {path.name for path in out.glob("*.png")} == PICTURES
    for path in out.glob("*.png"):
        assert 20_000 < path.stat().st_size < 400_000
        with Image.open(path) as picture:
            assert 1900 <= picture.width <= 2100


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([make_row("sfr", 0)], id="one row"),
        pytest.param([make_row("joint", 1)], id="joint only"),
        pytest.param([*make_rows(["sfr"]), make_row("mine", 2)], id="interrupted"),
        pytest.param(make_rows(["sfr", "naive"], 1, experiences=10), id="ten experiences"),
        pytest.param(make_rows(["sfr", "naive"], 1, experiences=1), id="one experience"),
        pytest.param([make_row("sfr", 0) | {"nlpd": None, "seconds": None}], id="missing measures"),
        pytest.param(
            [make_row("sfr", 0) | {"stored_samples": 60_000}, make_row("gem", 0)], id="log"
        ),
    ],
)
def test_any_rows_make_a_page(rows: list[Row], tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "report.html"
    assert report.write(path.parent, rows) == path
    page = Page(path)
    assert page.open == []
    assert "nan" not in page.text.lower().split()
    for row in rows:
        assert row["strategy"] in page.text
        assert row["strategy"] in terminal_text(rows)


def test_measures_no_row_has_are_left_out(tmp_path: Path) -> None:
    gone = dict.fromkeys(["forgetting", "nlpd", "ece", "seconds", "stored_samples", "state_bytes"])
    row = make_row("sfr", 0) | gone | {"reliability_count": None}
    page = Page(report.write(tmp_path, [row]))
    ids = [attributes["id"] for attributes in page.all("section")]
    assert ids == ["results", "accuracy", "matrices", "settings", "environment"]
    assert {path.name for path in tmp_path.glob("*.png")} == {"accuracy.png", "matrices.png"}


def test_no_rows_make_a_page_that_says_so(tmp_path: Path) -> None:
    page = Page(report.write(tmp_path, []))
    assert page.open == []
    assert "nothing to show" in page.text
    assert report.table([]).row_count == 0


def test_what_comes_from_data_is_text(tmp_path: Path) -> None:
    evil = "<script>alert('a')</script> & $x_1$ [red]"
    row = make_row("sfr", 0) | {"strategy": evil, "data": evil, "scenario": evil}
    row["settings"] = {
        evil: evil,
        "chosen_by": evil,
        "parameter": evil,
        "grid": [{evil: evil, "accuracy": 0.5}],
    }
    page = Page(report.write(tmp_path, [row]))
    assert page.open == []
    assert not page.all("script")
    assert page.text.count(evil) > 10
    assert "[red]$x$" in terminal_text([row | {"strategy": "[red]$x$"}])


def test_refused_rows_leave_no_files(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        report.write(tmp_path / "out", [make_row("sfr", 0), make_row("sfr", 0)])
    assert not (tmp_path / "out").exists()


def test_templates_are_in_the_package() -> None:
    names = {path.name for path in files("sfr_cl.benchmarks.report").iterdir()}
    assert {"page.html", "parts.html", "page.css", "print.css"} <= names
    for slice_ in ("cl", "ood", "stream", "uci", "update"):
        assert files(f"sfr_cl.benchmarks.{slice_}").joinpath("report.html").is_file()


def test_names_of_points_do_not_overlap(full_rows: list[Row]) -> None:
    strategies = summary.strategies(full_rows)
    for measure in figures.COSTS:
        with plots.drawing():
            figure = Figure((figures.WIDE, figures.TALL))
            (ax,) = plots.fixed_axes(figure, 1)
            figures.cost(ax, strategies, measure)
            figure.draw_without_rendering()
            boxes = {text.get_text(): Text.get_window_extent(text) for text in ax.texts}
        assert set(boxes) == set(CHARACTERS)
        hits = [pair for pair in combinations(boxes, 2) if boxes[pair[0]].overlaps(boxes[pair[1]])]
        assert not hits


def test_no_two_strategies_look_alike() -> None:
    looks = style.marks(list(RECIPES)).values()
    assert len({(look.marker, look.filled) for look in looks}) == len(RECIPES)
    mixed = style.marks(["sfr", "mine", "yours"]).values()
    assert len({(look.marker, look.filled) for look in mixed}) == 3
    assert len(style.marks([f"mine {i}" for i in range(40)])) == 40


def contrast(one: str, other: str) -> float:
    """The ratio of WCAG 2."""

    def luminance(colour: str) -> float:
        parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_colours_stand_out(mode: str, page: Page) -> None:
    shades = {colour.name: getattr(colour, mode) for colour in style.COLOURS}
    for look in style.MARKS.values():
        assert contrast(shades[look.colour.name], shades["paper"]) >= 3
    for behind in ("paper", "cold", "hot"):
        assert contrast(shades["ink"], shades[behind]) >= 4.5
    blocks = re.findall(r":root \{([^}]*--soft[^}]*)\}", page.source)
    css = dict(re.findall(r"--(\w+): (#\w+)", blocks[mode == "dark"]))
    for text in ("quiet", "link", "warn"):
        assert contrast(css[text], shades["paper"]) >= 4.5
    assert contrast(shades["ink"], css["bar"]) >= 4.5
    assert contrast(shades["ink"], css["soft"]) >= 4.5
