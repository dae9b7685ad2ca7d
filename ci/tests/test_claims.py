"""Claims are the judges of the book; here they are judged."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest

from csa_utils import claims as module
from csa_utils.claims import (
    CLAIM_MIME,
    KINDS,
    VERDICT_MIME,
    VERDICTS,
    ClaimFailed,
    Claims,
    at_least,
    at_most,
    equal_to,
    near,
    rejudge,
)

HOW = {"source": "Theorem 4.1", "kind": "theorem"}


@pytest.fixture
def ledger():
    return Claims("model/first_token", show=False)


def record(ledger, measured, expected, name="a-claim", **more):
    ledger.record(name, "A statement", measured, expected, **{**HOW, **more})
    return ledger[name]


@pytest.mark.parametrize(
    ("expected", "good", "bad"),
    [
        (at_most(2.0), [2.0, 1.9, -5, 0], [np.nextafter(2.0, 3), 3]),
        (at_least(2.0), [2.0, 2.1, 1e9], [np.nextafter(2.0, 1), -3]),
        (near(2.0, 0.5), [1.5, 2.0, 2.5], [1.49, 2.51]),
        (equal_to(3), [3, 3.0, np.int64(3)], [2, 3 + 1e-12]),
    ],
)
def test_rules_at_and_around_their_threshold(expected, good, bad):
    for i, value in enumerate(good):
        claim = record(Claims("c", show=False), value, expected, f"good-{i}")
        assert claim.passed
        assert claim.verdict == "reproduced"
        assert claim.margin >= 0
        assert rejudge(claim.to_json())
    for i, value in enumerate(bad):
        claim = record(Claims("c", show=False), value, expected, f"bad-{i}")
        assert not claim.passed
        assert claim.verdict == "failed"
        # one unit off a count has margin 0, so a hair off has a margin just below 1
        assert claim.margin < (1 if expected.rule == "equal_to" else 0)
        assert not rejudge(claim.to_json())


@pytest.mark.parametrize(
    ("expected", "measured", "margin"),
    [
        (at_most(2.0), 0.5, 0.75),
        (at_most(2.0), 3.0, -0.5),
        (at_most(-2.0), -3.0, 0.5),
        (at_most(0.0), -0.25, 0.25),
        (at_least(2.0), 3.0, 0.5),
        (near(1.0, 0.1), 1.0, 1.0),
        (near(1.0, 0.1), 1.05, 0.5),
        (equal_to(5), 5, 1.0),
        (equal_to(5), 7, -2.0),
        (at_most(2.0), [0.5, 1.5, 1.0], 0.25),
    ],
)
def test_margin_is_the_worst_room_left(ledger, expected, measured, margin):
    assert record(ledger, measured, expected).margin == pytest.approx(margin, rel=1e-12, abs=1e-12)


def test_one_bad_value_among_many_fails(ledger):
    assert not record(ledger, [0.0] * 99 + [1.1], at_most(1.0)).passed


@pytest.mark.parametrize("rule", [at_most(1.0), at_least(1.0), near(1.0, 0.5), equal_to(1)])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_fails(rule, value):
    for i, measured in enumerate((value, [1.0, value])):
        claim = record(Claims("c", show=False), measured, rule, f"n-{i}")
        assert not claim.passed
        text = json.dumps(claim.to_json(), allow_nan=False)  # strict JSON
        assert not rejudge(json.loads(text))


def test_json_is_plain_and_complete(ledger):
    claim = record(ledger, np.float32(0.5), at_most(1), runs=3, finding="consistent")
    data = json.loads(json.dumps(claim.to_json()))
    assert data["chapter"] == "model/first_token"
    assert data["measured"] == 0.5
    assert data["expected"] == "≤ 1"
    assert data["rule"] == {"name": "at_most", "target": 1.0, "within": 0.0}
    assert data["verdict"] == "consistent with 3 runs"
    assert data["runs"] == 3
    several = record(ledger, np.array([[1.0, 2.0]]), at_most(3), "several").to_json()
    assert several["measured"] == [1.0, 2.0]


def test_words_for_people(ledger):
    assert record(ledger, 2.0, at_most(3), "whole").to_json()["measured_text"] == "2"
    assert record(ledger, 0.123456, at_most(3), "digits").to_json()["measured_text"] == "0.1235"
    assert record(ledger, [1.5, 2.5], at_most(3), "range").to_json()["measured_text"] == "1.5 … 2.5 (2 values)"
    assert record(ledger, [1, 1, 1], at_most(3), "same").to_json()["measured_text"] == "1 (3 values)"
    assert record(ledger, 1.5, at_most(3), "half").to_json()["margin_text"] == "50 %"
    assert record(ledger, 1e6, at_least(1), "huge").to_json()["margin_text"] == "over 1000 %"
    assert record(ledger, math.nan, at_most(1), "nan").to_json()["margin_text"] == "none"


def test_the_ledger_gives_source_and_kind_where_a_record_does_not():
    ledger = Claims("c", source="Lemma 3.1", kind="lemma", show=False)
    ledger.record("one", "S", 0, at_most(1))
    ledger.record("two", "S", 0, at_most(1), source="Section 2", kind="definition")
    assert [(c.source, c.kind) for c in ledger] == [("Lemma 3.1", "lemma"), ("Section 2", "definition")]
    with pytest.raises(ValueError, match="source must be text"):
        Claims("c", show=False).record("one", "S", 0, at_most(1), kind="lemma")


@pytest.mark.parametrize("finding", [word for word in VERDICTS if word != "consistent"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_and_finding(ledger, kind, finding):
    claim = record(ledger, 0, at_most(1), finding=finding, kind=kind)
    assert (claim.kind, claim.verdict) == (kind, finding)


def test_verdict_raises_and_names_what_failed(ledger):
    record(ledger, 0.5, at_most(1), "good-one")
    ledger.verdict()
    record(ledger, 2, at_most(1), "bad-one")
    with pytest.raises(ClaimFailed, match=r"1 of 2 claims of model/first_token failed") as caught:
        ledger.verdict()
    assert "bad-one" in str(caught.value)
    assert "good-one" not in str(caught.value)
    assert issubclass(ClaimFailed, AssertionError)


def test_verdict_without_claims_raises(ledger):
    with pytest.raises(ClaimFailed, match="records no claim"):
        ledger.verdict()


def test_cards_and_summary_are_displayed(monkeypatch):
    shown = []
    monkeypatch.setattr(module, "_display", shown.append)
    ledger = Claims("model/first_token")
    record(ledger, 0.5, at_most(1), "one", source="A <b> & c")
    ledger.verdict()
    card, summary = shown
    assert card[CLAIM_MIME]["id"] == "one"
    assert 'id="claim-one"' in card["text/html"]
    assert "A &lt;b&gt; &amp; c" in card["text/html"]
    assert summary[VERDICT_MIME] == {"chapter": "model/first_token", "claims": ["one"]}
    assert 'href="#claim-one"' in summary["text/html"]
    assert all("text/plain" in bundle for bundle in shown)


def test_a_ledger_counts_and_iterates(ledger):
    record(ledger, 0, at_most(1), "one")
    record(ledger, 0, at_most(1), "two")
    assert len(ledger) == 2
    assert [claim.id for claim in ledger] == ["one", "two"]


@pytest.mark.parametrize(
    "change",
    [
        {"measured": 5.0},
        {"measured": [0.1, 5.0]},
        {"measured": "nan"},
        {"measured": []},
        {"measured": True},
        {"passed": False},
        {"passed": "yes"},
        {"verdict": "failed"},
        {"rule": {"name": "at_least", "target": 1.0, "within": 0.0}},
    ],
)
def test_rejudge_does_not_believe_the_record(ledger, change):
    data = record(ledger, 0.5, at_most(1)).to_json()
    assert rejudge(data)
    assert not rejudge({**data, **change})


@pytest.mark.parametrize(
    "change",
    [{"rule": None}, {"rule": {"name": "at_most"}}, {"rule": {"name": "about", "target": 1, "within": 0}}],
)
def test_rejudge_rejects_what_is_no_claim(ledger, change):
    data = record(ledger, 0.5, at_most(1)).to_json()
    with pytest.raises(ValueError, match=r"record must be|rule must be"):
        rejudge({**data, **change})
    with pytest.raises(ValueError, match="record must be"):
        rejudge({})


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: Claims("Model/X"), ("chapter", "path", "'Model/X'")),
        (lambda: Claims(3), ("chapter", "path", "3")),
        (lambda: Claims("a//b"), ("chapter", "path", "'a//b'")),
        (lambda: at_most(math.inf), ("bound", "finite", "inf")),
        (lambda: at_least(math.nan), ("bound", "finite", "nan")),
        (lambda: at_most("1"), ("bound", "real number", "'1'")),
        (lambda: at_most(True), ("bound", "real number", "True")),
        (lambda: near(1.0, 0.0), ("within", "positive", "0.0")),
        (lambda: near(1.0, -1), ("within", "positive", "-1")),
        (lambda: near(None, 1), ("target", "real number", "None")),
        (lambda: equal_to(1j), ("target", "real number", "1j")),
    ],
)
def test_errors_name_argument_rule_and_value(call, names):
    with pytest.raises(ValueError) as caught:
        call()
    assert all(name in str(caught.value) for name in names)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"id": "Bad Id"}, ("id", "lower case", "'Bad Id'")),
        ({"id": "taken"}, ("id", "new", "'taken'")),
        ({"statement": "Ends so."}, ("statement", "full stop", "'Ends so.'")),
        ({"statement": "  "}, ("statement", "text", "'  '")),
        ({"source": ""}, ("source", "text", "''")),
        ({"measured": []}, ("measured", "real numbers", "[]")),
        ({"measured": "x"}, ("measured", "real numbers", "'x'")),
        ({"measured": 1j}, ("measured", "real numbers", "1j")),
        ({"measured": None}, ("measured", "real numbers", "None")),
        ({"expected": 1e-3}, ("expected", "Expectation", "0.001")),
        ({"kind": "guess"}, ("kind", "theorem", "'guess'")),
        ({"finding": "proved"}, ("finding", "reproduced", "'proved'")),
        ({"finding": "failed"}, ("finding", "reproduced", "'failed'")),
        ({"runs": 0}, ("runs", "positive integer", "0")),
        ({"runs": True}, ("runs", "positive integer", "True")),
        ({"runs": 2.0}, ("runs", "positive integer", "2.0")),
        ({"finding": "consistent"}, ("runs", "consistent", "None")),
    ],
)
def test_bad_records_name_argument_rule_and_value(ledger, change, names):
    record(ledger, 0, at_most(1), "taken")
    given = SimpleNamespace(**{"id": "x", "statement": "S", "measured": 0.0, "expected": at_most(1), **HOW, **change})
    values = vars(given)
    first = [values.pop(name) for name in ("id", "statement", "measured", "expected")]
    with pytest.raises(ValueError) as caught:
        ledger.record(*first, **values)
    assert all(name in str(caught.value) for name in names)
    assert len(ledger) == 1, "a rejected record leaves no trace"


@pytest.mark.parametrize(
    "change", [{"expected": "≤ 1e-12"}, {"measured_text": "0"}, {"margin_text": "99 %"}, {"margin": 1}]
)
def test_rejudge_reads_the_words_too(ledger, change):
    data = record(ledger, 0.5, at_most(1)).to_json()
    assert rejudge(data)
    assert not rejudge({**data, **change})


def test_a_missed_count_has_a_negative_margin():
    assert equal_to(0).margin(0) == 1
    assert equal_to(0).margin(0.03) < 0
