"""A page's description: its first sentences, whole, without mathematics."""

import pytest
from docutils import nodes

from ci.descriptions import LONGEST, describe


def page(*paragraphs):
    document = nodes.document(None, None)
    for parts in paragraphs:
        paragraph = nodes.paragraph()
        for part in [parts] if isinstance(parts, str) else parts:
            paragraph += nodes.Text(part) if isinstance(part, str) else part
        document += paragraph
    return document


def math(source="x_1"):
    return nodes.math(source, source)


@pytest.mark.parametrize(
    ("paragraphs", "wanted"),
    [
        (["Question. What is it? Nobody knows."], "What is it? Nobody knows."),
        ([["It is short. Now ", math(), " comes. And more."]], "It is short."),
        ([[math(), " opens."], "The second\nparagraph."], "The second paragraph."),
        (["One. " + "x" * LONGEST + "."], "One."),
        (["no sentence"], ""),
        ([], ""),
    ],
)
def test_description(paragraphs, wanted):
    assert describe(page(*paragraphs)) == wanted


def test_captions_do_not_describe_a_page():
    document = page()
    figure = nodes.figure()
    figure += nodes.paragraph("", "A caption.")
    document += figure
    document += page("The text.").children
    assert describe(document) == "The text."
