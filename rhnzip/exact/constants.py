"""Numbers that define the arithmetic; changing one of them changes every archive.

The arithmetic is version `ARITHMETIC_VERSION` (docs/exactness.md). Version 0 makes no promise yet: archives
of version 0 decode with the release that wrote them.
"""

from __future__ import annotations

ARITHMETIC_VERSION = 0

SYMBOLS = 256
"""Size V of the alphabet: bytes."""

COUNT_TOTAL = (1 << 24) - SYMBOLS
"""Sum S of every row of counts; the range coder sees P(s) = (count + 1) / 2^24."""

TINY = 2.0**-60
"""Kept float values below this in magnitude are set to zero, so that no subnormal number is ever met."""

HUGE = 2.0**40
"""Kept float values are clamped to this magnitude; model files beyond it are refused."""

INT8_MAX = 127

MAX_INNER = 1 << 17
"""Largest inner dimension K of an int8 product: 127 * 127 * 2^17 < 2^31."""

# tanh(x) = x * P(x^2) / Q(x^2) for |x| <= 6, minimax fit by iteratively reweighted least squares; the
# argument is clamped outside. Largest error 6.6e-6 inside, 1.5e-5 beyond; |result| < 1 everywhere.
TANH_LIMIT = 6.0
TANH_P = (0.9999711513519287, 0.11447270959615707, 0.0014955527149140835)
TANH_Q = (0.44771409034729004, 0.01748739928007126, 5.518598118214868e-05)

# Softmax: logits become fixed-point powers of two with LOGIT_FRACTION fractional bits, clamped to
# +-LOGIT_LIMIT (in octaves); 2^-f comes from an integer table with EXP_BITS bits.
LOGIT_FRACTION = 10
LOGIT_LIMIT = 64
LOG2_E = 1.4426950216293335
EXP_BITS = 28

# Layer norm: a row becomes integers of at most NORM_LEVELS by its largest magnitude, or by NORM_LEAST where
# that is larger; NORM_EPSILON is added to the variance. In the gradient normalised values count in steps of
# 1 / NORM_FINE: they are at most sqrt(N) <= 2^8.
NORM_LEVELS = 32767
NORM_LEAST = 2.0**-20
NORM_EPSILON = 1e-3
NORM_FINE = 4096.0


def exp2_table() -> list[int]:
    """Return round(2^(EXP_BITS - i / 2^LOGIT_FRACTION)) for all i below 2^LOGIT_FRACTION.

    Integer square roots make them: floating-point library functions differ between machines, integer
    arithmetic does not.

    >>> table = exp2_table()
    >>> table[0] == 1 << 28, table[512] == round(2**27.5), len(table)
    (True, True, 1024)
    """
    from math import isqrt

    guard = 128  # fractional bits; each square root keeps all of them
    one = 1 << guard
    # roots[k] = 2^(-2^-(k+1)), from repeated square roots of 1/2
    roots = []
    value = one >> 1
    for _ in range(LOGIT_FRACTION):
        value = isqrt(value << guard)
        roots.append(value)
    table = []
    for index in range(1 << LOGIT_FRACTION):
        power = one
        for bit in range(LOGIT_FRACTION):
            if index >> (LOGIT_FRACTION - 1 - bit) & 1:
                power = power * roots[bit] >> guard
        shift = guard - EXP_BITS
        table.append((power + (1 << (shift - 1))) >> shift)
    return table
