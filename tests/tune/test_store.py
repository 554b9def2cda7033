"""Where measurements are kept: found again for the same processor and recipe, or not at all."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from tests.tune.test_measured import HERE, measured, timed

from tilewright.base.errors import CacheWarning
from tilewright.tune import Measured, Store, this_processor
from tilewright.tune.store import SHIPPED

ONE = measured(timed("library", 0.1))


def test_a_measurement_is_found_again(tmp_path: Path) -> None:
    Store(HERE, tmp_path).put(ONE)
    assert Store(HERE, tmp_path).get(ONE.kernel, ONE.recipe) == ONE


def test_a_later_measurement_takes_its_place(tmp_path: Path) -> None:
    store, later = Store(HERE, tmp_path), measured(timed("own", 0.2))
    store.put(ONE)
    store.put(later)
    assert store.get(ONE.kernel, ONE.recipe) == later


def test_other_kernels_recipes_and_processors_find_nothing(tmp_path: Path) -> None:
    Store(HERE, tmp_path).put(ONE)
    assert Store(HERE, tmp_path).get("another", ONE.recipe) is None
    assert Store(HERE, tmp_path).get(ONE.kernel, ONE.recipe + 1) is None
    for other in (
        replace(HERE, threads=1),
        replace(HERE, vector=64),
        replace(HERE, l2=1),
        replace(HERE, name="b"),
    ):
        assert Store(other, tmp_path).get(ONE.kernel, ONE.recipe) is None


@pytest.mark.parametrize("keep", [0, 1, 31, 32, 33, 100])
def test_a_cut_entry_is_none(tmp_path: Path, keep: int) -> None:
    Store(HERE, tmp_path).put(ONE)
    (place,) = (path for path in tmp_path.rglob("*") if path.is_file())
    place.write_bytes(place.read_bytes()[:keep])
    assert Store(HERE, tmp_path).get(ONE.kernel, ONE.recipe) is None


@pytest.mark.parametrize("entry", [b"", b"\xff\xfe", b"cos\nsystem\n(S'true'\ntR.", b"{}"])
def test_an_entry_that_is_something_else_is_ignored_with_a_warning(
    tmp_path: Path, entry: bytes
) -> None:
    store = Store(HERE, tmp_path)
    store.put(ONE)
    (place,) = (path for path in tmp_path.rglob("*") if path.is_file())
    store.entries.put(place.parent.name + place.name, entry)
    with pytest.warns(CacheWarning, match="is ignored"):
        assert store.get(ONE.kernel, ONE.recipe) is None


def test_an_entry_of_another_kernel_under_this_name_is_none(tmp_path: Path) -> None:
    store = Store(HERE, tmp_path)
    store.put(ONE)
    (place,) = (path for path in tmp_path.rglob("*") if path.is_file())
    store.entries.put(place.parent.name + place.name, str(replace(ONE, kernel="b")).encode())
    assert store.get(ONE.kernel, ONE.recipe) is None


def test_what_is_measured_here_counts_before_what_was_shipped(tmp_path: Path) -> None:
    other = replace(HERE, name="another")
    shipped = tmp_path / "shipped.json"
    shipped.write_text(json.dumps([json.loads(str(ONE))]))
    store = Store(HERE, tmp_path / "entries", shipped)
    assert store.get(ONE.kernel, ONE.recipe) == ONE
    assert store.get(ONE.kernel, ONE.recipe + 1) is None
    assert Store(other, tmp_path / "entries", shipped).get(ONE.kernel, ONE.recipe) is None
    later = measured(timed("own", 0.2))
    store.put(later)
    assert store.get(ONE.kernel, ONE.recipe) == later


def test_what_is_shipped_reads_as_measurements() -> None:
    for row in json.loads(SHIPPED.read_text(encoding="utf-8")):
        assert str(Measured.read(row)) == json.dumps(row, indent=1)


def test_this_processor_has_caches_and_a_name() -> None:
    found = this_processor()
    assert found.name
    assert found.vector in (16, 32, 64)
    assert 0 < found.l1 <= found.l2 <= found.l3
    assert asdict(this_processor("x86-64")) == {**asdict(found), "vector": 16}
