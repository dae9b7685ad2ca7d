"""How loops are compiled, and an exponential that they can do four at a time.

Machine code is stored beside the sources (or where NUMBA_CACHE_DIR says) and loaded by
later runs.  Numba looks at a function's own file only when it decides whether stored code
is still good; but compiled functions here call each other across files.  So the stored
code carries a fingerprint of all of them, and is dropped when it differs.

With NUMBA_DISABLE_JIT=1 everything runs as plain Python, a thousand times slower and
open to a debugger.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

# Threads that wait shall sleep: on a machine shared with others, spinning wastes whole
# time slices.  Read once, when the thread library is loaded; a value set before stays.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from numba import config, njit, types
from numba.extending import intrinsic

__all__ = ["FAST", "exp", "is_warm", "loop", "mark_warm"]

#: What the compiler may assume of sums: any order, fused multiply-adds, no NaN.
FAST = {"reassoc", "contract", "nnan", "ninf", "nsz", "arcp"}


def loop(**options) -> Callable:
    """Decorator: compile on first use, store the code, release the interpreter's lock.

    Parameters
    ----------
    **options
        Passed on to `numba.njit`; `fastmath` is `FAST` if left out.
    """

    def compile_later(function):
        settings = {"cache": True, "fastmath": FAST, "nogil": True, "boundscheck": False}
        dispatcher = njit(**settings | options)(function)
        if not config.DISABLE_JIT:
            _drop_stale(dispatcher.stats.cache_path)
        return dispatcher

    return compile_later


@functools.cache
def _fingerprint() -> str:
    """Of every source file of the package."""
    digest = hashlib.sha256()
    package = Path(__file__).parent
    for file in sorted(package.rglob("*.py")):
        text = file.read_bytes()
        if b"numba" in text or b"compiled" in text:
            digest.update(str(file.relative_to(package)).encode() + b"\0" + text)
    return digest.hexdigest()


@functools.cache
def _drop_stale(folder: str) -> None:
    """Remove machine code in `folder` that other sources than today's have made."""
    mark = Path(folder) / "csa_utils.fingerprint"
    with suppress(OSError):  # an unwritable folder holds nothing of ours
        if mark.exists() and mark.read_text(encoding="ascii") == _fingerprint():
            return
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.write_text(_fingerprint(), encoding="ascii")
        for file in [*mark.parent.glob("*.nb[ci]"), mark.with_name("csa_utils.warm")]:
            file.unlink(missing_ok=True)


def _warm_mark() -> Path:
    return Path(exp.stats.cache_path) / "csa_utils.warm"


def is_warm() -> bool:
    """Whether :func:`mark_warm` was called since the sources last changed."""
    if config.DISABLE_JIT:
        return True
    with suppress(OSError):
        return _warm_mark().read_text(encoding="ascii") == _fingerprint()
    return False


def mark_warm() -> None:
    """Remember that the common loops are compiled and stored, as the sources are now."""
    with suppress(OSError):
        _warm_mark().write_text(_fingerprint(), encoding="ascii")


@intrinsic
def _bits(typing, x):
    """The bits of a float64, as an int64."""

    def build(context, builder, signature, args):
        return builder.bitcast(args[0], context.get_value_type(types.int64))

    return types.int64(types.float64), build


@intrinsic
def _from_bits(typing, x):
    """The float64 with the bits of an int64."""

    def build(context, builder, signature, args):
        return builder.bitcast(args[0], context.get_value_type(types.float64))

    return types.float64(types.int64), build


# Only multiply-adds may be fused: reassociation would undo the two-part log 2.
@loop(fastmath={"contract"})
def exp(x):
    """e^x for x <= 700, to a relative error below 5e-16; 0 below x = -708.

    Written so that a loop over it becomes vector instructions, which a call of the C
    library's exp does not: about 1 ns a number.  The argument is split as
    x = k log 2 + r with log 2 in two parts and |r| <= log(2)/2; e^r is a polynomial of
    degree 11 that interpolates at Chebyshev's points (relative error 1.6e-17).
    """
    y = max(x, -708.0)
    shifted = y * 1.4426950408889634 + 6755399441055744.0  # adding 1.5 * 2^52 rounds to a whole number
    k = shifted - 6755399441055744.0
    r = y - k * 6.93147180369123816490e-01
    r = r - k * 1.90821492927058770002e-10
    r2 = r * r
    r4 = r2 * r2
    low = (1.0 + r) + (0.5000000000000019 + 0.1666666666666668 * r) * r2
    mid = (0.04166666666648795 + 0.008333333333319589 * r) + (0.0013888888952352863 + 0.00019841269890076403 * r) * r2
    high = (2.4801485441561313e-05 + 2.755724088722987e-06 * r) + (
        2.763265472252779e-07 + 2.5110049204818658e-08 * r
    ) * r2
    p = low + (mid + high * r4) * r4
    value = _from_bits(_bits(p) + (_bits(shifted) << 52))
    return value if x >= -708.0 else 0.0


if config.DISABLE_JIT:

    def exp(x):
        """e^x for x <= 700; 0 below x = -708."""
        return math.exp(x) if x >= -708.0 else 0.0
