"""The tables that define the arithmetic."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal, localcontext

import numpy as np

from rhnzip.exact import constants


def test_exp2_table_is_rounded_to_the_nearest_integer() -> None:
    table = constants.exp2_table()
    with localcontext() as context:
        context.prec = 60
        for index, value in enumerate(table):
            power = Decimal(2) ** (constants.EXP_BITS - Decimal(index) / 1024)
            assert value == power.to_integral_value(ROUND_HALF_EVEN), index


def test_exp2_table_falls_from_one_to_above_a_half() -> None:
    table = constants.exp2_table()
    assert len(table) == 1 << constants.LOGIT_FRACTION
    assert table[0] == 1 << constants.EXP_BITS
    assert all(a > b for a, b in zip(table, table[1:], strict=False))
    assert table[-1] > 1 << (constants.EXP_BITS - 1)


def test_numbers_are_float32() -> None:
    numbers = (constants.TINY, constants.HUGE, constants.LOG2_E, constants.TANH_LIMIT)
    for number in (*numbers, *constants.TANH_P, *constants.TANH_Q):
        assert float(np.float32(number)) == number


def test_sums_fit() -> None:
    assert 127 * 127 * constants.MAX_INNER < 1 << 31
    assert constants.COUNT_TOTAL + constants.SYMBOLS == 1 << 24
