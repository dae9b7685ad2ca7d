"""Stored machine code is dropped when any compiled source has changed, and only then."""

import os
import subprocess
import sys

import numpy as np
import pytest

from csa_utils import compiled


@pytest.fixture
def folder(tmp_path):
    for name in ("kernels.velocity.nbi", "kernels.velocity.1.nbc", "csa_utils.warm", "kernels.cpython.pyc"):
        (tmp_path / name).write_text("old")
    return tmp_path


def left(folder):
    return sorted(p.name for p in folder.iterdir())


def test_code_of_other_sources_is_dropped(folder):
    (folder / "csa_utils.fingerprint").write_text("of yesterday")
    compiled._drop_stale(str(folder))
    assert left(folder) == ["csa_utils.fingerprint", "kernels.cpython.pyc"]
    assert (folder / "csa_utils.fingerprint").read_text() == compiled._fingerprint()


def test_code_without_a_fingerprint_is_dropped(folder):
    compiled._drop_stale(str(folder))
    assert left(folder) == ["csa_utils.fingerprint", "kernels.cpython.pyc"]


def test_code_of_todays_sources_is_kept(folder):
    (folder / "csa_utils.fingerprint").write_text(compiled._fingerprint())
    before = left(folder)
    compiled._drop_stale(str(folder))
    assert left(folder) == before


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    compiled._drop_stale(str(tmp_path / "file" / "cache"))


def test_warm_is_remembered_until_the_sources_change(monkeypatch, tmp_path):
    monkeypatch.setattr(compiled, "_warm_mark", lambda: tmp_path / "csa_utils.warm")
    assert not compiled.is_warm()
    compiled.mark_warm()
    assert compiled.is_warm()
    monkeypatch.setattr(compiled, "_fingerprint", lambda: "of tomorrow")
    assert not compiled.is_warm()


def test_without_the_compiler_the_same_numbers_come_out():
    script = (
        "import numpy as np; from csa_utils import attention, circle, sphere; from csa_utils.simulate import simulate\n"
        "x = sphere.uniform(4, 3, np.random.default_rng(0))\n"
        "runs = [simulate(x, [1.0], beta=2.0, method=m).x for m in ('explicit', 'implicit')]\n"
        "print(*np.concatenate([attention.field(x).ravel(), circle.field([0.0, 1.0, 2.5]), *map(np.ravel, runs)]))\n"
    )
    found = []
    for disabled in ("0", "1"):
        environment = os.environ | {"NUMBA_DISABLE_JIT": disabled}
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True, timeout=120
        )
        found.append(np.array(done.stdout.split(), dtype=float))
    np.testing.assert_allclose(found[1], found[0], rtol=0, atol=1e-13)
