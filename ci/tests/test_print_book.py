"""The printed book: complete, with page numbers that are right."""

import re
from functools import cache

import pytest
from bs4 import BeautifulSoup
from pypdf import PdfReader

from ci.chapters import Tree
from ci.print_book import print_book

pytestmark = pytest.mark.pages

TREE = Tree()


@pytest.fixture(scope="module")
def printed(browser, site, tmp_path_factory):
    return print_book(TREE, tmp_path_factory.mktemp("print") / "book.pdf", browser)


@pytest.fixture(scope="module")
def reader(printed):
    return PdfReader(printed.path)


@pytest.fixture(scope="module")
def text(reader):
    """Text of a page, from 1, with its ligatures spelled out; each page is read once."""

    @cache
    def of(number: int) -> str:
        said = reader.pages[number - 1].extract_text()
        return said.replace("ﬁ", "fi").replace("ﬂ", "fl").replace("ﬀ", "ff")

    return of


def squeezed(said: str) -> str:
    return re.sub(r"\s", "", said)


def headings(level):
    for page in TREE.pages()[1:]:
        html = (TREE.html / f"{page}.html").read_text(encoding="utf8")
        for heading in BeautifulSoup(html, "html.parser").select(f"article {level}"):
            for link in heading.select(".headerlink"):
                link.decompose()
            yield page.removeprefix("book/").replace("/", "-"), heading


def test_every_page_of_the_book_is_there_where_the_contents_say(printed, text):
    for slug, heading in headings("h1"):
        number, title = printed.sections[slug], heading.get_text()
        assert squeezed(title) in squeezed(text(number)), f"{title} is not on page {number}"


def test_the_contents_show_these_numbers(printed, text):
    contents = "\n".join(map(text, range(1, 8)))
    for slug, heading in headings("h1"):
        assert re.search(rf"{re.escape(heading.get_text())}\s+{printed.sections[slug]}\b", contents)


def test_sections_are_in_order(printed):
    numbers = [printed.sections[slug] for slug, _ in headings("h1")]
    assert numbers == sorted(numbers)
    assert numbers[0] > 1
    assert numbers[-1] <= printed.pages


def test_mathematics_is_set(printed, text):
    first = printed.sections[TREE.chapters()[0].replace("/", "-")]
    said = "".join(map(text, range(first, first + 4)))
    assert "attention weights" in said
    assert not re.findall(r"\\(?:frac|dot|sum|ip|abs|P_|R\b)[^\n]{0,20}", said)


def test_it_has_an_outline_links_and_a_language(reader):
    assert len(reader.outline) > 5
    assert reader.trailer["/Root"].get("/Lang") == "en"
    inside = [a for page in reader.pages for a in page.get("/Annots", []) if "/Dest" in a.get_object()]
    assert len(inside) > 50


def test_nothing_leads_to_this_machine(reader):
    uris = [
        annotation.get_object()["/A"].get("/URI", "")
        for page in reader.pages
        for annotation in page.get("/Annots", [])
        if "/A" in annotation.get_object()
    ]
    assert [uri for uri in uris if str(uri).startswith("file:")] == []


def test_without_a_site_nothing_is_left(tmp_path):
    (tmp_path / "_toc.yml").write_text("root: book/index\n", encoding="utf8")
    old = tmp_path / "old.pdf"
    old.write_bytes(b"old")
    with pytest.raises(FileNotFoundError, match="make book"):
        print_book(Tree(tmp_path), old)
    assert not old.exists()
