"""Slow, obvious twins of the compiled loops: the formulas as they are written."""

import numpy as np


def field(dynamics, x):
    """The field of unit tokens x (..., n, d): output minus its radial part, in plain NumPy.

    Also defined off the sphere, where it continues the formula that
    `csa_utils.attention.jacobian` differentiates.
    """
    a = dynamics.output(x)
    return a - np.sum(a * x, axis=-1, keepdims=True) * x


def field_by_loops(x, *, Q, K, V, beta, causal=True, frozen=(), frozen_weights=()):
    """The field of tokens x (n, d), one token and one key at a time."""
    n, d = x.shape
    keys = [*frozen, *x]
    counts = [*frozen_weights, *np.ones(n)]
    out = np.empty_like(x)
    for k in range(n):
        seen = len(frozen) + (k + 1 if causal else n)
        logits = [beta * (Q @ x[k]) @ (K @ keys[j]) for j in range(seen)]
        weights = [counts[j] * np.exp(logits[j] - max(logits)) for j in range(seen)]
        a = np.zeros(d)
        for j in range(seen):
            a += weights[j] * (V @ keys[j])
        a /= sum(weights)
        out[k] = a - (a @ x[k]) * x[k]
    return out


def circle_field(phi, beta, causal=True):
    """Angular velocities of tokens at angles phi (n,) for Q = K = V = I."""
    n = len(phi)
    out = np.empty(n)
    for k in range(n):
        others = phi[: k + 1] if causal else phi
        weights = np.exp(beta * (np.cos(others - phi[k]) - 1))
        out[k] = np.sum(weights * np.sin(others - phi[k])) / weights.sum()
    return out
