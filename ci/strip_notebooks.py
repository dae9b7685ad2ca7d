"""Remove stored outputs from the chapters: they are committed without.

python -m ci.strip_notebooks
"""

from __future__ import annotations

import sys

import nbformat

from ci.chapters import Tree, write_text

__all__ = ["main", "strip"]


def strip(notebook: nbformat.NotebookNode) -> bool:
    """Clear outputs, execution counts and traces of a run, in place.

    Parameters
    ----------
    notebook : NotebookNode
        Changed in place.

    Returns
    -------
    bool
        Whether anything was there to clear.
    """
    before = nbformat.writes(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
        for trace in ("execution", "papermill", "ExecuteTime"):
            cell.metadata.pop(trace, None)
    for trace in ("widgets", "papermill", "csa"):
        notebook.metadata.pop(trace, None)
    return nbformat.writes(notebook) != before


def main() -> int:
    """Strip every notebook below ``book/``; name those that changed."""
    tree = Tree()
    for path in sorted((tree.root / "book").rglob("*.ipynb")):
        if ".ipynb_checkpoints" in path.parts:
            continue
        notebook = nbformat.read(path, as_version=4)
        if strip(notebook):
            write_text(path, nbformat.writes(notebook) + "\n")
            print(f"stripped {path.relative_to(tree.root)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
