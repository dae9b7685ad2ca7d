"""What is left out of the site is what no page of it uses, and nothing else."""

import pytest

from ci.lean import prune, words

SHEET = """
/* a comment */
:root { --a: 1px }
.used { color: red }
.unused { color: red }
.used .unused, .used > a, #gone { color: blue }
.used:not(.unused) { color: green }
a:is(.unused, .used) { margin: 0 }
a[title=".unused"] { margin: 1px }
@media (max-width: 600px) { .unused { color: red } .used { margin: 2px } }
@media print { .unused { color: red } }
@font-face { font-family: x; src: url(x.woff2) }
@keyframes unused { from { opacity: 0 } to { opacity: 1 } }
p { margin: 0 }
"""


def squeeze(text):
    return "".join(text.split())


def test_rules_that_cannot_apply_go():
    short = squeeze(prune(SHEET, {"used"}))
    for gone in ("acomment", "#gone", ".used.unused", "print", "{.unused{"):
        assert gone not in short
    assert not short.startswith(".unused")


@pytest.mark.parametrize(
    "kept",
    [
        ":root{--a:1px}",
        ".used{color:red}",
        ".used>a{color:blue}",
        ".used:not(.unused){color:green}",
        "a:is(.unused,.used){margin:0}",
        'a[title=".unused"]{margin:1px}',
        "@media(max-width:600px){.used{margin:2px}}",
        "@font-face{font-family:x;src:url(x.woff2)}",
        "@keyframesunused{from{opacity:0}to{opacity:1}}",
        "p{margin:0}",
    ],
)
def test_everything_else_stays(kept):
    assert kept in squeeze(prune(SHEET, {"used"}))


def test_pruning_twice_changes_nothing():
    once = prune(SHEET, {"used"})
    assert prune(once, {"used"}) == once


def test_words_come_from_pages_and_scripts(tmp_path):
    page = '<p class="one two-three" id="four">text</p><script>x.className = "five"</script>'
    (tmp_path / "a.html").write_text(page, encoding="utf8")
    (tmp_path / "b.js").write_text("list.add('six-seven')", encoding="utf8")
    (tmp_path / "bootstrap.js").write_text("'tooltip-inner carousel'", encoding="utf8")
    (tmp_path / "searchindex.js").write_text("'eight'", encoding="utf8")
    (tmp_path / "c.css").write_text(".nine {}", encoding="utf8")
    found = words(tmp_path)
    assert {"one", "two-three", "four", "five", "six-seven", "tooltip-inner"} <= found
    assert not {"text", "carousel", "eight", "nine"} & found
