"""Sphinx extension: a built site without what no page of it uses.

The theme's style sheets hold rules for everything a site might contain: 500 KB that
a reader waits for before the text appears.  After the build, every rule goes whose
classes and ids occur in no page and in no script of this site.  Source maps and the
theme's 1.5 MB script of icons, which no page loads, go too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import tinycss2

from ci.chapters import write_text

__all__ = ["prune", "setup", "words"]

_WORD = re.compile(r"-?[A-Za-z_][\w-]*")
_GIVEN = re.compile(r"""\b(?:class|id)=(?:"([^"]*)"|'([^']*)')""")
#: Bootstrap can do much; the theme uses its tooltips and menus only.
_BOOTSTRAP = re.compile(r"show|hid|fade|collaps|active|disabled|drop|tooltip|bs-tooltip|data-")
_NAME = re.compile(r"[.#](-?[A-Za-z_][\w-]*)")
_UNUSED = ("*.map", "fontawesome.js", "fontawesome.js.LICENSE.txt")
_SHEETS = "*.css"


def words(site: Path) -> set[str]:
    """Names of classes and ids that may occur on the pages of a site.

    Parameters
    ----------
    site : Path
        Folder of the built site.

    Returns
    -------
    set of str
        What the pages use, and every word of a script, which may add it later.
    """
    found: set[str] = set()
    for path in site.rglob("*.html"):
        for names in _GIVEN.findall(path.read_text(encoding="utf8")):
            found.update(word for name in names for word in name.split())
    for path in [*site.rglob("*.js"), *site.rglob("*.html")]:
        if "mathjax" in path.parts or path.name == "searchindex.js":
            continue  # mathematics brings its own styles; the index is all text
        text = path.read_text(encoding="utf8")
        if path.suffix == ".html":
            text = " ".join(re.findall(r"<script\b[^>]*>(.*?)</script>", text, re.DOTALL))
        said = _WORD.findall(text)
        found.update(filter(_BOOTSTRAP.match, said) if path.name == "bootstrap.js" else said)
    return found


def prune(sheet: str, known: Iterable[str]) -> str:
    """Drop the rules of a style sheet that cannot apply.

    Parameters
    ----------
    sheet : str
        CSS.
    known : iterable of str
        Classes and ids that may occur.

    Returns
    -------
    str
        CSS that styles every page with only these names in the same way.
    """
    return _serialize(tinycss2.parse_stylesheet(sheet, skip_comments=True, skip_whitespace=True), set(known))


def _serialize(rules: list, known: set[str]) -> str:
    kept = []
    for rule in rules:
        if rule.type == "qualified-rule":
            selectors = [s for s in _selectors(rule.prelude) if _may_apply(s, known)]
            if selectors:
                kept.append(f"{','.join(selectors)}{{{tinycss2.serialize(rule.content).strip()}}}")
        elif rule.type == "at-rule" and rule.lower_at_keyword in ("media", "supports") and rule.content is not None:
            inner = tinycss2.parse_rule_list(rule.content, skip_comments=True, skip_whitespace=True)
            text = _serialize(inner, known)
            if text:
                kept.append(f"@{rule.at_keyword}{tinycss2.serialize(rule.prelude)}{{{text}}}")
        elif rule.type != "comment":
            kept.append(rule.serialize())
    return "\n".join(kept)


def _selectors(prelude: list) -> list[str]:
    """The selectors of a rule; commas inside brackets do not separate."""
    parts: list[list] = [[]]
    for token in prelude:
        if token.type == "literal" and token.value == ",":
            parts.append([])
        else:
            parts[-1].append(token)
    return [tinycss2.serialize(part).strip() for part in parts]


def _may_apply(selector: str, known: set[str]) -> bool:
    # What stands inside brackets may be a choice, :is(.a, .b), or a denial, :not(.a): it does not count.
    bare = re.sub(r"\[[^\]]*\]", "", selector)
    while re.search(r"\([^()]*\)", bare):
        bare = re.sub(r"\([^()]*\)", "", bare)
    return all(name in known for name in _NAME.findall(bare))


def _finish(app, exception) -> None:
    if exception is not None or app.builder.format != "html":
        return
    site = Path(app.outdir)
    for pattern in _UNUSED:
        for path in (site / "_static").rglob(pattern):
            if path.is_file():
                path.unlink()
    known = words(site)
    for path in (site / "_static").rglob(_SHEETS):
        text = path.read_text(encoding="utf8")
        licences = re.findall(r"/\*!.*?\*/", text, re.DOTALL)
        write_text(path, "\n".join([*licences, prune(text, known)]))


def setup(app) -> dict:
    """Called by Sphinx."""
    app.connect("build-finished", _finish)
    return {"version": "1", "parallel_read_safe": True}
