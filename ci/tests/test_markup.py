"""Scripts that do not hold up the text, markup that says what it is."""

from types import SimpleNamespace

from ci.markup import needed, repaired


def script(name, **attributes):
    return SimpleNamespace(filename=name, attributes=attributes)


def test_scripts_are_loaded_once_and_thebe_never():
    once = script("a.js")
    inline = script(None, body="const THEBE_JS_URL = 1")
    assert needed(["x.js", once, inline, once, "sphinx-thebe.js", "x.js"]) == ["x.js", once]


def test_script_files_are_deferred_and_inline_scripts_are_not():
    later, now, inline = script("a.js"), script("_static/documentation_options.js"), script(None, body="let a = 1")
    needed([later, now, inline])
    assert later.attributes == {"defer": "defer"}
    assert now.attributes == {}
    assert inline.attributes == {"body": "let a = 1"}


def test_the_search_page_needs_its_scripts_at_once():
    shared, slow = script("a.js"), script("mathjax/tex-chtml.js", defer="defer")
    needed([shared, slow])
    needed([shared, slow], defer=False)
    assert shared.attributes == {}
    assert slow.attributes == {"defer": "defer"}


def test_a_fold_is_named_by_its_text():
    assert repaired('<summary aria-label="Toggle hidden content"><p>Show</p>') == "<summary><p>Show</p>"


def test_a_bibliography_makes_no_false_claims():
    given = '<div role="list" class="citation-list"><div class="citation" role="doc-biblioentry">'
    assert repaired(given) == '<div class="citation-list"><div class="citation">'


def test_pictures_do_not_hold_up_the_text():
    assert repaired('<p><img alt="a" src="b.svg"/>') == '<p><img loading="lazy" alt="a" src="b.svg"/>'
    for unchanged in ('<img loading="eager">', '<img src="data:image/webp;base64,AAAA" alt="a">'):
        assert repaired(unchanged) == unchanged
