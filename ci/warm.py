"""Compile the loops of csa_utils once, before several processes ask for them at a time.

Machine code is stored; when nothing has changed this returns at once.
"""

from __future__ import annotations

import sys

__all__ = ["warm"]


def warm() -> None:
    """Have every loop that chapters commonly use compiled and stored."""
    import numpy as np

    from csa_utils import attention, circle, compiled, sphere
    from csa_utils.simulate import simulate

    if compiled.is_warm():
        return
    print("Compiling the loops of csa_utils, once: about a minute", flush=True)
    rng = np.random.default_rng(0)
    x = sphere.uniform(3, 3, rng)
    attention.field(x)
    attention.field(sphere.uniform(700, 3, rng))
    circle.field([0.0, 1.0])
    for method in ("explicit", "implicit"):
        simulate(x, [0.1], method=method)
    compiled.mark_warm()


if __name__ == "__main__":
    sys.exit(warm())
