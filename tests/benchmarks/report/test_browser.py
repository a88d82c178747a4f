"""The report in a real browser: it loads alone, fits, follows the colour scheme, and prints."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from sfr_cl.benchmarks.report import style
from support.report_rows import CHARACTERS, full_report

CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--no-sandbox",  # containers often run tests as root
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
]
Size = dict[str, int]
PHONE, DESKTOP = {"width": 360, "height": 780}, {"width": 1280, "height": 900}

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="needs a browser: install chromium (Debian: apt-get install chromium)"
)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return full_report(tmp_path_factory)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield running
        running.close()


class Visit:
    """One opening of the report, with all it asked for and complained about."""

    def __init__(self, browser: Browser, report: Path, viewport: Size, scheme: str) -> None:
        context = browser.new_context(viewport=viewport, color_scheme=scheme)
        self.page: Page = context.new_page()
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(report.as_uri(), wait_until="load")

    def colour(self, selector: str, what: str) -> str:
        script = "([selector, what]) => getComputedStyle(document.querySelector(selector))[what]"
        return self.page.evaluate(script, [selector, what])


def rgb(colour: str) -> str:
    return "rgb({}, {}, {})".format(*(int(colour[i : i + 2], 16) for i in (1, 3, 5)))


@pytest.mark.parametrize("viewport", [PHONE, DESKTOP], ids=["phone", "desktop"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_report_loads_alone_and_fits(
    browser: Browser, report: Path, viewport: Size, scheme: str
) -> None:
    visit = Visit(browser, report, viewport, scheme)
    assert visit.complaints == []
    assert [url for url in visit.requests if url != "data:,"] == [report.as_uri()]
    script = "[document.documentElement.scrollWidth, document.body.scrollWidth]"
    for details in (False, True):
        visit.page.evaluate(
            "open => document.querySelectorAll('details').forEach(d => d.open = open)", details
        )
        assert max(visit.page.evaluate(script)) <= viewport["width"]
    paper = getattr(style.PAPER, scheme)
    ink = getattr(style.INK, scheme)
    assert visit.colour("body", "backgroundColor") == rgb(paper)
    assert visit.colour("body", "color") == rgb(ink)
    assert visit.colour("svg text", "fill") == rgb(ink)


def test_report_has_its_headings_and_pictures(browser: Browser, report: Path) -> None:
    page = Visit(browser, report, DESKTOP, "light").page
    assert page.get_by_role("heading", level=1).inner_text() == "Split-MNIST, class-incremental"
    assert page.get_by_role("heading", level=2).count() == 8
    assert page.evaluate("[...document.images].every(i => i.complete && i.naturalWidth)")
    pictures = page.locator("figure svg")
    assert pictures.count() == 6 + len(CHARACTERS)
    for box in (picture.bounding_box() for picture in pictures.all()):
        assert box is not None
        assert box["width"] > 120
        assert box["height"] > 120


def test_pictures_refer_to_parts_that_are_there(browser: Browser, report: Path) -> None:
    page = Visit(browser, report, DESKTOP, "light").page
    script = """[...document.querySelectorAll('svg use')].filter(
        use => !document.querySelector(use.getAttribute('href'))).length"""
    assert page.evaluate(script) == 0
    assert page.locator("svg use").count() > 100


def test_text_of_pictures_stays_inside(browser: Browser, report: Path) -> None:
    page = Visit(browser, report, PHONE, "light").page
    script = """[...document.querySelectorAll('figure svg text')].filter(text => {
        const inner = text.getBoundingClientRect();
        return inner.right > innerWidth || inner.left < 0;
    }).map(text => text.textContent)"""
    assert page.evaluate(script) == []


def test_wide_tables_scroll_in_their_box(browser: Browser, report: Path) -> None:
    page = Visit(browser, report, PHONE, "light").page
    box = "document.querySelector('#results .scroll')"
    assert page.evaluate(f"{box}.scrollWidth > {box}.clientWidth")
    page.evaluate(f"{box}.scrollLeft = 10000")
    assert page.evaluate(f"{box}.scrollLeft") > 0
    assert page.evaluate(f"{box}.tabIndex") == 0


def test_report_prints(browser: Browser, report: Path) -> None:
    visit = Visit(browser, report, DESKTOP, "dark")
    pdf = visit.page.pdf(format="A4")
    assert pdf.startswith(b"%PDF")
    assert len(pdf) > 50_000
    visit.page.emulate_media(media="print")
    assert visit.colour("nav", "display") == "none"
    assert visit.colour("body", "color") == rgb(style.INK.light)  # no dark ink on white paper
    shown = visit.page.locator("details table").first.bounding_box()
    assert shown is not None
    assert shown["height"] > 20
