"""The book as a whole: its source tree, its chapters, its build."""

import json
import re
import subprocess
from pathlib import Path

import nbformat
import pytest
from docutils import nodes

from ci.chapters import Tree
from ci.claims_table import BEGIN, END, full_html, readme_table, replace_between_markers, summary_html
from ci.docstrings import escape_bars
from ci.executed import without_widget_state
from ci.proofs import number_proofs
from ci.strip_notebooks import strip

TREE = Tree()
BOOK = TREE.root / "book"
NOTEBOOKS = sorted(p for p in BOOK.rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts)
PAGES = sorted([*NOTEBOOKS, *BOOK.glob("*.md"), *BOOK.glob("[!_]*/**/*.md")])


def relative(path: Path) -> str:
    return path.relative_to(TREE.root).as_posix()


def source_files() -> list[Path]:
    """What git tracks or would track; all files if this is no checkout."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=TREE.root, capture_output=True, check=True, text=True).stdout
        paths = [TREE.root / name for name in listed.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        skipped = {".git", ".venv", ".venv-bench", "_build", "__pycache__", ".ruff_cache"}
        paths = [p for p in TREE.root.rglob("*") if not skipped & set(p.relative_to(TREE.root).parts)]
    return [p for p in paths if p.is_file()]


def own_text() -> list[tuple[str, str]]:
    """Name and text of our own files; third-party files are kept unchanged."""
    texts = []
    for path in source_files():
        if {"mathjax", "axe"} & set(path.parts):
            continue
        try:
            texts.append((relative(path), path.read_text(encoding="utf8")))
        except UnicodeDecodeError:
            continue  # a picture
    return texts


@pytest.mark.parametrize("path", NOTEBOOKS, ids=relative)
def test_notebook_is_valid_and_holds_no_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) >= (4, 5), "cells have ids since format 4.5"
    ids = [cell.get("id") for cell in notebook.cells]
    assert all(ids)
    assert len(set(ids)) == len(ids)
    assert notebook.metadata.kernelspec.name == "python3"
    assert not strip(notebook), f"{relative(path)} holds stored outputs: make strip"


@pytest.mark.parametrize("chapter", TREE.chapters())
def test_chapter_lets_the_reader_explore_and_solve(chapter):
    """After the verdict: an explorer, then exercises with folded solutions that run."""
    heading, found = "", []
    for cell in nbformat.read(TREE.source(chapter), as_version=4).cells:
        headings = re.findall(r"^## (.+)$", cell.source, re.MULTILINE) if cell.cell_type == "markdown" else []
        heading = headings[-1] if headings else heading
        for tag in {"verdict", "explore", "solution"} & set(cell.metadata.get("tags", [])):
            found.append((tag, heading, "hide-cell" in cell.metadata.tags, cell.source))
    kinds = [tag for tag, *_ in found]
    assert kinds[:2] == ["verdict", "explore"]
    assert len(kinds) >= 4
    assert set(kinds[2:]) == {"solution"}
    assert found[1][1] == "Explore"
    assert "widgets.explorer(" in found[1][3]
    for _, where, folded, source in found[2:]:
        assert where == "Exercises"
        assert folded
        assert "assert " in source, "a solution that nothing checks"


def test_toc_and_pages_agree():
    listed = TREE.pages()
    present = [relative(p.with_suffix("")) for p in PAGES]
    assert sorted(listed) == sorted(present)
    assert len(set(listed)) == len(listed)


def test_every_module_is_on_the_api_page():
    page = (BOOK / "evidence/api.md").read_text(encoding="utf8")
    shown = re.findall(r"automodule:: csa_utils\.([\w.]+)", page)
    package = TREE.root / "csa_utils"
    modules = {".".join(p.relative_to(package).with_suffix("").parts) for p in package.rglob("*.py")}
    modules = {name.removesuffix(".__init__") for name in modules} - {"__init__"}
    modules -= {"integrators.problem"}  # its classes are shown with the package
    assert set(shown) == modules
    assert len(set(shown)) == len(shown)


def test_no_machine_paths_in_the_sources():
    # written in pieces, so that this file does not contain what it looks for
    roots = "|".join(("home", "Users", "root", "tmp", "work", "mnt", "private"))
    path = re.compile(rf"(?<![\w./:~$}}\])-])/(?:{roots})/[\w.]")
    found = [f"{name}: {m[0]}" for name, text in own_text() for m in path.finditer(text)]
    assert not found


def test_no_package_registries_in_the_sources():
    hosts = ("py" + "pi.org", "python" + "hosted.org", "registry." + "npm", "--index" + "-url", "--find" + "-links")
    found = [f"{name}: {host}" for name, text in own_text() for host in hosts if host in text]
    assert not found


def test_requirements_are_pinned():
    lines = (TREE.root / "requirements.txt").read_text(encoding="utf8").splitlines()
    wanted = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    assert "-e ." in wanted
    loose = [line for line in wanted if line != "-e ." and not re.match(r"^[\w.\[\]-]+==\S+", line)]
    assert not loose
    pinned = {re.split(r"[=\[]", line)[0].lower() for line in wanted}
    direct = [
        re.split(r"[<>=~! #]", line)[0].lower()
        for line in (TREE.root / "requirements.in").read_text(encoding="utf8").splitlines()
        if line.strip() and not line.startswith(("#", "-"))
    ]
    assert direct
    assert set(direct) <= pinned, "run: make lock"


def test_bars_in_docstrings_are_escaped():
    given = ["norm |x|, code ``|x|``", ">>> |x|", "example::", "", "    |x|", "then |y|"]
    wanted = [r"norm \|x\|, code ``|x|``", ">>> |x|", "example::", "", "    |x|", r"then \|y\|"]
    assert escape_bars(given) == wanted


def test_tables_of_claims_escape_their_text():
    texts = {"statement": "a < b", "source": "X & Y", "kind": "lemma", "expected": "≤ 1", "verdict": "reproduced"}
    more = {"chapter": "m/c", "anchor": "claim-x", "passed": True, "measured_text": "1 … 2", "margin_text": "5 %"}
    for table in (full_html, summary_html):
        text = table([{**texts, **more}], {"m/c": "A <title>"}, lambda chapter: f"../{chapter}.html")
        assert '<a href="../m/c.html#claim-x">a &lt; b</a>' in text
        assert "X &amp; Y" in text
        assert "A &lt;title&gt;" in text
        assert "✓" in text
        assert "reproduced" in text


def test_readme_markers():
    assert replace_between_markers(f"a {BEGIN} old {END} z", "new\n") == f"a {BEGIN}\n\nnew\n\n{END} z"
    for text in ("", BEGIN, f"{END} {BEGIN}", f"{BEGIN} {BEGIN} {END}"):
        with pytest.raises(ValueError, match="once each"):
            replace_between_markers(text, "new\n")


def test_readme_table_stays_a_table():
    claim = {"chapter": "m/c", "source": "A | B", "statement": "x\ny", "expected": "≤ 1", "verdict": "reproduced"}
    row = readme_table([claim]).splitlines()[-1]
    assert row == r"| [m/c](book/m/c.ipynb) | A \| B | x y | ≤ 1 | reproduced |"


@pytest.mark.chapters
@pytest.mark.parametrize("chapter", TREE.chapters())
def test_chapter(chapter, passes):
    passes(chapter)


@pytest.mark.built
def test_claims_file(all_claims):
    assert json.loads(TREE.claims.read_text(encoding="utf8")) == all_claims
    assert {claim["chapter"] for claim in all_claims} == set(TREE.chapters())
    fields = {"chapter", "id", "source", "kind", "statement", "measured", "expected", "margin", "verdict"}
    for claim in all_claims:
        assert fields | {"cell", "anchor"} <= set(claim)


@pytest.mark.built
def test_readme_table_is_up_to_date(all_claims):
    text = (TREE.root / "README.md").read_text(encoding="utf8")
    assert replace_between_markers(text, readme_table(all_claims)) == text, "run: make readme"


@pytest.mark.built
def test_strict_build(site):
    for page in TREE.pages():
        assert (site / f"{page}.html").exists()
    assert (site / "index.html").exists()


def test_pages_carry_no_state_of_widgets():
    plain = json.dumps({"metadata": {"kernelspec": {}}, "cells": []})
    assert without_widget_state(plain) == plain
    state = {"metadata": {"kernelspec": {}, "widgets": {"state": "long"}}, "cells": []}
    assert json.loads(without_widget_state(json.dumps(state))) == json.loads(plain)


def test_proofs_of_a_page_get_anchors_of_their_own():
    page = nodes.document(None, None)
    page.extend(nodes.admonition(ids=["proof"]) for _ in range(3))
    number_proofs(page)
    assert [node["ids"][0] for node in page] == ["proof", "proof-2", "proof-3"]
