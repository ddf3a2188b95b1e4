"""Finding models by name, id or file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rhnzip.errors import ModelError, UnknownModelError
from rhnzip.models import library
from rhnzip.models.library import available, find_model, load_model
from rhnzip.models.modelfile import Model, save_model


@pytest.fixture
def shelf(network: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Model]:
    """Two built-in models, `first` and `second`, in place of those that ship."""
    models, paths = {}, {}
    for number, name in enumerate(("first", "second")):
        scales = {"state": 100.0 + number}
        weights = replace(network.weights, scales=scales)
        models[name] = Model(name, network.cell, weights, {"description": f"the {name}", "trained_on": ["x"]})
        paths[name] = tmp_path / f"{name}.safetensors"
        save_model(models[name], paths[name])
    monkeypatch.setattr(library, "builtin_paths", lambda: paths)
    monkeypatch.setattr(library, "DEFAULT_MODEL", "second")
    monkeypatch.setattr(library, "_builtin", lambda name: library.load_model_file(paths[name]))
    return models


@pytest.fixture
def own(network: Any, tmp_path: Path) -> Path:
    """A model file of the user's."""
    path = tmp_path / "own.safetensors"
    save_model(Model("own", network.cell, replace(network.weights, scales={"state": 90.0})), path)
    return path


def test_load_by_name_default_or_path(shelf: dict[str, Model], own: Path) -> None:
    assert load_model("first").id == shelf["first"].id
    assert load_model().id == load_model(None).id == shelf["second"].id
    assert load_model(str(own)).name == "own"


def test_unknown_name_lists_what_there_is(shelf: dict[str, Model], tmp_path: Path) -> None:
    for name in ("third", str(tmp_path), str(tmp_path / "none")):
        with pytest.raises(UnknownModelError, match=r"no model .*\(first, second\)"):
            load_model(name)


def test_no_model_ships_under_an_unknown_name() -> None:
    with pytest.raises(UnknownModelError, match="'no-such-model'"):
        load_model("no-such-model")


def test_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("not a model")
    with pytest.raises(ModelError, match="cannot be read"):
        load_model(str(path))


def test_find_by_id_whatever_the_name(shelf: dict[str, Model]) -> None:
    for name in ("first", "second", "renamed"):
        assert find_model(shelf["first"].id, name).name == "first"


def test_find_with_a_further_model(shelf: dict[str, Model], own: Path) -> None:
    needed = load_model(str(own)).id
    assert find_model(needed, "own", str(own)).name == "own"
    with pytest.raises(UnknownModelError, match=needed.hex()):
        find_model(needed, "own")


def test_further_model_of_another_id_is_named(shelf: dict[str, Model], own: Path) -> None:
    with pytest.raises(UnknownModelError) as caught:
        find_model(shelf["first"].id, "first", str(own))
    for part in ("'first'", shelf["first"].id.hex(), "'own'", load_model(str(own)).id.hex()):
        assert part in str(caught.value)


def test_unknown_id_says_which_and_what_to_do(shelf: dict[str, Model]) -> None:
    with pytest.raises(UnknownModelError, match=r"'lost', id 0102030405060708.*--model"):
        find_model(bytes(range(1, 9)), "lost")


def test_cards(shelf: dict[str, Model]) -> None:
    cards = available()
    assert [card.name for card in cards] == ["first", "second"]
    assert cards[0].id_hex == shelf["first"].id.hex()
    assert (cards[1].description, cards[1].trained_on, cards[1].bpc) == ("the second", ("x",), {})


def test_models_that_ship_are_sound() -> None:
    """Every model file of the package loads, under the name of its file."""
    for name in library.builtin_paths():
        assert load_model(name).name == name
