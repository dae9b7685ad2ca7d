"""Leading eigenspaces of matrices whose Jordan form is known because we built them from it."""

import numpy as np
import pytest
from scipy.linalg import block_diag, subspace_angles

from csa_utils import spectrum

SEEDS = range(20)

# Jordan blocks (real part, imaginary part, size); a complex block stands for a conjugate pair.
FAMILY = {
    "one number": [(-2, 0, 1)],
    "simple real": [(2, 0, 1), (1, 0, 1), (-1, 0, 1)],
    "simple negative": [(-1, 0, 1), (-5, 0, 1), (-5, 0, 1)],
    "simple zero": [(0, 0, 1), (-1, 0, 1), (-3, 0, 1)],
    "double": [(1, 0, 1), (1, 0, 1), (0.5, 0, 1)],
    "multiple of the identity": [(1, 0, 1)] * 4,
    "zero matrix": [(0, 0, 1)] * 3,
    "J2": [(1, 0, 2), (-1, 0, 1)],
    "J3": [(1, 0, 3), (0, 0, 1)],
    "J4": [(-1, 0, 4), (-2, 0, 1)],
    "nothing but J3": [(1, 0, 3)],
    "nilpotent": [(0, 0, 3), (0, 0, 1)],
    "J2 + J1": [(1, 0, 2), (1, 0, 1), (0, 0, 1)],
    "J2 + J2": [(1, 0, 2), (1, 0, 2), (-1, 0, 1)],
    "J3 + J2 + J1": [(1, 0, 3), (1, 0, 2), (1, 0, 1)],
    "J1 over J3": [(1, 0, 1), (0, 0, 3)],
    "pair": [(1, 2, 1), (0, 0, 1)],
    "negative pair": [(-1, 0.5, 1), (-2, 0, 1), (-3, 1, 1)],
    "rotation": [(0, 1, 1), (0, 3, 1)],
    "double pair": [(1, 2, 1), (1, 2, 1), (0, 0, 1)],
    "complex J2": [(1, 2, 2), (-1, 0, 1)],
    "complex J3": [(-1, 1, 3), (-2, 0, 1)],
    "complex J2 + J1": [(0, 1, 2), (0, 1, 1)],
    "real and pair": [(1, 0, 1), (1, 2, 1), (0.2, 0, 1)],
    "real J2 and pair": [(1, 0, 2), (1, 2, 1), (0, 0, 1)],
    "real and complex J2": [(1, 0, 1), (1, 2, 2), (0, 0, 1)],
    "real J2 and complex J2": [(1, 0, 2), (1, 2, 2)],
    "two pairs": [(1, 1, 1), (1, 3, 1), (0, 0, 1)],
    "two pairs, one J2": [(1, 1, 1), (1, 3, 2)],
    "large modulus below": [(1, 0, 1), (-9, 0, 1), (-2, 20, 1)],
    "pair over a larger real": [(0.5, 7, 1), (0.25, 0, 2), (-8, 0, 1)],
}


def jordan_block(real, imaginary, size):
    if imaginary == 0:
        return real * np.eye(size) + np.eye(size, k=1)
    rotation = np.array([[real, -imaginary], [imaginary, real]])
    return np.kron(np.eye(size), rotation) + np.kron(np.eye(size, k=1), np.eye(2))


def random_similarity(d, rng):
    """A matrix that is not orthogonal, but not ill-conditioned either."""
    left, _ = np.linalg.qr(rng.standard_normal((d, d)))
    right, _ = np.linalg.qr(rng.standard_normal((d, d)))
    return left * rng.uniform(0.3, 3, d) @ right


class Known:
    """A random matrix with the given Jordan blocks, and its leading eigenspaces."""

    def __init__(self, blocks, seed):
        rng = np.random.default_rng(seed)
        form = [jordan_block(*block) for block in blocks]
        ends = np.cumsum([len(J) for J in form])
        S = random_similarity(ends[-1], rng)
        inverse = np.linalg.inv(S)
        self.scale = 10 ** rng.uniform(-6, 6)
        self.V = self.scale * (S @ block_diag(*form) @ inverse)

        levels = sorted({real for real, _, _ in blocks}, reverse=True)
        self.growth = levels[0] * self.scale
        self.gap = (levels[0] - levels[1]) * self.scale if len(levels) > 1 else np.inf
        top = [(*block, end) for block, end in zip(blocks, ends, strict=True) if block[0] == levels[0]]
        frequencies = {imaginary for _, imaginary, _, _ in top}
        self.kind = "real" if frequencies == {0} else "mixed" if 0 in frequencies else "complex"
        self.eigenvalues = [self.growth + 1j * self.scale * w for w in sorted(frequencies | {-w for w in frequencies})]
        self.jordan = max(size for _, _, size, _ in top)

        members, first, last = [], [], []  # N^{k-1} maps the last vectors of a largest block to its first
        for _, imaginary, size, end in top:
            width = 2 if imaginary else 1
            members += range(end - size * width, end)
            if size == self.jordan:
                first += range(end - size * width, end - (size - 1) * width)
                last += range(end - width, end)
        self.generalised, self.basis = S[:, members], S[:, first]
        self.projector = S[:, members] @ inverse[members]
        self.amplifier = self.scale ** (self.jordan - 1) * S[:, first] @ inverse[last]


def angle(A, B):
    """Largest principal angle between two column spaces."""
    assert A.shape == B.shape
    return subspace_angles(A, B).max() if A.size else 0.0


@pytest.mark.parametrize("name", FAMILY)
def test_every_spectral_type_is_recognised(name):
    for seed in SEEDS:
        known = Known(FAMILY[name], seed)
        found = spectrum.leading(known.V)
        d, norm = len(known.V), np.linalg.norm(known.V, 2)
        assert (found.multiplicity, found.jordan, found.kind) == (
            known.generalised.shape[1],
            known.jordan,
            known.kind,
        )
        assert found.tolerance == pytest.approx(spectrum.TOLERANCE * norm, rel=1e-12, abs=0)
        assert found.growth == pytest.approx(known.growth, abs=1e-12 * norm)
        assert found.gap == pytest.approx(known.gap, abs=1e-4 * norm)
        np.testing.assert_allclose(found.eigenvalues, known.eigenvalues, rtol=0, atol=1e-11 * norm)

        assert angle(found.generalised, known.generalised) < 1e-9
        assert angle(found.basis, known.basis) < 1e-9
        for Z in (found.generalised, found.basis, found.exceptional):
            np.testing.assert_allclose(Z.T @ Z, np.eye(Z.shape[1]), atol=1e-13)

        P, A = found.projector, found.amplifier
        np.testing.assert_allclose(P, known.projector, atol=1e-9)
        np.testing.assert_allclose(P @ P, P, atol=1e-9)
        np.testing.assert_allclose(P @ known.V, known.V @ P, atol=1e-9 * norm)
        assert np.trace(P) == pytest.approx(found.multiplicity, abs=1e-9)
        np.testing.assert_allclose(A, known.amplifier, atol=1e-9 * norm ** (known.jordan - 1))
        assert found.exceptional.shape == (d, d - found.basis.shape[1])
        np.testing.assert_allclose(A @ found.exceptional, 0, atol=1e-9 * norm ** (known.jordan - 1))


@pytest.mark.parametrize("d", [1, 2, 3, 5, 8, 16, 32, 64])
def test_a_gaussian_matrix_is_never_degenerate(d):
    for seed in SEEDS:
        V = np.random.default_rng(seed).standard_normal((d, d))
        found, w = spectrum.leading(V), np.linalg.eigvals(V)
        assert found.jordan == 1
        assert found.multiplicity == len(found.eigenvalues) == {"real": 1, "complex": 2}[found.kind]
        assert found.growth == pytest.approx(w.real.max(), abs=1e-11)
        assert found.gap > 1e-10


@pytest.mark.parametrize("sign", [1, -1])
def test_leading_means_the_real_part_and_not_the_modulus(sign):
    found = spectrum.leading(sign * np.diag([1.0, -5.0, 2.0]))
    np.testing.assert_allclose(np.abs(found.basis[:, 0]), np.eye(3)[2 if sign == 1 else 1], atol=1e-15)
    assert found.growth == (2 if sign == 1 else 5)


def rounded_jordan(noise):
    return np.eye(4) + np.eye(4, k=1) + noise * np.random.default_rng(0).standard_normal((4, 4))


@pytest.mark.parametrize(
    ("V", "tol", "multiplicity", "jordan"),
    [
        (np.diag([1, 1 - 1e-6]), None, 1, 1),
        (np.diag([1, 1 - 1e-9]), None, 1, 1),
        (np.diag([1, 1 - 1e-11]), None, 2, 1),
        (np.diag([1, 1 - 1e-13]), None, 2, 1),
        (np.diag([1, 1 - 1e-6]), 1e-4, 2, 1),
        (np.array([[1, 1e-6], [0, 1]]), None, 2, 2),
        (np.array([[1, 1e-13], [0, 1]]), None, 2, 1),
        (np.array([[1, 1e-6], [0, 1]]), 1e-4, 2, 1),
        (np.array([[1, -1e-6], [1e-6, 1]]), None, 2, 1),
        (rounded_jordan(1e-14), None, 4, 4),
        (rounded_jordan(1e-5), 1e-3, 4, 4),
    ],
)
def test_matrices_closer_than_the_tolerance_are_not_told_apart(V, tol, multiplicity, jordan):
    found = spectrum.leading(V) if tol is None else spectrum.leading(V, tol)
    assert (found.multiplicity, found.jordan) == (multiplicity, jordan)


def test_a_jordan_block_that_is_broken_visibly_is_simple():
    found = spectrum.leading(rounded_jordan(1e-5))
    assert found.jordan == 1
    assert found.gap > 1e-2  # 1e-5 splits a block of size 4 by about 1e-5^(1/4)


def test_a_stack_gives_one_answer_for_each_matrix():
    V = np.random.default_rng(0).standard_normal((2, 3, 4, 4))
    stack = spectrum.leading(V)
    assert stack.shape == (2, 3)
    for i in np.ndindex(2, 3):
        np.testing.assert_array_equal(stack[i].projector, spectrum.leading(V[i]).projector)
    assert spectrum.leading(V[:, :0]).shape == (2, 0)


def test_transposed_matrices_have_the_transposed_projector():
    for seed in SEEDS:
        V = np.random.default_rng(seed).standard_normal((6, 6))
        np.testing.assert_allclose(spectrum.leading(V.T).projector, spectrum.leading(V).projector.T, atol=1e-10)
