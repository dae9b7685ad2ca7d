"""CI has to be red for the right reason: one small notebook for each way to fail.

Every case lives in a tree of its own, which already holds the good result of an
earlier run.  Faults in how a chapter runs need a kernel: these cases are run by two
worker processes in the background, and each test looks at what its case has left.
Faults in what a chapter shows are played in this process, which takes no time.
"""

import json
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

import csa_utils.claims
from ci.chapters import Tree, write_text
from ci.judge import ChapterFailed, check_source, judge, place
from ci.progress import claims_passed
from ci.run_notebooks import Run, fingerprint, run_chapter, workers

CHAPTER = "model/small"
PARAMETERS = "seed = 1  # any whole number"
OPEN = f"from csa_utils.claims import Claims, at_most\nledger = Claims({CHAPTER!r})"
RECORD = "ledger.record('one', 'It holds', seed - 1, at_most(5), source='Section 2', kind='lemma')"
CLOSE = "ledger.verdict()"
LIE = (
    "claim = {**ledger['one'].to_json(), 'id': 'lie', 'measured': 99.0}\n"
    "display({'application/vnd.csa.claim+json': claim, 'text/plain': 'a lie'}, raw=True)"
)
FORGET = "vars(ledger)['_claims'].pop('two')"
SWALLOWED = f"ledger.record('two', 'It does not', 9, at_most(5), source='Section 2', kind='lemma')\n{FORGET}"
ALIEN = "display({'application/x-alien': '?'}, raw=True)"
OTHER = (
    "other = Claims('model/other')\nother.record('two', 'It holds', 0, at_most(5), source='Section 2', kind='lemma')"
)
TWICE = f"ledger = Claims({CHAPTER!r})\n{RECORD}"
GLUE = "display({'application/papermill.record/text/plain': '1'}, raw=True, metadata={'scrapbook': {}})"
MALFORMED = "display({'application/vnd.csa.claim+json': {'id': 'x'}, 'text/plain': ''}, raw=True)"

# name: (cells after the parameters, number of the cell at fault, what the message says)
RUNNING = {
    "hang": (["'no imports: only the sleep is slow'", "'second'", "import time; time.sleep(600)", CLOSE], 5,
             "hangs: not done after 8 seconds"),
    "dead-kernel": ([OPEN, RECORD, "import os; os._exit(0)", CLOSE], 5, "the kernel died"),
    "raised-error": ([OPEN, RECORD, "1 / 0", CLOSE], 5, "raised ZeroDivisionError: division by zero"),
    "failed-claim": ([OPEN, RECORD.replace("seed - 1", "9"), CLOSE], 5, "raised ClaimFailed: 1 of 1 claims"),
    "swallowed-claim": ([OPEN, RECORD, SWALLOWED, CLOSE], 5, "claim two failed: It does not; measured 9.0"),
    "early-exit": ([OPEN, RECORD, "import sys; sys.exit(0)", CLOSE], 5, "sys.exit(0) ended the chapter"),
    "late-exit": ([OPEN, RECORD, f"{CLOSE}\nimport sys; sys.exit(0)"], 5, "sys.exit(0) ended the chapter"),
    "no-verdict": ([OPEN, RECORD, "print('the end')"], 5, "missing verdict"),
    "wrong-solution": ([OPEN, RECORD, CLOSE, ("assert seed == 2", ["solution"])], 6, "raised AssertionError"),
    "nothing-to-see": ([OPEN, RECORD, ALIEN, CLOSE], 5, "no displayable form: application/x-alien"),
}  # fmt: skip
SHOWING = {
    "lying-claim": ([OPEN, RECORD, LIE, CLOSE], 5, "claim lie says it passed and does not"),
    "foreign-claim": ([OPEN, RECORD, OTHER, CLOSE], 5, "claim two says it belongs to chapter model/other"),
    "claim-twice": ([OPEN, RECORD, TWICE, CLOSE], 5, "claim one is recorded twice"),
    "malformed-claim": ([OPEN, RECORD, MALFORMED, CLOSE], 5, "malformed claim"),
    "empty-display": ([OPEN, RECORD, "display({}, raw=True)", CLOSE], 5, "no displayable form: nothing at all"),
    "no-claims": ([OPEN, "print(seed)"], None, "records no claim"),
    "verdict-too-early": ([OPEN, RECORD, CLOSE, "1 + 1"], 6, "missing verdict"),
    "verdict-twice": ([OPEN, RECORD, f"{CLOSE}\n{CLOSE}"], 5, "missing verdict"),
    "verdict-elsewhere": ([OPEN, RECORD, f"ledger.chapter = 'model/other'\n{CLOSE}"], 5, "about chapter model/other"),
    "verdict-of-less": ([OPEN, RECORD, f"{RECORD.replace('one', 'two')}\n{FORGET}\n{CLOSE}"], 5,
                        "the verdict lists the claims ['one'], the notebook shows ['one', 'two']"),
    "claim-afterwards": ([OPEN, RECORD, CLOSE, (RECORD.replace("one", "two"), ["explore"])], 6,
                         "records a claim or a verdict after the verdict"),
    "verdict-afterwards": ([OPEN, RECORD, CLOSE, (CLOSE, ["solution"])], 6, "claim or a verdict after the verdict"),
    "verdict-as-solution": ([OPEN, RECORD, (CLOSE, ["solution"])], 4, "missing verdict"),
    "all-as-solution": ([(OPEN, ["solution"]), (f"{RECORD}\n{CLOSE}", ["solution"])], 2, "missing verdict"),
    "solution-too-early": ([OPEN, RECORD, ("1 + 1", ["solution"]), CLOSE], 5, "stands before the verdict"),
    "claim-explored-early": ([OPEN, (RECORD, ["explore"]), CLOSE], 4, "stands before the verdict"),
}  # fmt: skip


def notebook(*sources, parameters=PARAMETERS):
    cells = [new_markdown_cell("# A small chapter", id="title")]
    if parameters is not None:
        cells.append(new_code_cell(parameters, id="parameters", metadata={"tags": ["parameters"]}))
    for i, source in enumerate(sources):
        source, tags = source if isinstance(source, tuple) else (source, [])
        cells.append(new_code_cell(source, id=f"step-{i}", metadata={"tags": tags}))
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel})


def tree_with(root: Path, content) -> Tree:
    """A book of one chapter that has passed before."""
    tree = Tree(root)
    write_text(root / "_toc.yml", f"format: jb-book\nroot: book/index\nchapters:\n  - file: book/{CHAPTER}\n")
    write_text(root / "book" / "index.md", "# Front\n")
    write_text(tree.source(CHAPTER), nbformat.writes(content))
    write_text(tree.executed(CHAPTER), nbformat.writes(content))
    write_text(tree.claims, "[]")
    write_text(tree.html / "index.html", "the book of an earlier run")
    return tree


def assert_nothing_looks_successful(tree: Tree):
    assert not tree.executed(CHAPTER).exists()
    assert not tree.running(CHAPTER).exists()
    assert not tree.claims.exists()
    assert not (tree.html / "index.html").exists()


@pytest.fixture(scope="module")
def pool():
    with workers(2) as pool:
        yield pool


@pytest.fixture(scope="module")
def runs(pool, tmp_path_factory, request):
    """Start the cases that were asked for, all at once and in order."""
    asked = {item.callspec.params["case"] for item in request.session.items if hasattr(item, "callspec")
             and item.callspec.params.get("case") in RUNNING}  # fmt: skip
    started = {}
    for case in (case for case in RUNNING if case in asked):
        tree = tree_with(tmp_path_factory.mktemp("a case"), notebook(*RUNNING[case][0]))
        started[case] = Run(tree, pool, timeout=8 if case == "hang" else 60)
    return started


def assert_red(failure: ChapterFailed, cell: int | None, reason: str):
    message = str(failure)
    assert message.startswith(f"{CHAPTER}, cell {cell} of " if cell else f"{CHAPTER}: ")
    assert reason in message
    if cell:
        assert (f"(id step-{cell - 3})" if cell > 2 else "(id parameters)") in message


@pytest.mark.parametrize("case", RUNNING)
def test_red_when_it_runs(case, runs):
    run = runs[case]
    with pytest.raises(ChapterFailed) as caught:
        run.wait(CHAPTER)
    assert_red(caught.value, *RUNNING[case][1:])
    if case == "raised-error":
        assert "----> 1 1 / 0" in str(caught.value), "the traceback is there, without colours"
    assert run.gather() is None
    assert_nothing_looks_successful(run.tree)
    assert run.tree.failed(CHAPTER).exists(), "the half-run notebook is kept to be looked at"


def play(tree, chapter, parameters, timeout):
    """What papermill does, for cells that only compute and display."""
    content = nbformat.read(tree.source(chapter), as_version=4)
    space = {}
    for count, cell in enumerate(c for c in content.cells if c.cell_type == "code"):
        outputs = cell.outputs
        space["display"] = lambda data, raw, to=outputs: to.append(new_output("display_data", data))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                csa_utils.claims, "_display", lambda data, to=outputs: to.append(new_output("display_data", data))
            )
            exec(cell.source, space)
        cell.execution_count = count + 1
    write_text(tree.running(chapter), nbformat.writes(content))
    return content


@pytest.mark.parametrize("case", SHOWING)
def test_red_for_what_it_shows(case, tmp_path, monkeypatch):
    tree = tree_with(tmp_path, notebook(*SHOWING[case][0]))
    monkeypatch.setattr("ci.run_notebooks._execute", play)
    with pytest.raises(ChapterFailed) as caught:
        run_chapter(tree, CHAPTER, {})
    assert_red(caught.value, *SHOWING[case][1:])
    assert not tree.executed(CHAPTER).exists()
    assert not tree.running(CHAPTER).exists()
    assert tree.failed(CHAPTER).exists()


@pytest.mark.parametrize("afterwards", [[], [("1 + 1", ["explore"]), ("assert seed == 1", ["solution", "hide-cell"])]])
def test_the_same_without_a_fault_is_green(afterwards, tmp_path, monkeypatch):
    tree = tree_with(tmp_path, notebook(OPEN, RECORD, CLOSE, *afterwards))
    monkeypatch.setattr("ci.run_notebooks._execute", play)
    run_chapter(tree, CHAPTER, {})
    assert tree.executed(CHAPTER).exists()


STORED = new_output("stream", name="stdout", text="old\n")
SOURCES = {
    "stored-outputs": (lambda nb: nb.cells[3].outputs.append(STORED), {}, "cell 4 of 5 (id step-1): holds stored"),
    "execution-count": (lambda nb: nb.cells[3].update(execution_count=7), {}, "(id step-1): holds stored"),
    "no-parameters-cell": (lambda nb: nb.cells.pop(1), {}, "has no cell tagged parameters"),
    "no-seed": (lambda nb: nb.cells[1].update(source="n = 3"), {}, "sets no seed"),
    "unknown-parameter": (lambda nb: None, {"sed": 7}, "unknown parameter sed; its parameters are seed"),
    "hidden-error": (lambda nb: nb.cells[3].metadata.update(tags=["raises-exception"]), {}, "must not carry the tag"),
    "false-parameters": (lambda nb: nb.cells[3].metadata.update(tags=["injected-parameters"]), {}, "not carry the tag"),
    "hidden-claims": (lambda nb: nb.cells[3].update(source="%%capture\n1"), {}, "must not use %%capture"),
    "other-kernel": (lambda nb: nb.metadata.kernelspec.update(name="julia"), {}, "must name the kernel python3"),
}  # fmt: skip


@pytest.mark.parametrize("fault", SOURCES)
def test_red_before_running(fault, pool, tmp_path):
    spoil, parameters, reason = SOURCES[fault]
    content = notebook(OPEN, RECORD, CLOSE)
    spoil(content)
    tree = tree_with(tmp_path, content)
    run = Run(tree, pool, parameters=parameters)
    failure = run.failures()[CHAPTER]
    assert str(failure).startswith(CHAPTER)
    assert reason in str(failure)
    assert run.gather() is None
    assert_nothing_looks_successful(tree)


def test_what_is_no_notebook_is_red(tmp_path):
    write_text(tmp_path / "x.ipynb", "{")
    with pytest.raises(ChapterFailed, match="not a readable notebook"):
        check_source("x", tmp_path / "x.ipynb", {})


def test_green_then_reused_then_run_again(pool, tmp_path):
    hidden = "assert 'csa_utils' not in __import__('os').listdir()"
    tree = tree_with(tmp_path / "with space", notebook(OPEN, RECORD, GLUE, hidden, CLOSE))
    first = Run(tree, pool)
    assert list(first.futures) == [CHAPTER]
    assert not tree.executed(CHAPTER).exists(), "the old output goes before the new one is made"
    assert not tree.claims.exists()
    assert first.failures() == {}
    [claim] = first.gather()
    assert (claim["id"], claim["measured"], claim["cell"], claim["anchor"]) == ("one", 0.0, 4, "claim-one")
    assert json.loads(tree.claims.read_text(encoding="utf8")) == [claim]
    assert not tree.failed(CHAPTER).exists()
    assert claims_passed(tree.executed(CHAPTER)) == 1
    before = tree.executed(CHAPTER).read_bytes()

    second = Run(tree, pool)
    assert (second.reused, list(second.futures)) == ([CHAPTER], [])
    assert second.gather() == [claim]
    assert tree.executed(CHAPTER).read_bytes() == before

    third = Run(tree, pool, parameters={"seed": 4})
    assert third.reused == []
    assert third.failures() == {}
    [other] = third.gather()
    assert (other["measured"], other["cell"]) == (3.0, 4), "the injected cell is not counted"

    failing = Run(tree, pool, parameters={"seed": 40})
    assert list(failing.failures()) == [CHAPTER]
    assert failing.gather() is None
    assert_nothing_looks_successful(tree)


def test_claims_wait_for_every_chapter(pool, tmp_path):
    tree = tree_with(tmp_path, notebook(OPEN, RECORD, CLOSE))
    toc = (tmp_path / "_toc.yml").read_text()
    write_text(tmp_path / "_toc.yml", toc + "  - file: book/model/other\n")
    write_text(tree.source("model/other"), nbformat.writes(notebook(OPEN, RECORD, CLOSE)))
    run = Run(tree, pool, [CHAPTER])
    assert run.failures() == {}
    assert run.gather() is None, "the other chapter has not run"
    assert tree.executed(CHAPTER).exists()
    assert not tree.claims.exists()


def test_fingerprint_changes_with_every_input(tmp_path):
    tree = tree_with(tmp_path, notebook(OPEN))
    package = tmp_path / "csa_utils"
    write_text(package / "sphere.py", "a = 1\n")
    write_text(package / "player.js", "1;\n")
    write_text(tmp_path / "requirements.txt", "numpy==2\n")
    seen = [fingerprint(tree, CHAPTER, {})]
    assert fingerprint(tree, CHAPTER, {}) == seen[0]

    def changed():
        seen.append(fingerprint(tree, CHAPTER, {}))
        return len(set(seen)) == len(seen)

    for path in (package / "sphere.py", package / "player.js", tmp_path / "requirements.txt", tree.source(CHAPTER)):
        write_text(path, path.read_text(encoding="utf8") + " ")
        assert changed(), path.name
    write_text(package / "new.py", "")
    assert changed()
    (package / "new.py").rename(package / "renamed.py")
    assert changed()
    write_text(tmp_path / "ci" / "judge.py", "stricter\n")
    assert changed()
    seen.append(fingerprint(tree, CHAPTER, {"seed": 7}))
    assert len(set(seen)) == len(seen)
    write_text(package / "__pycache__" / "sphere.pyc", "cache")
    assert fingerprint(tree, CHAPTER, {}) == seen[-2], "caches do not count"


def test_fingerprint_depends_on_python(tmp_path, monkeypatch):
    tree = tree_with(tmp_path, notebook(OPEN))
    before = fingerprint(tree, CHAPTER, {})
    monkeypatch.setattr("platform.python_version", lambda: "4.0")
    assert fingerprint(tree, CHAPTER, {}) != before


def test_bad_arguments_are_named(pool, tmp_path):
    tree = tree_with(tmp_path, notebook(OPEN))
    with pytest.raises(ValueError, match="chapter must be one of model/small, got 'model/smal'"):
        Run(tree, pool, ["model/smal"])
    with pytest.raises(ValueError, match="timeout must be positive, got 0"):
        Run(tree, pool, timeout=0)
    for jobs in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match=f"jobs must be a positive integer, got {jobs}"):
            workers(jobs)


def test_a_cell_that_did_not_run_is_red():
    with pytest.raises(ChapterFailed, match=r"cell 2 of 3 \(id parameters\): did not run"):
        judge(CHAPTER, notebook(OPEN))


def test_cells_are_numbered_as_committed():
    content = notebook(OPEN, CLOSE)
    content.cells.insert(2, new_code_cell("seed = 7", id="new", metadata={"tags": ["injected-parameters"]}))
    assert place(content, 1) == "cell 2 of 4 (id parameters)"
    assert place(content, 2) == "the injected parameters"
    assert place(content, 3) == "cell 3 of 4 (id step-0)"
