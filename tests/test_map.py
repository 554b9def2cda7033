"""The package map of ARCHITECTURE.md says what the packages say of themselves."""

import package_map


def test_the_map_is_up_to_date() -> None:
    page = package_map.PAGE.read_text(encoding="utf-8")
    assert package_map.replace_map(page) == page, "run: python scripts/package_map.py"


def test_every_package_says_what_it_is_for() -> None:
    doors = sorted(package_map.PACKAGE.glob("*/__init__.py"))
    mute = [door.parent.name for door in doors if not package_map.purpose_of(door).endswith(".")]
    assert mute == []
