"""Runs are the same whoever does them, and what is done survives deaths, errors and Ctrl-C."""

import dataclasses
import importlib
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from csa_utils import ensemble

RUNS = 40


def sample(rng, size=3):
    """Results of several kinds by name."""
    x = rng.standard_normal(size)
    return {"x": x, "count": int(np.sum(x > 0)), "all": bool(np.all(x > 0)), "phase": np.exp(1j * x[0])}


def number(rng):
    return rng.random()


def slow_number(rng):
    time.sleep(0.02)
    return rng.random()


def threads_of_the_worker(rng):
    return {
        "threads": int(os.environ["NUMBA_NUM_THREADS"]),
        "omp": int(os.environ["OMP_NUM_THREADS"]),
        "x": rng.random(),
    }


def tells(rng, act, fatal, pause=0.0):
    """A random number, but `act` is called if it is in `fatal`."""
    x = rng.random()
    if x in fatal:
        act()
    time.sleep(pause)
    return x


def die():
    os._exit(3)


def die_once(marker):
    if not os.path.exists(marker):
        Path(marker).touch()
        os._exit(3)


def fail():
    raise ZeroDivisionError("no luck")


class Brittle(Exception):
    """Pickles, but can't be rebuilt."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def fail_brittly():
    raise Brittle("this", "that")


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def numbers(seed=7, runs=RUNS):
    """What `number` and `tells` return, by numpy alone."""
    children = np.random.SeedSequence(seed).spawn(runs)
    return np.array([np.random.default_rng(child).random() for child in children])


def same(first, second):
    """Bit for bit."""
    np.testing.assert_array_equal(first.index, second.index)
    assert first.values.keys() == second.values.keys()
    for name, a in first.values.items():
        assert a.dtype == second.values[name].dtype
        assert a.tobytes() == second.values[name].tobytes()


@pytest.fixture(autouse=True)
def no_worker_is_left():
    """Other processes of the session, which run the chapters, are not ours."""
    before = {p.pid for p in multiprocessing.active_children()}
    yield
    assert {p.pid for p in multiprocessing.active_children()} <= before


@pytest.fixture(scope="module")
def expected():
    """The runs of `sample` one after the other."""
    return ensemble.run(sample, RUNS, 7, workers=1)


# ---------------------------------------------------------------- the same numbers


def test_run_i_gets_the_ith_child_of_the_seed(expected):
    for i, child in enumerate(np.random.SeedSequence(7).spawn(RUNS)):
        result = sample(np.random.default_rng(child))
        assert sample(ensemble.generator(7, i)).keys() == expected.values.keys()
        for name, value in result.items():
            np.testing.assert_array_equal(expected[name][i], value)
    assert expected["x"].shape == (RUNS, 3)
    assert [expected[name].dtype.kind for name in ("x", "count", "all", "phase")] == ["f", "i", "b", "c"]
    assert expected.complete
    assert expected.index.tolist() == list(range(RUNS))
    assert expected.done.tolist() == [True] * RUNS


@pytest.mark.parametrize("chunk", [None, 7])
def test_processes_change_nothing(expected, chunk):
    same(ensemble.run(sample, RUNS, 7, workers=2, chunk=chunk), expected)


@pytest.mark.parametrize("chunk", [None, 1, 7, 1000])
def test_threads_change_nothing(expected, chunk):
    with ThreadPoolExecutor(3) as executor:
        same(ensemble.run(sample, RUNS, 7, executor=executor, chunk=chunk), expected)
        assert executor.submit(int, 3).result() == 3  # it is left open


def test_somebody_elses_processes_change_nothing(expected):
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as executor:
        same(ensemble.run(sample, RUNS, 7, executor=executor, workers=2), expected)


def test_chunk_and_workers_of_this_process_change_nothing(expected):
    for chunk in (1, 7, 1000):
        same(ensemble.run(sample, RUNS, 7, workers=1, chunk=chunk), expected)


@pytest.mark.parametrize("function", ["lambda", "local"])
def test_functions_that_cannot_travel_run_in_threads(function):
    seen = set()

    def local(rng):
        seen.add(threading.current_thread().name)
        return rng.random()

    found = ensemble.run(local if function == "local" else lambda rng: rng.random(), RUNS, 7, workers=2)
    np.testing.assert_array_equal(found["value"], numbers())
    assert threading.current_thread().name not in seen


def test_functions_typed_at_a_prompt_run_in_threads():
    code = (
        "import os\nfrom csa_utils import ensemble\n"
        "def typed(rng):\n    return {'x': rng.random(), 'pid': os.getpid()}\n"
        "found = ensemble.run(typed, 20, 7, workers=2)\n"
        "print(set(found['pid']) == {os.getpid()}, found['x'].tolist())"
    )
    root = Path(ensemble.__file__).parent.parent
    for command in ([sys.executable, "-c", code], [sys.executable, "-"]):
        given = None if command[-1] == code else code
        done = subprocess.run(command, input=given, capture_output=True, text=True, cwd=root, timeout=60)
        assert done.stdout.strip() == f"True {numbers(runs=20).tolist()}", done.stderr
        assert done.stderr == ""


def test_more_runs_extend_the_list(expected):
    for runs in (1, 2, 17):
        found = ensemble.run(sample, runs, 7, workers=1)
        for name, a in found.values.items():
            np.testing.assert_array_equal(a, expected[name][:runs])


def test_seeds_may_be_sequences():
    sequence = np.random.SeedSequence([1, 2, 3], spawn_key=(5,), pool_size=8)
    found = ensemble.run(number, 5, sequence, workers=1)
    assert sequence.n_children_spawned == 0  # untouched: a second call gives the same
    assert ensemble.generator(sequence, 4).random() == found["value"][4]
    np.testing.assert_array_equal(found["value"], [np.random.default_rng(c).random() for c in sequence.spawn(5)])
    whole = ensemble.run(number, 5, np.random.SeedSequence(7), workers=1)
    same(whole, ensemble.run(number, 5, 7, workers=1))
    assert len({*found["value"], *whole["value"]}) == 10


def test_a_run_may_reuse_its_memory():
    memory = np.zeros(2)

    def experiment(rng):
        memory[:] = rng.random()
        return memory

    found = ensemble.run(experiment, 5, 7, workers=1)
    np.testing.assert_array_equal(found["value"][:, 0], numbers(runs=5))


def test_workers_have_one_thread_each_and_the_environment_is_as_before(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    monkeypatch.delenv("NUMBA_NUM_THREADS", raising=False)
    before = dict(os.environ)
    found = ensemble.run(threads_of_the_worker, 4, 7, workers=2)
    assert set(found["threads"]) == set(found["omp"]) == {1}
    assert dict(os.environ) == before
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_short_runs_travel_in_chunks_of_about_half_a_second():
    sizes = []

    class Counting(ThreadPoolExecutor):
        def submit(self, function, *arguments):
            sizes.append(len(arguments[2]))
            return super().submit(function, *arguments)

    with Counting(1) as executor:
        ensemble.run(number, 5_000, 7, executor=executor, workers=1)
        assert sizes[0] == 1
        assert len(sizes) < 50
        sizes.clear()
        ensemble.run(slow_number, 40, 7, executor=executor, workers=1)
        assert 2 <= max(sizes) <= 30


# ---------------------------------------------------------------- a cluster


def test_a_cluster_gives_the_same_and_outlives_a_worker(expected, monkeypatch):
    distributed = importlib.import_module("distributed")
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
    with (
        distributed.LocalCluster(**options, silence_logs=50) as cluster,
        distributed.Client(cluster) as client,
    ):
        executor = client.get_executor()
        same(ensemble.run(sample, RUNS, 7, executor=executor), expected)

        victim = next(iter(client.run(os.getpid).values()))
        killer = threading.Timer(0.3, os.kill, (victim, signal.SIGKILL))
        killer.start()
        found = ensemble.run(slow_number, 100, 7, executor=executor, chunk=5)
        killer.join()
        np.testing.assert_array_equal(found["value"], numbers(runs=100))
        with pytest.raises(ProcessLookupError):
            os.kill(victim, 0)  # it did die

        fatal = frozenset(numbers()[[7]])
        with pytest.raises(ZeroDivisionError) as caught:
            ensemble.run(partial(tells, act=fail, fatal=fatal), RUNS, 7, executor=executor)
        assert "In run 7," in caught.value.__notes__[0]


class Flaky(Executor):
    """Fails every call the given number of times in the way of a cluster."""

    def __init__(self, times, error):
        self.times, self.error, self.calls = times, error, []

    def submit(self, function, *arguments):
        future, runs = Future(), arguments[2]
        self.calls.append(runs)
        if sum(set(runs) <= set(call) for call in self.calls) <= self.times:
            future.set_exception(self.error)
        else:
            future.set_result(function(*arguments))
        return future


class KilledWorker(Exception):
    __module__ = "distributed.scheduler"


@pytest.mark.parametrize(
    "error", [KilledWorker("x"), BrokenProcessPool("x"), ConnectionResetError("x"), CancelledError()]
)
def test_failures_of_an_executor_are_tried_again_run_by_run(error):
    executor = Flaky(2, error)
    found = ensemble.run(number, RUNS, 7, executor=executor, chunk=10, retries=2)
    np.testing.assert_array_equal(found["value"], numbers())
    assert {len(runs) for runs in executor.calls[4:]} == {1}
    with pytest.raises(ensemble.Lost, match="2 times") as caught:
        ensemble.run(number, 2, 7, executor=Flaky(9, error), retries=1)
    assert caught.value.runs == (0, 1)
    assert caught.value.__cause__ is error


def test_other_failures_of_an_executor_are_raised():
    with pytest.raises(MemoryError) as caught:
        ensemble.run(number, 2, 7, executor=Flaky(1, MemoryError("x")))
    assert len(caught.value.partial.index) == 0


# ---------------------------------------------------------------- deaths


def test_a_worker_that_dies_costs_a_retry(tmp_path):
    act = partial(die_once, str(tmp_path / "marker"))
    found = ensemble.run(partial(tells, act=act, fatal=frozenset(numbers()[[7]])), RUNS, 7, workers=2, chunk=10)
    np.testing.assert_array_equal(found["value"], numbers())
    assert (tmp_path / "marker").exists()


def test_a_run_that_always_kills_its_worker_is_named_and_the_others_are_kept(tmp_path):
    experiment = partial(tells, act=die, fatal=frozenset(numbers()[[7]]))
    with pytest.raises(ensemble.Lost, match=r"worker of run 7 died 2 times") as caught:
        ensemble.run(experiment, RUNS, 7, workers=2, chunk=10, retries=1, save=tmp_path / "x.npz")
    partly = caught.value.partial
    assert caught.value.runs == (7,)
    assert partly.index.tolist() == [i for i in range(RUNS) if i != 7]
    assert not partly.complete
    assert np.flatnonzero(~partly.done).tolist() == [7]
    np.testing.assert_array_equal(partly["value"], np.delete(numbers(), 7))
    # the file has them too, and another function of the same name would finish
    with np.load(tmp_path / "x.npz") as file:
        assert file["index"].tolist() == partly.index.tolist()


def test_if_everything_dies_the_rest_is_not_tried():
    executor = Flaky(99, KilledWorker("x"))
    with pytest.raises(ensemble.Lost, match=r"^the worker of runs 0, 1, 2 died once ") as caught:
        ensemble.run(number, 1000, 7, executor=executor, workers=1, chunk=1, retries=0)
    assert caught.value.runs == (0, 1, 2)
    assert len(caught.value.partial.index) == 0
    assert len(executor.calls) < 10


def test_a_broken_pool_of_somebody_else_is_reported():
    experiment = partial(tells, act=die, fatal=frozenset(numbers()[[7]]))
    with (
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor,
        pytest.raises(ensemble.Lost, match="only its owner") as caught,
    ):
        ensemble.run(experiment, RUNS, 7, executor=executor, workers=1, chunk=2)
    assert 7 in caught.value.runs
    assert caught.value.partial.index.tolist() == list(range(6))


SCRIPT = """
import os, sys, time
if __name__ == "__mp_main__":
    os.write(1, b"a worker starts\\n")  # in one piece: the other one writes as well
from csa_utils import ensemble

first = True

def experiment(rng, pause=0.01):
    global first
    if first:
        os.write(1, b"a worker works\\n")
        first = False
    time.sleep(pause)
    return rng.random()

{guard}
    found = ensemble.run(experiment, int(sys.argv[1]), 7, workers=2, save=(sys.argv[2:] or [None])[0])
    print("done", found["value"].tolist())
"""
MAIN = 'if __name__ == "__main__":'


@pytest.fixture
def script(tmp_path):
    """A function that starts a script with an ensemble in a process of its own."""
    started = []

    def start(runs, guard=MAIN, save=()):
        path = tmp_path / "script.py"
        path.write_text(SCRIPT.format(guard=guard), encoding="utf-8")
        environment = os.environ | {"PYTHONPATH": str(Path(ensemble.__file__).parent.parent)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment}
        # its own group, as at a terminal: a signal to the group reaches the workers too
        started.append(subprocess.Popen([sys.executable, str(path), str(runs), *save], start_new_session=True, **pipes))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=20)


def test_a_script_needs_its_guard(script):
    _, errors = script(20, guard="if True:").communicate(timeout=60)
    assert 'must call ensemble.run under if __name__ == "__main__"' in errors
    assert "Lost: no worker process could start" in errors


# ---------------------------------------------------------------- Ctrl-C


def read_until(process, line):
    while (said := process.stdout.readline()) != line + "\n":
        assert said, process.stderr.read()


@pytest.mark.parametrize("moment", ["a worker starts", "a worker works"])
def test_ctrl_c_in_a_script(script, tmp_path, moment):
    path = tmp_path / "runs.npz"
    process = script(100_000, save=[str(path)])
    read_until(process, moment)
    if moment == "a worker works":
        time.sleep(0.5)
    start = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    out, errors = process.communicate(timeout=20)  # until the workers have let go of the pipes, too
    assert time.monotonic() - start < 2
    assert process.returncode != 0
    assert "done" not in out
    assert errors.count("Traceback") == 1, errors
    assert "csa_utils.ensemble.Interrupted: " in errors
    finished = int(re.search(r"(\d+) of 100000 runs are finished and kept in .partial", errors).group(1))
    assert list(tmp_path.glob("*.part")) == []
    if moment == "a worker works":
        assert finished >= 10
        with np.load(path) as file:
            assert len(file["index"]) == finished
            np.testing.assert_array_equal(file["values_0"], numbers(runs=file["index"].max() + 1)[file["index"]])
        runs = finished + 20
        out, errors = script(runs, save=[str(path)]).communicate(timeout=60)  # goes on
        assert out.splitlines()[-1] == f"done {numbers(runs=runs).tolist()}"
        assert errors == ""


def test_ctrl_c_in_this_process_and_on_from_there():
    runs, calls = 200, []

    def soon():
        threading.Timer(0.05, interrupt).start()

    experiment = partial(tells, act=soon, fatal=frozenset(numbers()[[3]]), pause=0.02)
    with pytest.raises(ensemble.Interrupted) as caught:
        ensemble.run(experiment, runs, 7, workers=1)
    partly = caught.value.partial
    count = len(partly.index)
    assert 4 <= count < runs
    assert partly.index.tolist() == list(range(count))
    assert str(caught.value) == f"{count} of {runs} runs are finished and kept in .partial"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    on = dataclasses.replace(partly, experiment=ensemble.run(calls_of([]), 1, 7, workers=1).experiment)
    found = ensemble.run(calls_of(calls), runs, 7, workers=1, resume=on)
    np.testing.assert_array_equal(found["value"], numbers(runs=runs))
    assert len(calls) == runs - count


@pytest.mark.parametrize(
    ("where", "pause", "least"), [("processes", 0.01, 5), ("threads", 0.01, 5), ("processes", 60.0, 0)]
)
def test_ctrl_c_with_workers_keeps_what_is_done_of_a_chunk(tmp_path, where, pause, least):
    marker, pressed = tmp_path / "marker", []

    def soon():
        while not marker.exists():
            time.sleep(0.01)
        time.sleep(0.3)
        pressed.append(time.monotonic())
        interrupt()

    experiment = partial(tells, act=marker.touch, fatal=frozenset(numbers()[[0]]), pause=pause)
    threading.Thread(target=soon, daemon=True).start()
    with ThreadPoolExecutor(2) as threads:
        executor = threads if where == "threads" else None
        with pytest.raises(ensemble.Interrupted) as caught:
            ensemble.run(experiment, 10_000, 7, workers=2, chunk=5000, executor=executor)
        assert time.monotonic() - pressed[0] < 3
    partly = caught.value.partial
    assert len(partly.index) >= least
    if least:
        np.testing.assert_array_equal(partly["value"], numbers(runs=partly.index[-1] + 1)[partly.index])


def test_workers_end_with_their_owner(script):
    process = script(100_000)
    read_until(process, "a worker works")
    process.kill()
    process.communicate(timeout=10)  # until the workers have let go of the pipes


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_tells_its_run_and_keeps_the_others(workers):
    experiment = partial(tells, act=fail, fatal=frozenset(numbers()[[7]]))
    with pytest.raises(ZeroDivisionError, match=r"^no luck\n") as caught:
        ensemble.run(experiment, RUNS, 7, workers=workers, chunk=20)
    note, *rest = caught.value.__notes__
    assert note == "In run 7, spawn key (7,).  It can be repeated with rng = ensemble.generator(seed, 7)."
    assert set(range(7)) <= set(caught.value.partial.index.tolist())
    with pytest.raises(ZeroDivisionError):
        experiment(ensemble.generator(7, 7))
    assert "in fail" in "".join(rest) or any(e.name == "fail" for e in caught.traceback)


def test_an_error_that_does_not_travel_arrives_as_text():
    experiment = partial(tells, act=fail_brittly, fatal=frozenset(numbers()[[7]]))
    with pytest.raises(Brittle):
        ensemble.run(experiment, RUNS, 7, workers=1)
    with pytest.raises(RuntimeError, match=r"^Brittle: this and that\n") as caught:
        ensemble.run(experiment, RUNS, 7, workers=2)
    assert "In run 7," in caught.value.__notes__[0]


def in_turn(*values):
    """An experiment that returns these."""
    left = list(values)
    return lambda rng: left.pop(0)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([np.zeros(2), np.zeros(2), np.zeros(3)], "same shapes, got (2,) in run 0 and (3,) in run 2 for 'value'"),
        ([0.0, [0.0]], "same shapes, got () in run 0 and (1,) in run 1 for 'value'"),
        ([{"a": 1}, {"a": 1}, {"b": 1}], "same names, got ['a'] in run 0, ['b'] in run 2"),
        ([{"a": 1}, 1.0], "same names, got ['a'] in run 0, ['value'] in run 1"),
        ([1.0, (1.0, 2.0)], "run 1 must return a number, an array or a dict by name, got a tuple of 2"),
        ([1.0, "one"], "run 1 must return numbers, got str for 'value'"),
        ([None], "run 0 must return numbers, got NoneType for 'value'"),
        ([[[1.0], [1.0, 2.0]]], "run 0 must return arrays of numbers, got a ragged 'value'"),
        ([{}], "run 0 must return results with names, got the names []"),
        ([{1: 2.0}], "run 0 must return results with names, got the names [1]"),
    ],
)
@pytest.mark.parametrize("chunk", [1, 10])
def test_what_runs_return_must_fit_together(values, words, chunk):
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        ensemble.run(in_turn(*values), len(values), 7, workers=1, chunk=chunk)
    assert len(caught.value.partial.index) == len(values) - 1


def test_infinite_results_are_results():
    found = ensemble.run(in_turn(1.0, np.inf, np.nan), 3, 7, workers=1)
    np.testing.assert_array_equal(found["value"], [1.0, np.inf, np.nan])


GOOD = {"experiment": number, "runs": 3, "seed": 7, "workers": 1}


def spawned():
    sequence = np.random.SeedSequence(7)
    sequence.spawn(2)
    return sequence


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("experiment", 3, "must be a function experiment(rng), got 3"),
        ("runs", 0, "must be >= 1, got 0"),
        ("runs", 2.0, "must be a whole number, got 2.0"),
        ("runs", True, "must be a whole number, got True"),
        ("seed", -1, "must be >= 0, got -1"),
        ("seed", 1.5, "must be a whole number, got 1.5"),
        ("seed", True, "must be a whole number, got True"),
        ("seed", None, "must be a whole number, got None"),
        ("seed", spawned(), "must be a SeedSequence that has not spawned, got one with 2"),
        ("executor", "pool", "must be a concurrent.futures.Executor, got 'pool'"),
        ("executor", ThreadPoolExecutor, "must be a concurrent.futures.Executor, got <class"),
        ("workers", 0, "must be >= 1, got 0"),
        ("workers", 1.0, "must be a whole number, got 1.0"),
        ("progress", 1, "must be True, False or None, got 1"),
        ("save", 3, "must be the path of a file, got 3"),
        ("save", "", "must be the path of a file, got ''"),
        ("save", ".", "must be the path of a file, got the folder "),
        ("save", "no/such/folder/x.npz", "must be in a folder that exists, got "),
        ("resume", "x.npz", "must be an Ensemble, got 'x.npz'"),
        ("retries", -1, "must be >= 0, got -1"),
        ("retries", 1.0, "must be a whole number, got 1.0"),
        ("chunk", 0, "must be >= 1, got 0"),
        ("chunk", "all", "must be a whole number, got 'all'"),
    ],
)
def test_bad_arguments_are_refused(name, value, words):
    with pytest.raises(ValueError, match=f"^{name} {re.escape(words)}"):
        ensemble.run(**GOOD | {name: value})


def test_generator_refuses_bad_arguments():
    for seed, i, words in ((-1, 0, "seed must be >= 0"), (7, -1, "i must be >= 0"), (7, 1.0, "i must be a whole")):
        with pytest.raises(ValueError, match=words):
            ensemble.generator(seed, i)


# ---------------------------------------------------------------- files


def calls_of(found):
    """`number`, but it counts its calls."""

    def experiment(rng):
        found.append(1)
        return rng.random()

    experiment.__qualname__ = "number"
    return experiment


def test_a_saved_ensemble_goes_on(tmp_path):
    path, calls = tmp_path / "x.npz", []
    for runs, new in ((10, 10), (10, 0), (25, 15), (5, 0), (25, 0)):
        calls.clear()
        found = ensemble.run(calls_of(calls), runs, 7, workers=1, save=path)
        np.testing.assert_array_equal(found["value"], numbers(runs=runs))
        assert len(calls) == new
    assert [p.name for p in tmp_path.iterdir()] == ["x.npz"]


def test_holes_are_filled_and_what_lies_beyond_stays(tmp_path):
    path, calls, values = tmp_path / "x.npz", [], numbers()
    index = np.array([1, 4, 30])
    partly = ensemble.Ensemble(7, RUNS, index, {"value": values[index]}, f"{number.__module__}.number")
    found = ensemble.run(calls_of(calls), 10, 7, workers=1, save=path, resume=partly)
    np.testing.assert_array_equal(found["value"], values[:10])
    assert len(calls) == 8
    with np.load(path) as file:
        assert file["index"].tolist() == [*range(10), 30]
    ensemble.run(calls_of(calls), RUNS, 7, workers=1, save=path)
    assert len(calls) == RUNS - 3


def test_names_shapes_and_kinds_survive_the_file(tmp_path, expected):
    for runs in (17, RUNS):
        found = ensemble.run(sample, runs, 7, workers=1, save=tmp_path / "x.npz")
    same(found, expected)


def test_an_error_leaves_the_finished_runs_in_the_file(tmp_path):
    path = tmp_path / "x.npz"
    fails = partial(tells, act=fail, fatal=frozenset(numbers()[[7]]))
    with pytest.raises(ZeroDivisionError):
        ensemble.run(fails, RUNS, 7, workers=1, chunk=5, save=path)
    with np.load(path) as file:
        assert file["index"].tolist() == list(range(7))


def test_the_file_is_written_now_and_then(tmp_path, monkeypatch):
    monkeypatch.setattr(ensemble, "_SAVE_SECONDS", 0)
    monkeypatch.setattr(ensemble, "_SAVE_SHARE", 0)
    path, seen = tmp_path / "x.npz", []

    def experiment(rng):
        if path.exists():
            with np.load(path) as file:
                seen.append(len(file["index"]))
        return rng.random()

    experiment.__qualname__ = "experiment"
    ensemble.run(experiment, 10, 7, workers=1, chunk=1, save=path)
    assert seen == list(range(1, 10))


A = np.arange(5000.0)
B = A.copy()
B[2500] = 0  # repr shows no difference


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 8}, "seed"),
        ({"seed": np.random.SeedSequence(7, spawn_key=(0,))}, "seed"),
        ({"seed": np.random.SeedSequence(7, pool_size=8)}, "seed"),
        ({"experiment": number}, "experiment"),
        ({"experiment": partial(sample, size=4)}, "experiment"),
        ({"experiment": partial(sample, size=B)}, "experiment"),
        ({"experiment": sample}, "experiment"),
    ],
)
def test_runs_of_something_else_are_never_mixed_in(tmp_path, change, words):
    path, call = tmp_path / "x.npz", GOOD | {"experiment": partial(_size_of, size=A)}
    first = ensemble.run(**call, save=path)
    content = path.read_bytes()
    if "size" in getattr(change.get("experiment"), "keywords", {}):
        change = {"experiment": partial(_size_of, **change["experiment"].keywords)}
    with pytest.raises(ValueError, match=f"^save must hold runs of the same {words}"):
        ensemble.run(**call | change, save=path)
    with pytest.raises(ValueError, match=r"^resume must hold runs of "):
        ensemble.run(**call | change, resume=first)
    assert path.read_bytes() == content
    assert ensemble.run(**call | {"experiment": partial(_size_of, size=A.copy())}, save=path).complete


def _size_of(rng, size):
    return np.size(size)


@pytest.mark.parametrize("kind", ["empty", "text", "half", "flipped", "another npz", "npy", "pickled", "wrong index"])
def test_broken_and_foreign_files_are_refused(tmp_path, kind):
    path = tmp_path / "x.npz"
    ensemble.run(**GOOD, save=path)
    content = path.read_bytes()
    with np.load(path) as file:
        parts = dict(file)
    if kind == "empty":
        path.write_bytes(b"")
    elif kind == "text":
        path.write_text("not an archive", encoding="utf-8")
    elif kind == "half":
        path.write_bytes(content[: len(content) // 2])
    elif kind == "flipped":
        at = content.index(parts["values_0"].tobytes())
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    elif kind == "another npz":
        np.savez(path, x=np.zeros(3))
    elif kind == "npy":
        with path.open("wb") as file:
            np.save(file, np.zeros(3))
    elif kind == "pickled":
        np.savez(path, **parts | {"values_0": np.array([None] * 3)})
    else:
        np.savez(path, **parts | {"index": np.array([0, 2, 1])})
    content = path.read_bytes()
    with pytest.raises(ValueError, match=r"^save must be a new file or one that ensemble.run wrote, got "):
        ensemble.run(**GOOD, save=path)
    assert path.read_bytes() == content


def test_files_need_a_function_with_a_name(tmp_path):
    with pytest.raises(ValueError, match=r"^save needs a function with a name of its own, got .*<lambda>"):
        ensemble.run(**GOOD | {"experiment": lambda rng: 1.0}, save=tmp_path / "x.npz")


def test_a_file_that_cannot_be_written_loses_nothing(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError("No space left on device")

    monkeypatch.setattr(ensemble.np, "savez", full)
    with pytest.raises(OSError, match="No space") as caught:
        ensemble.run(**GOOD, save=tmp_path / "x.npz")
    assert caught.value.partial.complete
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- statistics and looks


def test_statistics_by_hand():
    found = ensemble.run(in_turn(*np.array([[1.0, 0.0], [2.0, 0.0], [6.0, 3.0]])), 3, 7, workers=1)
    np.testing.assert_array_equal(found.mean(), [3.0, 1.0])
    np.testing.assert_allclose(found.standard_error(), [np.sqrt(7 / 3), 1.0], rtol=1e-15)
    np.testing.assert_array_equal(found.quantile("value", 0.5), [2.0, 0.0])
    np.testing.assert_array_equal(found.quantile("value", [0, 0.25, 1]), [[1.0, 0.0], [1.5, 0.0], [6.0, 3.0]])


def test_statistics_of_truth_values_are_frequencies(expected):
    assert expected.mean("all") == np.mean(np.all(expected["x"] > 0, axis=1))
    assert expected.quantile("all", 1.0) == 1.0
    with pytest.raises(ValueError, match="quantiles need real numbers, got complex128 for 'phase'"):
        expected.quantile("phase", 0.5)


def test_the_standard_error_covers_the_truth_about_as_often_as_it_should():
    many = ensemble.run(in_turn(*np.random.default_rng(0).standard_normal((50, 2000))), 50, 7, workers=1)
    covered = np.mean(np.abs(many.mean()) < 1.96 * many.standard_error())
    assert covered == pytest.approx(0.944, abs=0.02)  # Student's t with 49 degrees of freedom


@pytest.mark.parametrize("q", [-0.1, 1.1, [0.5, 2.0], np.nan, "half"])
def test_quantiles_lie_between_0_and_1(expected, q):
    with pytest.raises(ValueError, match=r"^q must "):
        expected.quantile("x", q)


def test_missing_names_and_missing_runs_are_refused(expected):
    for look in (expected.mean, expected.standard_error, expected.__getitem__, lambda name: expected.quantile(name, 0)):
        with pytest.raises(ValueError, match="name must be one of 'x', 'count', 'all', 'phase', got 'value'"):
            look("value")
    single = ensemble.run(number, 1, 7, workers=1)
    with pytest.raises(ValueError, match="at least 2 finished runs, got 1"):
        single.standard_error()
    empty = ensemble.Ensemble(7, 3, np.zeros(0, dtype=int), {}, "test.number")
    with pytest.raises(ValueError, match="no run is finished"):
        empty.mean()
    assert not np.any(empty.done)


def test_an_ensemble_says_what_it_is():
    found = ensemble.run(partial(sample, size=2), 3, 7, workers=1)
    name = sample.__module__
    each = "each x (2,) float64, count () int64, all () bool, phase () complex128"
    assert repr(found) == f"Ensemble(3 runs of {name}.sample(size=2), seed 7; {each})"
    empty = ensemble.Ensemble(np.random.SeedSequence(5, spawn_key=(1,)), 3, np.zeros(0, dtype=int), {}, "test.number")
    assert repr(empty) == "Ensemble(0 of 3 runs of test.number, seed 5 (1,))"
    with pytest.raises(AttributeError):
        found.runs = 4


@pytest.mark.parametrize(
    ("progress", "terminal", "shown"), [(None, False, 0), (None, True, 1), (False, True, 0), (True, False, 1)]
)
def test_the_bar_is_for_terminals(capsys, monkeypatch, progress, terminal, shown):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    ensemble.run(number, 3, 7, workers=1, progress=progress)
    out, errors = capsys.readouterr()
    assert out == ""
    assert ("3/3" in errors) == bool(shown)
    assert bool(errors) == bool(shown)
