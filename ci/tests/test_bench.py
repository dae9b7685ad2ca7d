"""The benchmark: its peers are correct, its arithmetic holds, its record fits together.  No speed is tested."""

import copy
import itertools
import json
import re
import subprocess
import sys

import numpy as np
import pytest
from bs4 import BeautifulSoup

from ci import performance
from ci.bench import engine, peers, record, table
from ci.bench.measure import Rule, Work, interleave, ratios, summary
from ci.bench.rows import ROWS, SERIES, Line, Row, Series, Trial
from ci.bench.run import facts, measure, measure_row, measure_series
from ci.chapters import ROOT
from csa_utils import attention, sphere

QUICK = Rule(rounds=3, seconds=0.0, most=3, patience=0.0, fewest=3)


def start(n, d, batch=(), seed=1):
    return sphere.uniform(n, d, np.random.default_rng(seed), batch)


def matrices(d):
    return np.random.default_rng(2).standard_normal((3, d, d))


class Clock:
    """Time passes only when a work says so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def work(self, name, seconds, said):
        lasts = itertools.cycle(seconds)

        def call():
            said.append(name)
            self.now += next(lasts)

        return call


# Peers


@pytest.mark.parametrize("batch", [(), (3,), (2, 2)])
@pytest.mark.parametrize(("n", "d", "beta"), [(1, 2, 1.0), (7, 3, 0.0), (20, 4, 60.0)])
def test_numpy_field_is_ours(n, d, beta, batch):
    x, (Q, K, V) = start(n, d, batch), matrices(d)
    ours = attention.field(x, Q=Q, K=K, V=V, beta=beta)
    assert np.allclose(peers.numpy_field(x, Q, K, V, beta), ours, rtol=0, atol=1e-13 * np.linalg.norm(V))


def test_numpy_attention_is_ours_and_leaves_its_input_alone():
    x = start(9, 3, (2,))
    kept = x.copy()
    assert np.allclose(peers.numpy_attention(x, 4.0), attention.output(x, beta=4.0), rtol=0, atol=1e-14)
    assert np.array_equal(x, kept)


def test_euler_script_is_a_loop_of_two_lines():
    x = y = start(6, 3, (2,))
    for _ in range(10):
        y = y + 0.1 * attention.output(y, beta=5.0)
        y = y / np.linalg.norm(y, axis=-1, keepdims=True)
    assert np.allclose(peers.numpy_euler(x, 5.0, 10), y, rtol=0, atol=1e-13)


@pytest.mark.parametrize("method", ["RK45", "LSODA"])
def test_scipy_runs_agree_with_ours(method):
    x = start(6, 3)
    run = peers.scipy_run(x, 3.0, 4.0, method, 1e-9, 1e-9)
    assert np.allclose(run, engine.run(x, 3.0, 4.0), rtol=0, atol=1e-5)


@pytest.fixture
def plain_numba(monkeypatch):
    """The functions for angles without their compilation, which takes seconds."""

    class Numba:
        @staticmethod
        def njit(function):
            return function

    monkeypatch.setattr(peers, "_library", {"numba": Numba}.get)
    peers._angle_functions.cache_clear()
    yield peers._angle_functions()
    peers._angle_functions.cache_clear()


def test_field_and_jacobian_for_angles(plain_numba):
    field, jacobian = plain_numba
    phi, beta, h = np.random.default_rng(3).uniform(0, 7, 8), 5.0, 1e-6
    x = sphere.circle(phi)
    across = np.stack([-x[:, 1], x[:, 0]], axis=-1)
    assert np.allclose(field(phi, beta), np.sum(attention.field(x, beta=beta) * across, axis=-1), rtol=0, atol=1e-14)
    steps = h * np.eye(8)
    differences = [(field(phi + e, beta) - field(phi - e, beta)) / (2 * h) for e in steps]
    assert np.allclose(jacobian(phi, beta), np.stack(differences, axis=-1), rtol=0, atol=1e-8)
    assert np.array_equal(jacobian(phi, beta), np.tril(jacobian(phi, beta)))


def test_lsoda_for_angles(plain_numba):
    phi = np.random.default_rng(3).uniform(0, 2, 5)
    end = sphere.circle(peers.lsoda_angles(phi, 2.0, 4.0, 1e-9, 1e-9))
    assert np.allclose(end, engine.run(sphere.circle(phi), 2.0, 4.0), rtol=0, atol=1e-5)


def test_a_solver_that_gives_up_says_so():
    with pytest.raises(peers.Failed, match="RK45 gave up"):
        peers._solved(lambda t, y: y**2, np.ones(1), 2.0, "RK45", 1e-6, 1e-8)


def _missing(name):
    raise ImportError(name)


@pytest.mark.parametrize(
    ("make", "library"),
    [
        (lambda: peers.torch_field(start(3, 2), *matrices(2), 1.0), "torch"),
        (lambda: peers.diffrax_run(start(3, 2), 1.0, 1.0, "Tsit5", 1e-6, 1e-8), "jax"),
    ],
)
def test_a_missing_library_costs_its_row_only(monkeypatch, make, library):
    monkeypatch.setattr(peers.importlib, "import_module", _missing)
    with pytest.raises(peers.Missing, match=f"{library} is not installed"):
        make()
    row = Row("r", "work", "ours", "theirs", {}, lambda: Trial(Work(int), Work(make())), ("at least", 2.0))
    entry = measure_row(row, QUICK)
    assert (entry["status"], entry["reached"]) == ("not measured", None)
    assert entry["reason"] == f"{library} is not installed"


# Measuring


def test_works_are_called_in_turn_after_one_call_that_is_not_timed():
    clock, said = Clock(), []
    a, b = clock.work("a", [100.0, 1.0, 2.0, 3.0], said), clock.work("b", [500.0, 10.0, 20.0, 30.0], said)
    times = interleave({"a": a, "b": b}, Rule(rounds=3, seconds=0.0, fewest=3), clock)
    assert "".join(said) == "ab" * 4
    assert times == {"a": [1.0, 2.0, 3.0], "b": [10.0, 20.0, 30.0]}


def test_collection_of_garbage_is_back_after_a_failure():
    import gc

    calls = iter([0, 0, 1])
    with pytest.raises(ZeroDivisionError):
        interleave({"a": lambda: 1 // (1 - next(calls))}, QUICK)
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("lasts", "rounds"),
    [
        (1.0, 7),  # enough time after seven rounds
        (0.1, 20),  # two seconds
        (0.001, 51),  # no more than that
        (30.0, 3),  # a minute is over: three rounds
        (9.0, 7),  # 63 s, but seven rounds are reached at the same time
        (11.0, 6),  # six rounds take more than a minute
    ],
)
def test_when_a_measurement_ends(lasts, rounds):
    clock = Clock()
    assert len(interleave({"a": clock.work("a", [lasts], [])}, Rule(), clock)["a"]) == rounds


@pytest.mark.parametrize("wrong", [{"fewest": 0}, {"rounds": 2}, {"most": 6}])
def test_rules_that_cannot_be(wrong):
    with pytest.raises(ValueError, match="fewest <= rounds <= most"):
        Rule(**wrong)


def test_medians_and_quartiles():
    assert summary([5.0, 1.0, 2.0, 4.0, 3.0]) == {"median": 3.0, "lower": 2.0, "upper": 4.0}
    assert summary([2.0]) == {"median": 2.0, "lower": 2.0, "upper": 2.0}
    values = list(np.random.default_rng(4).uniform(size=12))
    lower, median, upper = np.quantile(values, [0.25, 0.5, 0.75])
    assert summary(values) == pytest.approx({"median": median, "lower": lower, "upper": upper})


def test_ratios_are_taken_pair_by_pair():
    assert ratios([10.0, 20.0, 90.0], [1.0, 4.0, 9.0]) == [10.0, 5.0, 10.0]
    with pytest.raises(ValueError, match=r"shorter|longer"):
        ratios([1.0], [1.0, 2.0])


# The record


def about(**changed):
    given = {"id": "r", "work": "a <work>", "own": "ours", "peer": "theirs", "settings": {"n": 3}, "growth": False}
    return {**given, "target": {"rule": "at least", "value": 9.0}, **changed}


def row(own=(1.0, 2.0, 1.0), peer=(10.0, 30.0, 11.0), checks=(), works=None, **changed):
    works = works or {"own": Work(int), "peer": Work(int)}
    return record.row(about(**changed), works, {"own": own, "peer": peer}, list(checks))


def example():
    scaled = Work(int, steps_timed=10, steps_in_run=50)
    lines = [
        record.line("ours", "own", [(1.0, Work(int), [1.0, 2.0]), (10.0, Work(int), [3.0])], None),
        record.line("theirs", "numpy", [(1.0, scaled, [1.0])], None),
        record.line("other", "torch", [], "torch is not installed"),
    ]
    series = {"id": "s", "title": "Cost", "across": "n", "settings": {}, "lines": lines}
    late = record.not_measured(about(id="late"), "torch is <not> installed")
    free = row(id="free", target=None)
    return {"made": facts(1, Rule()), "rows": [row(), late, free], "series": [series]}


def test_a_row_is_judged_by_its_own_times():
    entry = row()
    assert entry["ratio"] == {"median": 11.0, "lower": 10.5, "upper": 13.0}
    assert entry["own"]["seconds"]["median"] == 1.0
    assert entry["rounds"] == 3
    assert entry["reached"] is True
    assert row(target={"rule": "at least", "value": 11.5})["reached"] is False
    assert row(target=None)["reached"] is None
    assert row(checks=[record.judged("error", 1e-3, 1e-4)])["reached"] is False
    assert row(checks=[record.judged("error", 1e-3)])["reached"] is True


def test_growth_is_the_cost_of_the_larger_work():
    entry = row(own=[11.0, 12.0, 13.0], peer=[1.0, 1.0, 1.0], growth=True, target={"rule": "at most", "value": 12.0})
    assert (entry["ratio"]["median"], entry["reached"]) == (12.0, True)
    entry = row(own=[13.0, 13.0, 13.0], peer=[1.0, 1.0, 1.0], growth=True, target={"rule": "at most", "value": 12.0})
    assert entry["reached"] is False


def test_a_run_of_which_some_steps_were_timed():
    works = {"own": Work(int), "peer": Work(int, steps_timed=10, steps_in_run=500)}
    entry = row(works=works)
    assert entry["peer"]["times"] == [10.0, 30.0, 11.0]
    assert entry["peer"]["seconds"]["median"] == 550.0
    assert entry["ratio"]["median"] == 550.0
    assert (entry["peer"]["steps_timed"], entry["peer"]["steps_in_run"]) == (10, 500)
    assert "10 of 500 steps timed" in table.rows_html([entry], "T")


def test_a_record_is_read_as_it_was_written(tmp_path):
    path, data = tmp_path / "p.json", example()
    record.write(data, path)
    assert record.read(path) == json.loads(json.dumps(data))
    assert '"times": [1.0, 2.0, 1.0]' in re.sub(r"\[ | \]", lambda m: m[0].strip(), path.read_text(encoding="utf8"))


def _places(node, way=()):
    """Every way to a field of a record whose fields are fixed."""
    if isinstance(node, dict):
        for key, value in node.items():
            if way[-1:] in (("settings",), ("versions",), ("rule",)):
                continue
            yield (*way, key)
            yield from _places(value, (*way, key))
    elif isinstance(node, list):
        for i, value in enumerate(node):
            yield from _places(value, (*way, i))


@pytest.mark.parametrize("way", list(_places(example())), ids=lambda way: ".".join(map(str, way)))
def test_a_missing_field_is_refused(way):
    data = example()
    node = data
    for part in way[:-1]:
        node = node[part]
    del node[way[-1]]
    with pytest.raises(ValueError, match="must have"):
        record.check(data)


def _changed(change):
    data = copy.deepcopy(example())
    change(data["rows"][0], data)
    return data


@pytest.mark.parametrize(
    "change",
    [
        lambda row, _: row["ratio"].update(median=12.0),
        lambda row, _: row["ratio"].update(upper=14.0),
        lambda row, _: row["own"]["seconds"].update(median=0.5),
        lambda row, _: row["own"]["times"].__setitem__(0, 0.5),
        lambda row, _: row["own"]["times"].append(1.0),
        lambda row, _: row["own"].update(times=[], seconds=None),
        lambda row, _: row["own"]["times"].__setitem__(0, float("nan")),
        lambda row, _: row["peer"].update(steps_timed=10),
        lambda row, _: row.update(reached=False),
        lambda row, _: row.update(reached=1),
        lambda row, _: row.update(rounds=7),
        lambda row, _: row.update(status="guessed"),
        lambda row, _: row.update(status="not measured", reason="lost"),
        lambda row, _: row.update(reason="none"),
        lambda row, _: row["target"].update(rule="about"),
        lambda row, _: row["target"].update(value=12.0),
        lambda row, _: row["checks"].append({"what": "e", "value": 1.0, "bound": 0.5, "kept": True}),
        lambda row, data: data["rows"].append(row),
        lambda _, data: data["rows"][1].update(reached=True),
        lambda _, data: data["rows"][1]["ratio"] or data["rows"][1].update(ratio={"median": 3.0}),
        lambda _, data: data["series"][0]["lines"][0]["points"][0]["seconds"].update(median=9.0),
        lambda _, data: data["series"][0]["lines"][2].update(status="measured", reason=None),
    ],
)
def test_numbers_that_do_not_fit_together_are_refused(change):
    with pytest.raises(ValueError, match="must"):
        record.check(_changed(change))


def test_no_record_and_half_a_record(tmp_path):
    with pytest.raises(ValueError, match="make bench"):
        record.read(tmp_path / "p.json")
    (tmp_path / "p.json").write_text('{"made": ', encoding="utf8")
    with pytest.raises(ValueError, match="no JSON"):
        record.read(tmp_path / "p.json")


def test_a_failure_leaves_the_old_record(tmp_path, monkeypatch):
    path = tmp_path / "p.json"
    record.write(example(), path)
    old = path.read_bytes()
    wrong = _changed(lambda row, _: row.update(reached=False))
    with pytest.raises(ValueError, match="reached"):
        record.write(wrong, path)
    monkeypatch.setattr("ci.chapters.os.replace", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        record.write({**example(), "rows": []}, path)
    assert path.read_bytes() == old
    assert [p.name for p in tmp_path.iterdir()] == ["p.json"]


def test_an_interrupted_run_leaves_the_old_record(tmp_path, monkeypatch, capsys):
    from ci.bench import __main__ as command
    from ci.bench import run

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_limit", lambda threads: None)
    monkeypatch.setattr(run, "measure", interrupted)
    path = tmp_path / "p.json"
    path.write_text("old", encoding="utf8")
    assert command.main(["--output", str(path)]) == 130
    assert path.read_text(encoding="utf8") == "old"
    assert "Interrupted" in capsys.readouterr().err


def test_command_line_refuses_what_it_does_not_know(monkeypatch, capsys):
    from ci.bench import __main__ as command

    monkeypatch.setattr(command, "_limit", lambda threads: None)
    for wrong in (["--threads", "0"], ["--only", "nothing"]):
        with pytest.raises(SystemExit):
            command.main(wrong)
    assert "nothing" in capsys.readouterr().err


def test_threads_are_set_before_numpy_starts():
    code = "import sys, ci.bench.__main__; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_measure_makes_a_record():
    def prepare(at):
        if at > 2:
            raise NotImplementedError("too large")
        return Work(lambda: sum(range(1000)))

    rows = [
        Row("a", "w", "o", "p", {}, lambda: Trial(prepare(1), prepare(1), lambda: [record.judged("e", 0.0, 1.0)])),
        Row("b", "w", "o", "p", {}, lambda: Trial(prepare(3), prepare(1)), ("at least", 2.0)),
        Row("c", "w", "o", "p", {}, lambda: Trial(Work(_give_up), prepare(1)), ("at least", 2.0)),
    ]
    lines = (Line("x", "own", (1.0, 2.0, 3.0), prepare), Line("y", "torch", (3.0,), prepare))
    said = []
    data = measure(rows, [Series("s", "t", "n", {}, lines)], QUICK, 1, said.append)
    record.check(json.loads(record.text(data)))
    assert [row["reason"] for row in data["rows"]] == [None, "too large", "it gave up"]
    first, second = data["series"][0]["lines"]
    assert [point["at"] for point in first["points"]] == [1.0, 2.0]
    assert (second["status"], second["reason"]) == ("not measured", "too large")
    assert len(said) == 4


def _give_up():
    raise peers.Failed("it gave up")


def test_lines_of_a_series_are_timed_in_turn(monkeypatch):
    said = []
    lines = tuple(Line(n, "own", (1.0,), lambda at, n=n: Work(lambda: said.append(n))) for n in "ab")
    measure_series(Series("s", "t", "n", {}, lines), QUICK)
    assert "".join(said[2:]) == "ab" * 4


# The page


def test_seconds_and_ratios_as_text():
    assert [table.seconds(t) for t in (12.3456, 0.99996, 0.0123456, 1.5e-6, 3e-9)] == [
        "12.3 s",
        "1.00 s",
        "12.3 ms",
        "1.50 µs",
        "0.00 µs",
    ]
    assert [table.ratio(r) for r in (0.12345, 9.996, 12.345, 99.96, 1234.5)] == ["0.12", "10.0", "12.3", "100", "1230"]


def test_tables_say_what_was_reached_and_what_was_not_measured():
    data = example()
    data["rows"].append(row(id="slow", target={"rule": "at least", "value": 50.0}))
    data["rows"].append(row(id="wrong", checks=[record.judged("error", 1e-3, 1e-4)]))
    record.check(data)
    cells = BeautifulSoup(performance.table_html(data, "targets"), "html.parser").select("tbody tr")
    results = [tr.select("td")[-1].get_text(" ", strip=True) for tr in cells]
    assert ["reached" in results[0], "missed" in results[2], "missed" in results[3]] == [True] * 3
    assert results[1] == "not measured target at least 9 torch is <not> installed"
    first, late, _, wrong = ([td.get_text(" ", strip=True) for td in tr.select("td")] for tr in cells)
    assert first[0] == "a <work> ours beside theirs"
    assert first[1:4] == ["1.00 s 1.00 s to 1.50 s", "11.0 s 10.5 s to 20.5 s", "11.0 10.5 to 13.0"]
    assert late[1:4] == ["–"] * 3
    assert "error: 1.0e-03 (allowed 1e-04, exceeded)" in wrong[0]
    free = performance.table_html(data, "information")
    assert free.count("<tr>") == 2
    assert "Result" not in free
    lost = record.not_measured(about(target=None), "it gave up")
    assert "it gave up" in performance.table_html({**data, "rows": [lost]}, "information")
    assert "not measured: torch" in table.plain(data)
    assert [performance.number(data, f"count.{n}") for n in ("targets", "reached", "missed", "unmeasured")] == list(
        "4121"
    )


def test_numbers_in_sentences():
    data = example()
    assert performance.number(data, "made.rule.rounds") == "7"
    assert performance.number(data, "made.rule.seconds") == "2"
    for wrong in ("made", "made.nothing", "rows.0", ""):
        with pytest.raises(ValueError, match="must lead to a number"):
            performance.number(data, wrong)
    with pytest.raises(ValueError, match="must be one of"):
        performance.table_html(data, "other")


def test_the_machine_is_described():
    shown = performance.table_html(example(), "machine")
    for word in ("Processor", "Cores", "numpy", np.__version__, "Commit"):
        assert word in shown


def test_pictures_show_what_is_there_and_name_what_is_not():
    series = example()["series"][0]
    at_zero = copy.deepcopy(series)
    at_zero["lines"][0]["points"][0]["at"] = 0.0
    empty = {**series, "lines": series["lines"][2:]}
    assert all("<svg" in performance.draw(one) for one in (series, at_zero))
    assert performance.draw(empty) == performance.draw(empty)


def test_every_line_has_a_look_of_its_own():
    looks = [performance._LOOKS[line.role] for series in SERIES for line in series.lines]
    assert len({look[0] for look in performance._LOOKS.values()}) == len(performance._LOOKS)
    assert looks


# What is committed


def test_committed_record_is_complete_and_agrees_with_itself():
    data = record.read()  # checks every number
    assert [row["id"] for row in data["rows"]] == [row.id for row in ROWS], "run: make bench"
    assert [series["id"] for series in data["series"]] == [series.id for series in SERIES], "run: make bench"
    for entry, row in zip(data["rows"], ROWS, strict=True):
        assert entry["target"] == row.about()["target"], f"{row.id}: run: make bench"
    assert re.fullmatch(r"[0-9a-f]{40}", data["made"]["commit"])
    page = (ROOT / "book/evidence/performance.md").read_text(encoding="utf8")
    assert re.findall(r"\{performance-figure\} (\w+)", page) == [series.id for series in SERIES]
    for name in re.findall(r"\{performance\}`([^`]+)`", page):
        performance.number(data, name)


def test_libraries_that_no_test_imports_gave_the_right_result():
    """Of a record with torch and diffrax in it: both ways of each row agree as far as they must."""
    off = [
        f"{row['id']}: {check['what']} {check['value']:.1e}"
        for row in record.read()["rows"]
        for check in row["checks"]
        if not check["what"].startswith(("ours", "error of ours")) and not check["kept"]
    ]
    assert not off


def test_peers_are_pinned():
    lines = (ROOT / "ci/bench/requirements.txt").read_text(encoding="utf8").splitlines()
    wanted = [line for line in lines if not line.startswith("#")]
    assert wanted
    assert [line for line in wanted if not re.fullmatch(r"[\w-]+==[\d.]+ +# .+", line)] == []
