"""Picking gives a tuple of what stands at the places, however many they are."""

import copy
import pickle

import pytest

from tilewright.base.places import picker


@pytest.mark.parametrize("places", [(), (2,), (-1,), (0, 0), (2, -1, 0), (1, 2, 0, -3)])
def test_what_is_picked_stands_at_the_places_in_their_order(places: tuple[int, ...]) -> None:
    for values in ([10, 11, 12], (10, 11, 12)):
        expected = tuple(values[place] for place in places)
        picks = picker(places)
        for found in (picks(values), pickle.loads(pickle.dumps(picks))(values)):
            assert type(found) is tuple
            assert found == expected
        assert copy.deepcopy(picks)(values) == expected


def test_a_place_that_is_not_there_is_an_error() -> None:
    for places in ((3,), (0, 3)):
        with pytest.raises(IndexError):
            picker(places)([10, 11, 12])
