"""Claims: what a chapter predicted, what it measured, and the verdict.

A chapter opens a ledger, records each claim as it is measured, and closes with
``ledger.verdict()``, which raises if any claim failed:

>>> ledger = Claims("model/first_token", source="Lemma 3.1", kind="lemma", show=False)
>>> ledger.record("unit-norm", "The first token stays on the sphere", 2.2e-16, at_most(1e-12))
>>> ledger["unit-norm"].verdict
'reproduced'

Every record is also displayed as a small card in the notebook.  The card carries
a machine-readable copy (MIME type ``application/vnd.csa.claim+json``), from which
the report page is built, and which is judged a second time outside the notebook.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

__all__ = [
    "CLAIM_MIME",
    "KINDS",
    "VERDICTS",
    "VERDICT_MIME",
    "Claim",
    "ClaimFailed",
    "Claims",
    "Expectation",
    "at_least",
    "at_most",
    "equal_to",
    "near",
    "rejudge",
]

CLAIM_MIME = "application/vnd.csa.claim+json"
VERDICT_MIME = "application/vnd.csa.verdict+json"

#: What a claim can be about.
KINDS = ("definition", "theorem", "lemma", "conjecture", "figure", "erratum", "extension", "method")

#: The words a passed claim can be given.  A failed claim always reads "failed".
VERDICTS = ("reproduced", "consistent", "refuted", "corrected", "not reachable")

_RULES = ("at_most", "at_least", "near", "equal_to")


class ClaimFailed(AssertionError):
    """Raised by :meth:`Claims.verdict` when the chapter does not hold."""


@dataclass(frozen=True)
class Expectation:
    """The rule a measured value has to satisfy.

    Made by :func:`at_most`, :func:`at_least`, :func:`near` or :func:`equal_to`.
    """

    rule: str
    target: float
    within: float = 0.0

    def slack(self, value: float) -> float:
        """Signed room that `value` leaves: negative means the rule is broken."""
        if not math.isfinite(value):
            return -math.inf
        if self.rule == "at_most":
            return self.target - value
        if self.rule == "at_least":
            return value - self.target
        return self.within - abs(value - self.target)

    def margin(self, value: float) -> float:
        """Room left as a share of the threshold (of `within` for `near`).

        1 is as good as it gets for `at_most` and `near`; 0 is the threshold
        itself; a negative margin is a failure.  For a threshold of zero it is the
        plain slack.  For `equal_to` it is 1 for the exact value, else the negative
        distance from it.
        """
        if self.rule == "equal_to":
            return self.slack(value) or 1.0
        scale = self.within if self.rule == "near" else abs(self.target)
        return self.slack(value) / (scale or 1.0)

    def __str__(self) -> str:
        if self.rule == "at_most":
            return f"≤ {_number(self.target)}"
        if self.rule == "at_least":
            return f"≥ {_number(self.target)}"
        if self.rule == "equal_to":
            return f"= {_number(self.target)}"
        return f"{_number(self.target)} ± {_number(self.within)}"


def at_most(bound: float) -> Expectation:
    """Expect every measured value to be at most `bound` (finite float)."""
    return Expectation("at_most", _finite("bound", bound))


def at_least(bound: float) -> Expectation:
    """Expect every measured value to be at least `bound` (finite float)."""
    return Expectation("at_least", _finite("bound", bound))


def near(target: float, within: float) -> Expectation:
    """Expect every measured value to lie within `within` > 0 of `target`."""
    within = _finite("within", within)
    if within <= 0:
        raise ValueError(f"within must be positive, got {within!r}; use equal_to for an exact value")
    return Expectation("near", _finite("target", target), within)


def equal_to(target: float) -> Expectation:
    """Expect every measured value to equal `target` exactly: for counts."""
    return Expectation("equal_to", _finite("target", target))


@dataclass(frozen=True)
class Claim:
    """One judged claim.  `measured` is a list of floats, `margin` its worst margin."""

    chapter: str
    id: str
    source: str
    kind: str
    statement: str
    measured: tuple[float, ...]
    scalar: bool
    expectation: Expectation
    margin: float
    passed: bool
    verdict: str
    runs: int | None

    def to_json(self) -> dict:
        """Plain types only; non-finite numbers become strings such as "nan"."""
        measured = [v if math.isfinite(v) else str(v) for v in self.measured]
        return {
            "chapter": self.chapter,
            "id": self.id,
            "source": self.source,
            "kind": self.kind,
            "statement": self.statement,
            "measured": measured[0] if self.scalar else measured,
            "expected": str(self.expectation),
            "rule": {
                "name": self.expectation.rule,
                "target": self.expectation.target,
                "within": self.expectation.within,
            },
            "margin": self.margin if math.isfinite(self.margin) else str(self.margin),
            "measured_text": self.measured_text(),
            "margin_text": _percent(self.margin),
            "runs": self.runs,
            "passed": self.passed,
            "verdict": self.verdict,
        }

    def measured_text(self) -> str:
        """The measured value for people: one number, or the range of several."""
        return _measured(self.measured, not self.scalar)

    def _repr_html_(self) -> str:
        mark = "✓" if self.passed else "✗"
        state = "passed" if self.passed else "failed"
        e = html.escape
        return (
            f'<div class="csa-claim csa-claim-{state}" id="claim-{e(self.id)}">'
            f'<p><span class="csa-claim-mark" aria-hidden="true">{mark}</span> '
            f'<strong class="csa-claim-verdict">{e(self.verdict)}</strong> '
            f'<span class="csa-claim-source">{e(self.source)} · {e(self.kind)}</span></p>'
            f'<p class="csa-claim-statement">{e(self.statement)}.</p>'
            f'<p class="csa-claim-numbers">measured <b>{e(self.measured_text())}</b>, '
            f"expected <b>{e(str(self.expectation))}</b>, margin {_percent(self.margin)}</p></div>"
        )

    def __str__(self) -> str:
        return (
            f"[{self.verdict}] {self.id} ({self.source}): {self.statement}. "
            f"Measured {self.measured_text()}, expected {self.expectation}, margin {_percent(self.margin)}"
        )


class Claims:
    """The ledger of one chapter.

    Parameters
    ----------
    chapter : str
        Path of the chapter below ``book/`` without its ending, for example
        ``"model/first_token"``.
    source, kind : str, optional
        What :meth:`record` uses where it is given neither.
    show : bool
        Display each claim as a card in the notebook (the default).

    Raises
    ------
    ValueError
        If `chapter` is not such a path.
    """

    def __init__(self, chapter: str, *, source: str = "", kind: str = "", show: bool = True) -> None:
        if not isinstance(chapter, str) or not re.fullmatch(r"[a-z0-9_]+(/[a-z0-9_]+)*", chapter):
            raise ValueError(f"chapter must be a path such as 'model/first_token', got {chapter!r}")
        self.chapter = chapter
        self.source, self.kind = source, kind
        self.show = show
        self._claims: dict[str, Claim] = {}

    def __iter__(self):
        return iter(self._claims.values())

    def __getitem__(self, id: str) -> Claim:
        return self._claims[id]

    def __len__(self) -> int:
        return len(self._claims)

    def record(
        self,
        id: str,
        statement: str,
        measured,
        expected: Expectation,
        *,
        source: str | None = None,
        kind: str | None = None,
        finding: str = "reproduced",
        runs: int | None = None,
    ) -> None:
        """Judge `measured` against `expected`, show the result and keep it.

        It is found under its id: ``ledger["unit-norm"]`` is a :class:`Claim`.

        Parameters
        ----------
        id : str
            Short name, unique in the chapter: lower case letters, digits, dashes.
        statement : str
            One sentence without its full stop and without measured numbers.
        measured : float or array_like
            One number, or several; all of them have to meet the expectation.
        expected : Expectation
            From `at_most`, `at_least`, `near` or `equal_to`.
        source : str, optional
            Where the statement stands, for example ``"Lemma 3.1"``.
        kind : str, optional
            One of `KINDS`.
        finding : str
            The verdict if the expectation is met: one of `VERDICTS`.  A
            "refuted" claim passes when the measurement contradicts its source.
            "consistent" is completed to "consistent with N runs".
        runs : int, optional
            How many independent runs stand behind it; needed for "consistent".

        Raises
        ------
        ValueError
            If an argument breaks its rule or `id` was used before.  A measured
            value that is NaN or infinite is no error here: the claim fails.
        """
        source = self.source if source is None else source
        kind = self.kind if kind is None else kind
        self._check(id, statement, expected, source, kind, finding, runs)
        try:
            values = np.asarray(measured)
        except ValueError as error:
            raise ValueError(f"measured must be one or more real numbers, got {measured!r}") from error
        if values.size == 0 or values.dtype.kind not in "biuf":
            raise ValueError(f"measured must be one or more real numbers, got {measured!r}")
        scalar = values.ndim == 0
        values = tuple(float(v) for v in values.ravel())
        margin = min(expected.margin(v) for v in values)
        passed = all(expected.slack(v) >= 0 for v in values)
        word = f"consistent with {runs} runs" if finding == "consistent" else finding
        claim = Claim(
            chapter=self.chapter,
            id=id,
            source=source,
            kind=kind,
            statement=statement,
            measured=values,
            scalar=scalar,
            expectation=expected,
            margin=margin,
            passed=passed,
            verdict=word if passed else "failed",
            runs=runs,
        )
        self._claims[id] = claim
        if self.show:
            _display({CLAIM_MIME: claim.to_json(), "text/html": claim._repr_html_(), "text/plain": str(claim)})

    def verdict(self) -> None:
        """List all claims of the chapter; the last cell of every chapter.

        Raises
        ------
        ClaimFailed
            If any claim failed, or none was recorded.
        """
        if not self._claims:
            raise ClaimFailed(f"{self.chapter} records no claim")
        failed = [claim for claim in self if not claim.passed]
        if failed:
            lines = "\n".join(str(claim) for claim in failed)
            raise ClaimFailed(f"{len(failed)} of {len(self)} claims of {self.chapter} failed:\n{lines}")
        if self.show:
            summary = {"chapter": self.chapter, "claims": list(self._claims)}
            plain = "\n".join(str(claim) for claim in self)
            _display({VERDICT_MIME: summary, "text/html": self._table(), "text/plain": plain})

    def _table(self) -> str:
        names = ("Claim", "Source", "Measured", "Expected", "Margin", "Verdict")
        rows = ""
        for c in self:
            cells = (
                f'<a href="#claim-{c.id}">{html.escape(c.statement)}</a>',
                html.escape(c.source),
                html.escape(c.measured_text()),
                html.escape(str(c.expectation)),
                _percent(c.margin),
                f"✓ {html.escape(c.verdict)}",
            )
            # each cell carries its name, for screens too narrow for columns
            named = zip(names, cells, strict=True)
            rows += "<tr>" + "".join(f'<td data-name="{name}">{cell}</td>' for name, cell in named) + "</tr>"
        head = "".join(f'<th scope="col">{name}</th>' for name in names)
        return (
            '<div class="csa-verdict"><table><caption>All '
            f"{len(self)} claims of this chapter passed.</caption>"
            f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
        )

    def _check(self, id, statement, expected, source, kind, finding, runs) -> None:
        if not isinstance(id, str) or not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", id):
            raise ValueError(f"id must be lower case letters, digits and dashes, got {id!r}")
        if id in self._claims:
            raise ValueError(f"id must be new in {self.chapter}, got {id!r} again")
        for name, text in (("statement", statement), ("source", source)):
            if not isinstance(text, str) or not text.strip() or text.rstrip().endswith("."):
                raise ValueError(f"{name} must be text without a final full stop, got {text!r}")
        if not isinstance(expected, Expectation):
            raise ValueError(f"expected must be an Expectation such as at_most(1e-12), got {expected!r}")
        if kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
        if finding not in VERDICTS:
            raise ValueError(f"finding must be one of {', '.join(VERDICTS)}, got {finding!r}")
        if runs is not None and (isinstance(runs, bool) or not isinstance(runs, int) or runs < 1):
            raise ValueError(f"runs must be a positive integer, got {runs!r}")
        if finding == "consistent" and runs is None:
            raise ValueError("runs must be given for the finding 'consistent', got None")


def rejudge(record: Mapping) -> bool:
    """Judge a recorded claim again from its JSON form alone.

    Parameters
    ----------
    record : Mapping
        What :meth:`Claim.to_json` returned, for example read back from a notebook.

    Returns
    -------
    bool
        True only if every measured number is finite and meets the rule, and the
        record itself says that it passed.

    Raises
    ------
    ValueError
        If the record lacks a field or names an unknown rule.
    """
    if not isinstance(record, Mapping):
        raise ValueError(f"record must be a claim's JSON form, got {record!r}")
    try:
        rule, measured = record["rule"], record["measured"]
        expectation = Expectation(rule["name"], float(rule["target"]), float(rule["within"]))
        said = record["passed"] is True and record["verdict"] != "failed"
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"record must be a claim's JSON form, got {record!r}") from error
    if expectation.rule not in _RULES:
        raise ValueError(f"rule must be one of {', '.join(_RULES)}, got {expectation.rule!r}")
    values = measured if isinstance(measured, list) else [measured]
    numbers = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
    judged = bool(values) and len(numbers) == len(values) and all(expectation.slack(float(v)) >= 0 for v in numbers)
    return judged and said and _texts_are_true(record, expectation, numbers, isinstance(measured, list))


def _texts_are_true(record: Mapping, expectation: Expectation, numbers: list, several: bool) -> bool:
    """Whether the words a reader sees belong to the numbers that were judged."""
    margin = min(expectation.margin(float(v)) for v in numbers)
    return (
        record.get("expected") == str(expectation)
        and record.get("measured_text") == _measured(numbers, several)
        and record.get("margin_text") == _percent(margin)
        and record.get("margin") == margin
    )


def _display(bundle: dict) -> None:
    from IPython.display import display

    display(bundle, raw=True)


def _finite(name: str, value) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise ValueError(f"{name} must be a real number, got {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value!r}")
    return float(value)


def _measured(values, several: bool) -> str:
    """One number, or the range of several."""
    low, high = _number(min(values)), _number(max(values))
    if not several:
        return low
    return f"{low if low == high else f'{low} … {high}'} ({len(values)} values)"


def _number(value: float) -> str:
    """Four significant digits at most, whole numbers as such."""
    if math.isfinite(value) and value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.4g}"


def _percent(margin: float) -> str:
    """A margin for people."""
    if margin >= 10:  # far above a lower bound, where a percentage says little
        return "over 1000 %"
    return f"{100 * margin:.3g} %" if math.isfinite(margin) else "none"
