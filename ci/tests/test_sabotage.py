"""The tests can fail: each slip below, made in a copy of the package, turns named tests red."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent.parent / "csa_utils"

# Proves that the copy is what ran.
ORIGIN = """
from pathlib import Path

import csa_utils


def test_the_copy_is_what_runs():
    assert Path(csa_utils.__file__).parent == Path({package!r})
"""

# The slip: replacements (file, text, other text), and the tests that must notice it.
SLIPS = {
    "flip the sign of V": (
        [
            ("kernels.py", "            total += M[a, b] * x[j, b]", "            total -= M[a, b] * x[j, b]"),
            ("kernels.py", "            value += S[b, c] * x[k, c]", "            value -= S[b, c] * x[k, c]"),
        ],
        [
            "test_attention.py::test_weights_output_and_field_are_the_formula",
            "test_attention.py::test_two_tokens_by_hand",
            "test_attention.py::test_on_the_circle_the_field_is_the_sum_of_h",
            "test_simulate.py::test_the_first_token_follows_the_matrix_exponential",
            "test_simulate.py::test_for_V_identity_all_tokens_end_at_the_first_one",
        ],
    ),
    "drop the mask": (
        [("kernels.py", "        keys = k + 1 if causal else n\n        own", "        keys = n\n        own")],
        [
            "test_attention.py::test_weights_output_and_field_are_the_formula",
            "test_attention.py::test_the_first_k_tokens_ignore_the_later_ones",
            "test_kernels.py::test_the_field_is_that_of_the_loops[40-3-causal]",
            "test_simulate.py::test_the_first_k_tokens_ignore_the_later_ones",
            "test_simulate.py::test_two_tokens_follow_the_quadrature",
        ],
    ),
    "transpose V": (
        [
            ("kernels.py", "            total += M[a, b] * x[j, b]", "            total += M[b, a] * x[j, b]"),
            ("kernels.py", "            value += S[b, c] * x[k, c]", "            value += S[c, b] * x[k, c]"),
        ],
        [
            "test_attention.py::test_weights_output_and_field_are_the_formula",
            "test_attention.py::test_two_tokens_by_hand",
            "test_attention.py::test_a_lone_token_feels_its_own_value",
            "test_kernels.py::test_the_field_is_that_of_the_loops[40-3-causal]",
            "test_simulate.py::test_the_first_token_follows_the_matrix_exponential",
        ],
    ),
    "drop the self term": (
        [
            (
                "kernels.py",
                "    d = x.shape[1]\n    radial = 0.0\n",
                "    d = x.shape[1]\n    radial = 0.0\n    if k:\n        z, own = z - own, 0.0\n",
            )
        ],
        [
            "test_attention.py::test_weights_output_and_field_are_the_formula",
            "test_attention.py::test_two_tokens_by_hand",
            "test_attention.py::test_on_the_circle_the_field_is_the_sum_of_h",
            "test_kernels.py::test_the_field_is_that_of_the_loops[40-3-causal]",
        ],
    ),
    "skip the projection": (
        [("kernels.py", "out[k, b] = a[b] - radial * x[k, b]", "out[k, b] = a[b]")],
        [
            "test_attention.py::test_weights_output_and_field_are_the_formula",
            "test_attention.py::test_a_lone_token_feels_its_own_value",
            "test_attention.py::test_the_field_is_tangent_and_vanishes_at_a_cluster_if_V_is_the_identity",
            "test_integrators.py::test_a_repelling_sphere_does_not_lose_its_tokens[DOP853]",
        ],
    ),
    "let tokens leave the sphere": (
        [("integrators/__init__.py", "return norm * self.at(y / norm)", "return self.at(y)")],
        [
            "test_integrators.py::test_the_field_is_asked_at_unit_vectors_only[rk4]",
            "test_integrators.py::test_a_repelling_sphere_does_not_lose_its_tokens[DOP853]",
        ],
    ),
    "forget the row maximum": (
        [("attention.py", "np.exp(logits - logits.max(axis=-1, keepdims=True))", "np.exp(logits)")],
        [
            "test_attention.py::test_rows_of_weights_sum_to_one_and_respect_the_mask",
            "test_attention.py::test_weights_are_stable_when_the_largest_logit_is_off_the_diagonal",
        ],
    ),
    "subtract the diagonal instead of the row maximum": (
        [
            (
                "attention.py",
                "np.exp(logits - logits.max(axis=-1, keepdims=True))",
                "np.exp(logits - np.diagonal(logits, axis1=-2, axis2=-1)[..., None])",
            )
        ],
        [
            "test_attention.py::test_weights_are_stable_when_the_largest_logit_is_off_the_diagonal",
            "test_attention.py::test_for_Q_minus_identity_the_diagonal_has_the_smallest_logit",
        ],
    ),
    "take the own logit for the largest": (
        [
            (
                "kernels.py",
                "                top = math.sqrt(q0 * q0 + q1 * q1)\n                if top > FAR:",
                "                if False:",
            )
        ],
        ["test_kernels.py::test_the_own_logit_may_be_the_smallest[2]"],
    ),
    "keep all of V in a token's own term": (
        [("kernels.py", "S = V - shift[:, None, None] * eye", "S = V + 0 * eye")],
        ["test_kernels.py::test_a_force_of_1e_55_keeps_its_digits"],
    ),
    "forget the query in the Jacobian on the circle": (
        [("kernels.py", " + (b0 * c0 + b1 * c1) - radial", " - radial")],
        ["test_kernels.py::test_a_linear_step_solves_the_dense_system[2-0-one core]"],
    ),
    "forget the query in the Jacobian": (
        [("kernels.py", "                    total += C[b, e] * B[c, e]", "                    total += 0.0")],
        ["test_kernels.py::test_a_linear_step_solves_the_dense_system[3-0-one core]"],
    ),
    "mistype a coefficient of the implicit method": (
        [("integrators/implicit.py", "= 8.083246796883634,", "= 8.083246796083634,")],
        ["test_adaptive.py::test_the_coefficients_satisfy_their_conditions"],
    ),
    "mistype a coefficient of its interpolant": (
        [("integrators/implicit.py", "= 10.126235084583453,", "= 10.126235088583453,")],
        ["test_adaptive.py::test_the_coefficients_satisfy_their_conditions"],
    ),
    "trust Fourier sums among clusters": (
        [("circle.py", "        if doubtful.any():", "        if False:")],
        ["test_circle.py::test_fourier_alone_loses_them_and_auto_does_not"],
    ),
    "weigh Fourier terms from zero": (
        [("circle.py", "am * (first + m), z, u)", "am * m, z, u)")],
        ["test_circle.py::test_dense_and_fourier_sums_agree"],
    ),
    "lead by modulus instead of real part": (
        [
            ("spectrum.py", "free = list(np.argsort(-w.real))", "free = list(np.argsort(-np.abs(w)))"),
            ("spectrum.py", "while free and w[free[0]].real >= floor:", "while free:"),
            (
                "spectrum.py",
                "growth = max(c.mean.real for c in clusters)",
                "growth = max(clusters, key=lambda c: abs(c.mean)).mean.real",
            ),
            (
                "spectrum.py",
                "top = [c for c in clusters if c.mean.real >= growth - u]",
                "top = [c for c in clusters if abs(c.mean.real - growth) <= u]",
            ),
        ],
        [
            "test_spectrum.py::test_leading_means_the_real_part_and_not_the_modulus",
            "test_spectrum.py::test_every_spectral_type_is_recognised[simple negative]",
            "test_spectrum.py::test_every_spectral_type_is_recognised[large modulus below]",
        ],
    ),
    "take less than for at most": (
        [("observables.py", "distances(x[i]) <= radius", "distances(x[i]) < radius")],
        ["test_observables.py::test_the_radius_itself_counts_as_near"],
    ),
    "measure angles by arccos": (
        [
            (
                "sphere.py",
                "return 2 * np.arctan2(np.linalg.norm(x - y, axis=-1), np.linalg.norm(x + y, axis=-1))",
                "return np.arccos(np.clip(np.sum(x * y, axis=-1), -1, 1))",
            )
        ],
        [
            "test_sphere.py::test_distance_of_nearly_equal_and_nearly_opposite_points",
            "test_sphere.py::test_distance_keeps_all_digits_of_any_separation",
            "test_observables.py::test_diameter_sees_separations_far_below_the_root_of_rounding",
        ],
    ),
}
NOTICED = sorted({test for _, tests in SLIPS.values() for test in tests})


def run_on_a_copy(folder, replacements, tests):
    """Run the tests against a changed copy of the package: the names of those that failed."""
    package = Path(shutil.copytree(PACKAGE, folder / "csa_utils", ignore=shutil.ignore_patterns("__pycache__")))
    for name, text, other in replacements:
        source = (package / name).read_text(encoding="utf-8")
        assert source.count(text) == 1, f"{name} holds {source.count(text)} times: {text}"
        (package / name).write_text(source.replace(text, other), encoding="utf-8")
    for name in {test.split("::")[0] for test in tests}:
        quick = (TESTS / name).read_text(encoding="utf-8").replace("SEEDS = range(20)", "SEEDS = range(3)")
        (folder / name).write_text(quick, encoding="utf-8")
    shutil.copy(TESTS / "twins.py", folder)
    (folder / "test_origin.py").write_text(ORIGIN.format(package=str(package)), encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-c", "pytest.ini", "--rootdir", ".", "--noconftest", "-q", "-rA"]
    command += ["--tb=no", "-p", "no:cacheprovider", "-W", "ignore", "test_origin.py", *tests]
    environment = os.environ | {"PYTHONPATH": str(folder), "PYTEST_ADDOPTS": "", "OMP_NUM_THREADS": "1"}
    environment["NUMBA_DISABLE_JIT"] = "1"  # plain Python runs a few small tests sooner than it is compiled
    if sys.dont_write_bytecode:  # then let the slips share one store, not compile scipy each
        environment |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder.parent / "bytecode")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert "PASSED test_origin.py::test_the_copy_is_what_runs" in done.stdout, done.stdout + done.stderr
    failed = set(re.findall(r"^FAILED (\S+?::\w+(?:\[[^]]*\])?)", done.stdout, flags=re.MULTILINE))
    assert done.returncode == (1 if failed else 0), done.stdout + done.stderr
    return failed


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_turns_tests_red(slip, tmp_path):
    replacements, tests = SLIPS[slip]
    failed = run_on_a_copy(tmp_path, replacements, tests)
    missed = [test for test in tests if not any(f == test or f.startswith(test + "[") for f in failed)]
    assert not missed, f"nobody noticed: {missed}"


def test_the_unchanged_copy_passes_them_all(tmp_path):
    assert run_on_a_copy(tmp_path, [], NOTICED) == set()
