"""The site as readers see it: each link leads somewhere, no page asks another host, the reference is complete, and a
browser shows pages without an error, finds words, and has a dark form. `make site` runs these after it has made it."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import urlopen

import griffe
import pytest

from website.browser import NAMES, Browser, program
from website.docstrings import INTERNAL, has_fields, is_internal
from website.reference import HEADERS, MODULES

SITE = Path("build/site/html").resolve()
PAGES = sorted(set(SITE.rglob("*.html")) - {SITE / "404.html"})  # which a web server shows at any address
PICTURES = Path("build/site/pictures")
DESK, LAPTOP, TELEPHONE = (1400, 900), (1280, 800), (390, 844)


class Page(HTMLParser):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []  # what a browser loads without a click
        self.texts: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        has = dict(attributes)
        self.names.update(filter(None, (has.get("id"), has.get("name"))))
        if tag == "a" and (href := has.get("href")):
            self.links.append(href)
        elif source := has.get("src") or (has.get("href") if tag == "link" and has.get("rel") != "canonical" else None):
            self.loaded.append(source)

    def handle_data(self, text: str) -> None:
        self.texts.append(text)

    def says(self, text: str) -> bool:
        """Whether the page has all words of a text, one after the other."""
        return words(text) in words("".join(self.texts))


@cache
def words(text: str) -> str:
    return " ".join(["", *re.findall(r"\w+", text), ""])


@cache
def page(path: Path) -> Page:
    return Page(path)


def test_there_is_a_page_for_each_document() -> None:
    for name in ("index", "docs/guides/loader", "docs/spec/protocol", "bench/results/index", "reference/python"):
        assert SITE / f"{name}.html" in PAGES


def test_the_address_of_each_folder_shows_a_page() -> None:
    assert SITE / "reference" in {path.parent for path in PAGES}
    assert not [
        folder
        for path in PAGES
        for folder in path.parents[:-1]
        if SITE in folder.parents and not (folder / "index.html").exists()
    ]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(SITE)))
def test_links_lead_somewhere_and_nothing_comes_from_elsewhere(path: Path) -> None:
    for link in page(path).loaded:
        assert not urlsplit(link).netloc, f"a browser loads {link}"
    for link in page(path).links + page(path).loaded:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path not in ("", ".") else path
        target = target / "index.html" if target.is_dir() else target
        assert target.exists(), f"{link} leads to no file"
        if parts.fragment and target.suffix == ".html" and not parts.fragment.startswith("__"):
            assert unquote(parts.fragment) in page(target).names, f"{link} leads to no place of the page"


def members(what: griffe.Class) -> Iterator[Any]:
    """The methods and properties of a class, and the fields of a dataclass or an enum. Steps of pictures have
    torchvision's fields."""
    fields = has_fields(what) and "Step" not in str(what.bases)
    for member in map(target, what.all_members.values()):
        if member.is_function or "property" in member.labels or (fields and member.is_attribute):
            yield member


def target(found: Any) -> Any:
    return found.final_target if found.is_alias else found


def test_the_reference_has_what_is_public_in_python_and_all_that_docstrings_say() -> None:
    shown = page(SITE / "reference/python.html")
    modules = griffe.load("stocached", search_paths=["python/src"], resolve_aliases=True).modules_collection
    missing = []

    def look(path: str, what: Any, *others: str) -> None:
        if not {path, *others} & shown.names:
            missing.append(path)
        elif what.docstring and not shown.says(what.docstring.value):
            missing.append(f"the text of {path}")

    for module in MODULES:
        for name in modules[module].exports:
            what, path = target(modules[module][name]), f"{module}.{name}"
            look(path, what)
            for member in members(what) if what.is_class else ():
                if member.name == "__init__":
                    look(path, member)
                elif not member.name.startswith("_") and not is_internal(member.path):
                    of_class = re.findall(r"\w+", what.docstring.value)  # tells of its fields
                    bases = [f"{module}.{base.name}.{member.name}" for base in what.mro()]
                    look(f"{path}.{member.name}", member, *bases, *([path] if member.name in of_class else []))
    assert not missing, "\n".join(missing)
    assert "disk, disk_dir, disk_policy" in shown.texts  # arguments are a list
    for owner, names in INTERNAL.items():
        for name in names:
            assert f"{owner.rpartition('.')[2]}.{name}" in modules[f"stocached.{owner}.{name}"].path  # it exists
    helpers = {"torch.CachedDataset.peek", "torch.SourceDataset.in_cache", "image.Decode.in_c", "image.Folder.files"}
    assert not {f"stocached.{helper}" for helper in helpers} & shown.names
    assert not {"_remedy", "_workers"} & set(shown.texts)  # arguments


def test_the_reference_has_all_of_the_headers_of_c() -> None:
    shown = page(SITE / "reference/c.html")
    for header in HEADERS:
        text = re.sub(
            r'^(#(ifn?def|endif|define \w+_H$)|extern "C").*', "", Path(header).read_text(), flags=re.MULTILINE
        )
        assert not [block for block in re.split(r"\n\s*\n", text) if not shown.says(block)]
    assert {"VIEWS", "FORK"} <= {text.partition(":")[0] for text in shown.texts}


def test_the_reference_has_each_command(tmp_path: Path) -> None:
    subprocess.run(("bin/stocached", "man", tmp_path), check=True)
    commands = {manual.stem for manual in tmp_path.iterdir() if not manual.stem.startswith("stocached-completion")}
    shown = page(SITE / "reference/commands.html")
    assert len(commands) > 20
    assert commands - shown.names == set()
    assert set(re.findall(r"/dev/shm/stocached-\w+", "".join(shown.texts))) == {"/dev/shm/stocached-UID"}


def test_the_reference_has_each_package_of_go() -> None:
    shown = page(SITE / "reference/go.html")
    asked = (
        "go",
        "list",
        "-f",
        '{{if ne .Name "main"}}{{.Dir}}{{end}}',
        *(f"./{path.name}" for path in Path().iterdir() if path.name != "bench" and any(path.glob("*.go"))),
    )
    packages = list(map(Path, subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()))
    assert len(packages) > 5
    assert {package.name for package in packages} - shown.names == set()
    files = [file for package in packages for file in package.glob("*.go") if not file.name.endswith("_test.go")]
    names = {
        name for file in files for name in re.findall(r"^(?:func|type) ([A-Z]\w*)", file.read_text(), re.MULTILINE)
    }
    assert not [name for name in sorted(names) if not shown.says(name)]


def test_the_reference_has_the_whole_configuration() -> None:
    shown = page(SITE / "reference/configuration.html")
    assert shown.says(Path("config.example.yaml").read_text())
    assert not shown.says("with their defaults")


def test_the_reference_has_the_metrics_of_a_server(tmp_path: Path) -> None:
    segments = Path(tempfile.mkdtemp(dir="/dev/shm"))
    (tmp_path / "data").write_bytes(bytes(64 * 100))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    cache: dict[str, Any] = {"name": "site", "policy": "cost", "size": "8MiB", "dir": str(segments)}
    cache |= {"source": {"kind": "raw", "path": str(tmp_path / "data"), "shape": [64], "dtype": "uint8"}}
    cache |= {"tiers": [{"kind": "disk", "dir": str(tmp_path), "size": "8MiB"}]}
    config: dict[str, Any] = {
        "sockets": {"dir": str(tmp_path)},
        "metrics": {"listen": f"127.0.0.1:{port}"},
        "caches": [cache],
    }
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    server = subprocess.Popen(("bin/stocached", "serve", "-c", tmp_path / "config.yaml"))
    try:
        told = ""
        while "stocached_samples" not in told:
            assert server.poll() is None, "the server has ended"
            with suppress(OSError):
                told = urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    finally:
        server.terminate()
        server.wait()
        shutil.rmtree(segments)
    names = re.findall(r"^# HELP (stocached_\w+)", told, re.MULTILINE)
    shown = (SITE / "docs/spec/metrics.html").read_text()
    assert len(names) > 20
    assert not [name for name in names if f"<code>{name}</code>" not in shown]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    path = program()
    if path is None:
        pytest.skip(
            f"none of {', '.join(NAMES)} is here, and the site was not opened: tools/setup.sh browser installs one"
        )
    started = Browser(path, tmp_path_factory.mktemp("browser"))
    yield started
    started.close()


def test_the_first_programs_fit_the_page_of_a_laptop(browser: Browser) -> None:
    browser.size(*LAPTOP)
    cut = "[...document.querySelectorAll('pre code')].filter(code => code.scrollWidth > code.clientWidth + 1)"
    for name in ("index", "docs/guides/five-minutes"):
        browser.open((SITE / f"{name}.html").as_uri())
        assert browser.ask("document.querySelectorAll('pre code').length") > 1
        assert not browser.ask(f"{cut}.map(code => code.textContent.slice(0, 80))"), name


# The words in cells of tables that stand on two lines. A browser may break a line behind a hyphen.
BROKEN = """(() => {
    const broken = [];
    for (const cell of document.querySelectorAll('.md-typeset :is(td, th)')) {
        const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
        for (let text; (text = texts.nextNode()); ) {
            for (const word of text.data.matchAll(/\\w+/g)) {
                const range = document.createRange();
                range.setStart(text, word.index);
                range.setEnd(text, word.index + word[0].length);
                if (new Set([...range.getClientRects()].map(box => Math.round(box.top))).size > 1) broken.push(word[0]);
            }
        }
    }
    return broken;
})()"""


def test_each_page_has_no_error_fits_a_telephone_and_breaks_no_word_of_a_cell_on_a_laptop(browser: Browser) -> None:
    assert PAGES
    wrong = {}
    for path in PAGES:
        browser.size(*TELEPHONE)
        told = browser.open(path.as_uri())
        if (width := browser.ask("document.documentElement.scrollWidth")) > TELEPHONE[0]:
            told.append(f"{width} pixels wide")
        browser.size(*LAPTOP)
        told += browser.ask(BROKEN) if path.is_relative_to(SITE / "docs") else []
        if told:
            wrong[str(path.relative_to(SITE))] = told
    assert not wrong


def drawn(node: dict[str, Any], inside: bool = False) -> int:
    """How many drawings the blocks of mermaid in a tree have. Their roots are closed to scripts."""
    inside = inside or "mermaid" in node.get("attributes", ())
    below = node.get("children", []) + node.get("shadowRoots", [])
    return (inside and node["nodeName"] == "svg") + sum(drawn(child, inside) for child in below)


def test_the_diagrams_are_drawn(browser: Browser) -> None:
    wanted = Path("docs/architecture.md").read_text().count("```mermaid")
    assert wanted
    if not (SITE / "assets/mermaid.js").exists():
        pytest.skip("without mermaid, the site has diagrams as text. Install npm, then make site takes mermaid from it")
    [bundle] = (SITE / "assets/javascripts").glob("bundle.*.min.js")  # the theme has styles for one major version
    [major] = re.findall(r"unpkg\.com/mermaid@(\d+)", bundle.read_text())
    assert f"MERMAID_VERSION:-{major}." in Path("tools/setup.sh").read_text()
    browser.size(*DESK)
    browser.prefers("dark")
    browser.open((SITE / "docs/architecture.html").as_uri())
    browser.until(f"document.querySelectorAll('div.mermaid').length === {wanted}")
    tree = browser.do("DOM.getDocument", depth=-1, pierce=True)["root"]
    assert drawn(tree) == wanted
    assert not browser.complaints()
    browser.ask("document.querySelector('div.mermaid').scrollIntoView()")
    browser.picture(PICTURES / "dark-diagram.png")


def test_the_search_finds_words(browser: Browser) -> None:
    """A page to which the start page has no link: only the search can have found it."""
    wanted = "bench/results/2026-11-26-joblib.html"
    assert wanted not in page(SITE / "index.html").links
    browser.open((SITE / "index.html").as_uri() + "?q=joblib")
    browser.until(f"document.querySelector('.md-search-result a[href*=\"{wanted}\"]')")
    assert not browser.complaints()


@pytest.mark.parametrize(
    ("word", "first"),
    [
        ("lru", "docs/guides/policies"),
        ("evict", "docs/guides/policies"),
        ("DataLoader", "docs/guides/"),
        ("set_epoch", "reference/python"),
        ("segment", "docs/spec/segment"),
    ],
)
def test_the_search_shows_guides_before_results_of_measurements(browser: Browser, word: str, first: str) -> None:
    browser.open((SITE / "index.html").as_uri() + f"?q={word}")
    browser.until("document.querySelector('.md-search-result__link')")
    assert f"{SITE}/{first}" in browser.ask("document.querySelector('.md-search-result__link').href")


def test_the_search_finds_an_error_code_of_c(browser: Browser) -> None:
    browser.open((SITE / "index.html").as_uri() + "?q=STOC_EREPLACED")
    browser.until('document.querySelector(\'.md-search-result a[href*="reference/c.html"][href$="#stoc_code"]\')')


CORNER = """(async image => {
    await image.decode();
    image.scrollIntoView({block: 'end'}); // the top may lie behind the menu
    const {x, bottom} = image.getBoundingClientRect();
    return [image.src, {x: x + scrollX + 2, y: bottom + scrollY - 4, width: 2, height: 2, scale: 1}];
})(document.querySelectorAll('.md-typeset img')[%d])"""
RED = """(async () => {
    const picture = await createImageBitmap(await (await fetch('data:image/png;base64,%s')).blob());
    const canvas = new OffscreenCanvas(1, 1).getContext('2d');
    canvas.drawImage(picture, 0, 0);
    return canvas.getImageData(0, 0, 1, 1).data[0];
})()"""


def test_charts_have_the_ground_of_the_dark_site(browser: Browser) -> None:
    browser.size(*DESK)
    browser.prefers("dark")
    seen = {"favicon.png"}
    for path in PAGES:
        if {Path(source).name for source in page(path).loaded if re.search(r"images/.*\.(svg|png)$", source)} <= seen:
            continue
        browser.open(path.as_uri())
        for k in range(browser.ask("document.querySelectorAll('.md-typeset img').length")):
            source, corner = browser.ask(CORNER % k)
            shot = browser.do("Page.captureScreenshot", clip=corner)["data"]
            assert browser.ask(RED % shot) < 64, source
            seen.add(Path(source).name)
    assert {"demo.svg", "benchmark-memory.svg", "workers.png", "top.svg"} <= seen


def test_the_site_has_a_light_and_a_dark_form(browser: Browser) -> None:
    """As the system of the reader prefers, until the reader chooses. People look at the pictures."""
    ground = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
    for scheme, name, bright in (("light", "default", True), ("dark", "slate", False)):
        browser.prefers(scheme)
        for kind, size in (("desk", DESK), ("telephone", TELEPHONE)):
            browser.size(*size)
            browser.open((SITE / "index.html").as_uri())
            assert browser.ask("document.body.dataset.mdColorScheme") == name
            assert all((part > 128) == bright for part in browser.ask(ground))
            browser.picture(PICTURES / f"{scheme}-{kind}.png")
    for choice, name in (("light", "default"), ("dark", "slate")):
        browser.ask(f"document.querySelector('label[title=\"Choose the {choice} form\"]').click()")
        browser.until(f"document.body.dataset.mdColorScheme === '{name}'")
    browser.prefers("light")
    browser.open((SITE / "docs/architecture.html").as_uri())
    assert browser.ask("document.body.dataset.mdColorScheme") == "slate"
