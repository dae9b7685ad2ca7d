"""The other side: how the same work is usually written with other libraries.

Each peer is correct, warm and in float64, and is given what its library is good at.
Libraries are imported when a peer is made, not before; `Missing` says which one is
not installed.  Where nothing else is said, Q = K = V = I.

The first functions return arrays.  Those whose library wants its own arrays or a
compilation first return a function without arguments, which does the work.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache

import numpy as np
from scipy.integrate import solve_ivp

__all__ = [
    "DT",
    "Failed",
    "Missing",
    "diffrax_run",
    "lsoda_angles",
    "lu_factor",
    "numpy_attention",
    "numpy_euler",
    "numpy_field",
    "scipy_run",
    "torch_field",
]

#: Step of the Euler script.
DT = 0.1


class Missing(Exception):
    """A library is not installed; the message says which."""


class Failed(Exception):
    """A peer gave up; the message says how."""


# NumPy


@cache
def _mask(n: int) -> np.ndarray:
    return np.tri(n, dtype=bool)


def _dense(query: np.ndarray, key: np.ndarray, values: np.ndarray, beta: float) -> np.ndarray:
    scores = beta * (query @ np.swapaxes(key, -1, -2))
    scores = np.where(_mask(query.shape[-2]), scores, -np.inf)
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores @ values


def numpy_attention(x: np.ndarray, beta: float) -> np.ndarray:
    """Attention output of tokens (..., n, d): a dense masked softmax, in place where it can be."""
    return _dense(x, x, x, beta)


def numpy_field(x: np.ndarray, Q: np.ndarray, K: np.ndarray, V: np.ndarray, beta: float) -> np.ndarray:
    """Attention with matrices, projected to the tangent space."""
    return _tangent(x, _dense(x @ Q.T, x @ K.T, x @ V.T, beta))


def numpy_euler(x: np.ndarray, beta: float, steps: int, dt: float = DT) -> np.ndarray:
    """The usual script: a step along the attention output, then back to the sphere."""
    for _ in range(steps):
        x = x + dt * numpy_attention(x, beta)
        x = x / np.linalg.norm(x, axis=-1, keepdims=True)
    return x


def _tangent(x, a):
    return a - (a * x).sum(-1)[..., None] * x


# PyTorch


def torch_field(x: np.ndarray, Q: np.ndarray, K: np.ndarray, V: np.ndarray, beta: float) -> Callable[[], np.ndarray]:
    """Fused attention in float64 on the CPU, with matrices and projection."""
    torch = _library("torch")
    n, d = x.shape[-2:]
    # the fused kernel wants (batch, heads, n, d)
    tokens = torch.from_numpy(np.ascontiguousarray(x).reshape(-1, 1, n, d))
    q, k, v = (torch.from_numpy(np.ascontiguousarray(matrix.T)) for matrix in (Q, K, V))
    attention = torch.nn.functional.scaled_dot_product_attention

    def work() -> np.ndarray:
        with torch.inference_mode():
            a = attention(tokens @ q, tokens @ k, tokens @ v, is_causal=True, scale=beta)
            return _tangent(tokens, a).reshape(x.shape).numpy()

    return work


# SciPy


def scipy_run(x0: np.ndarray, t: float, beta: float, method: str, rtol: float, atol: float) -> np.ndarray:
    """solve_ivp with the NumPy field of one sequence, and back to the sphere at the end.

    Raises
    ------
    Failed
        If the solver gives up.
    """

    def field(_, y):
        x = y.reshape(x0.shape)
        return _tangent(x, numpy_attention(x, beta)).ravel()

    return _back_to_sphere(_solved(field, x0.ravel(), t, method, rtol, atol), x0.shape)


def lsoda_angles(phi0: np.ndarray, t: float, beta: float, rtol: float, atol: float) -> np.ndarray:
    """LSODA for the angles of one sequence on the circle, with a compiled field and Jacobian.

    Raises
    ------
    Failed
        If the solver gives up.
    """
    field, jacobian = _angle_functions()
    return _solved(
        lambda _, phi: field(phi, beta), phi0, t, "LSODA", rtol, atol, jac=lambda _, phi: jacobian(phi, beta)
    )


def lu_factor(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What a general implicit solver pays for every new Jacobian."""
    from scipy.linalg import lu_factor

    return lu_factor(matrix)


@cache
def _angle_functions():
    """Field and Jacobian for angles, compiled."""
    njit = _library("numba").njit

    @njit
    def field(phi, beta):
        velocity = np.empty_like(phi)
        for k in range(phi.size):
            total, moment = 0.0, 0.0
            for j in range(k + 1):
                # the largest logit is the token's own, beta cos 0
                w = np.exp(beta * (np.cos(phi[j] - phi[k]) - 1))
                total += w
                moment += w * np.sin(phi[j] - phi[k])
            velocity[k] = moment / total
        return velocity

    @njit
    def jacobian(phi, beta):
        n = phi.size
        J = np.zeros((n, n))
        for k in range(n):
            total, moment = 0.0, 0.0
            for j in range(k + 1):
                w = np.exp(beta * (np.cos(phi[j] - phi[k]) - 1))
                J[k, j] = w
                total += w
                moment += w * np.sin(phi[j] - phi[k])
            speed = moment / total
            against = 0.0
            for j in range(k):
                s, c = np.sin(phi[j] - phi[k]), np.cos(phi[j] - phi[k])
                J[k, j] = J[k, j] / total * (c - beta * s * (s - speed))
                against += J[k, j]
            J[k, k] = -against  # turning all angles together changes nothing
        return J

    return field, jacobian


def _solved(field, y0, t, method, rtol, atol, **more) -> np.ndarray:
    with np.errstate(all="ignore"):
        solution = solve_ivp(field, (0.0, t), y0, method=method, t_eval=[t], rtol=rtol, atol=atol, **more)
    if not solution.success or not np.all(np.isfinite(solution.y)):
        raise Failed(f"{method} gave up: {solution.message}")
    return solution.y[:, -1]


def _back_to_sphere(y, shape) -> np.ndarray:
    x = np.asarray(y).reshape(shape)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


# JAX


def diffrax_run(
    x0: np.ndarray, t: float, beta: float, solver: str, rtol: float, atol: float
) -> Callable[[], np.ndarray]:
    """One compiled run by a solver of diffrax, which picks its own steps, in float64.

    Parameters
    ----------
    solver : str
        "Tsit5" (explicit) or "Kvaerno5" (implicit).

    Returns
    -------
    callable
        Compiles on its first call.  It raises `Failed` if the solver gives up.
    """
    jax = _library("jax")
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_platforms", "cpu")
    diffrax, jnp = _library("diffrax"), _library("jax.numpy")
    mask = _mask(x0.shape[-2])

    def field(_, x, __):
        scores = jnp.where(mask, beta * (x @ x.T), -jnp.inf)
        return _tangent(x, jax.nn.softmax(scores, axis=-1) @ x)

    @jax.jit
    def solve(x):
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(field),
            getattr(diffrax, solver)(),
            t0=0.0,
            t1=t,
            dt0=None,
            y0=x,
            stepsize_controller=diffrax.PIDController(rtol=rtol, atol=atol),
            saveat=diffrax.SaveAt(t1=True),
            max_steps=10**7,
            throw=False,
        )
        return solution.ys[-1], solution.result == diffrax.RESULTS.successful

    start = jnp.asarray(x0)

    def work() -> np.ndarray:
        x, passed = solve(start)
        if not bool(passed):
            raise Failed(f"{solver} gave up")
        return _back_to_sphere(x, x0.shape)

    return work


def _library(name: str):
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Missing(f"{name.split('.')[0]} is not installed") from error
