"""Sphinx extension: let docstrings write absolute values as ``|x|``.

In reStructuredText a bar opens a substitution; in a docstring about mathematics
it never means one.
"""

from __future__ import annotations

import re

__all__ = ["escape_bars", "setup"]

_LITERAL = re.compile(r"(``.*?``|:\w+:`.*?`)")


def escape_bars(lines: list[str]) -> list[str]:
    """Escape each bar outside literals, roles and examples.

    Parameters
    ----------
    lines : list of str
        A docstring.

    Returns
    -------
    list of str
        The same lines, safe for reStructuredText.
    """
    escaped, block = [], None  # block: indent of the line that opened a literal block
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if block is not None and line.strip() and indent <= block:
            block = None
        if block is not None or line.lstrip().startswith((">>>", "...")):
            escaped.append(line)
            continue
        parts = _LITERAL.split(line)
        escaped.append("".join(part if i % 2 else part.replace("|", "\\|") for i, part in enumerate(parts)))
        if line.rstrip().endswith("::"):
            block = indent
    return escaped


def setup(app) -> dict:
    """Called by Sphinx."""

    def process(app, what, name, obj, options, lines):
        lines[:] = escape_bars(lines)

    app.connect("autodoc-process-docstring", process)
    return {"version": "1", "parallel_read_safe": True}
