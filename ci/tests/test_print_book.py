"""The printed book: complete, with page numbers that are right."""

import re

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


def words_of(page) -> str:
    """Text of a page without spaces and ligatures."""
    return re.sub(r"\s", "", page.extract_text()).replace("ﬁ", "fi").replace("ﬂ", "fl").replace("ﬀ", "ff")


def headings(level):
    for page in TREE.pages()[1:]:
        html = (TREE.html / f"{page}.html").read_text(encoding="utf8")
        for heading in BeautifulSoup(html, "html.parser").select(f"article {level}"):
            for link in heading.select(".headerlink"):
                link.decompose()
            yield page.removeprefix("book/").replace("/", "-"), heading


def test_every_page_of_the_book_is_there_where_the_contents_say(printed, reader):
    for slug, heading in headings("h1"):
        number = printed.sections[slug]
        title = re.sub(r"\s", "", heading.get_text())
        assert title in words_of(reader.pages[number - 1]), f"{title} is not on page {number}"


def test_the_contents_show_these_numbers(printed, reader):
    contents = "\n".join(page.extract_text() for page in reader.pages[:8])
    contents = contents.replace("ﬁ", "fi").replace("ﬂ", "fl").replace("ﬀ", "ff")
    for slug, heading in headings("h1"):
        assert re.search(rf"{re.escape(heading.get_text())}\s+{printed.sections[slug]}\b", contents)


def test_sections_are_in_order(printed):
    numbers = [printed.sections[slug] for slug, _ in headings("h1")]
    assert numbers == sorted(numbers)
    assert numbers[0] > 1
    assert numbers[-1] <= printed.pages


def test_mathematics_is_set(reader):
    text = "".join(page.extract_text() for page in reader.pages)
    assert not re.findall(r"\\(?:frac|dot|sum|ip|abs|P_|R\b)[^\n]{0,20}", text)


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
