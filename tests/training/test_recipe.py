from __future__ import annotations

from typing import Any

import pytest

from rhnzip.errors import TrainingError
from rhnzip.training.recipe import Recipe


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("optimizer", "lion"),
        ("rate", 0.0),
        ("rate", float("nan")),
        ("rate", float("inf")),
        ("schedule", "linear"),
        ("warmup", 1.0),
        ("final_rate", 1.5),
        ("decay", 0.5),
        ("decay_after", -1),
        ("total_bytes", 0),
        ("lanes", 0),
        ("segment", 0),
        ("clip", 0.0),
        ("weight_decay", -1e-9),
        ("drop_symbol", 1.0),
        ("drop_input", -0.1),
        ("drop_hidden", float("nan")),
        ("drop_output", 2.0),
        ("reset", 1.1),
        ("seed", -1),
        ("seed", 1 << 32),
    ],
)
def test_bad_value_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(TrainingError, match=f"^{field.replace('_', '-')} must be .*, not {value!r}$"):
        Recipe(**{field: value})


def test_values_at_the_ends_of_their_ranges_pass() -> None:
    Recipe(warmup=0.0, final_rate=1.0, decay=1.0, decay_after=0, lanes=1, segment=1, reset=1.0, seed=0)


def test_cosine_rises_then_falls() -> None:
    recipe = Recipe(rate=1.0, warmup=0.1, final_rate=0.2, total_bytes=1000)
    rates = [recipe.rate_at(done, 77) for done in range(0, 1001, 10)]
    assert 0 < rates[0] < 0.02
    assert rates[:11] == sorted(rates[:11]) and rates[10] == 1.0
    assert rates[10:] == sorted(rates[10:], reverse=True) and rates[-1] == pytest.approx(0.2)


def test_zilly_decays_from_the_epoch_after_decay_after() -> None:
    """As the paper's code counts: with 5 constant epochs the sixth is the first that is divided."""
    recipe = Recipe(rate=0.2, schedule="zilly", decay=1.03, decay_after=5)
    rates = [recipe.rate_at(epoch * 90 + 89, 90) for epoch in range(8)]
    assert rates[:5] == [0.2] * 5
    assert rates[5:] == [pytest.approx(0.2 / 1.03**power) for power in (1, 2, 3)]
