"""Machines as text: they print and parse, are bounded, and are fitted to what was measured."""

import csv
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilewright as tw
from tilewright.base.errors import MachineError
from tilewright.cost import (
    Constants,
    Device,
    Link,
    Machine,
    machine_lines,
    parse_quantity,
    preset_names,
    show_quantity,
)

Golden = Callable[[str, str], None]

_names = st.from_regex(r"[a-z][a-z0-9.\-]{0,12}", fullmatch=True)


def _numbers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_nan=False)


@st.composite
def _machines(draw: st.DrawFn) -> Machine:
    dtypes = draw(st.lists(st.sampled_from(["bfloat16", "float32", "int8"]), unique=True))
    device = Device(
        draw(_names),
        draw(_numbers(1, 1e15)),
        draw(_numbers(1e6, 1e15)),
        draw(_numbers(0, 1)),
        tuple((dtype, draw(_numbers(1e6, 1e18))) for dtype in dtypes),
    )
    names = draw(st.lists(_names, unique=True, min_size=1, max_size=3))
    groups = [draw(st.integers(1, 16)) for _ in names[1:]]
    links = tuple(
        Link(name, count, draw(_numbers(0, 1)), draw(_numbers(1e3, 1e15)), draw(_numbers(0.05, 1)))
        for name, count in zip(names, [*groups, None], strict=True)
    )
    constants = Constants(
        draw(_numbers(0.05, 0.9)),
        draw(_numbers(0.05, 1)),
        draw(_numbers(0, 1e-4)),
        draw(_numbers(0, 1e-3)),
        draw(_numbers(0, 0.01)),
        draw(_numbers(0, 0.01)),
        draw(_numbers(0, 0.01)),
        draw(_numbers(0, 1e-3)),
        draw(_numbers(1, 2)),
    )
    full = Machine("m", device, links, 1, constants).group_devices(len(links) - 2)
    return Machine(draw(_names), device, links, full * draw(st.integers(1, 64)), constants)


# --------------------------------------------------------------------------------------- the texts


@given(_numbers(1e-18, 1e18), st.sampled_from(["s", "B", "B/s", "FLOP/s", ""]))
def test_a_quantity_is_read_as_it_was_printed(value: float, unit: str) -> None:
    assert parse_quantity(show_quantity(value, unit), unit) == value


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("80GiB", "B", 80 * 2**30),
        ("80GB", "B", 80e9),
        ("800Gb/s", "B/s", 100e9),
        ("800Gbps", "B/s", 100e9),
        ("312TFLOP/s", "FLOP/s", 312e12),
        ("2.7us", "s", 2.7e-6),
        ("0.8", "", 0.8),
    ],
)
def test_units_are_what_they_say(text: str, unit: str, value: float) -> None:
    assert parse_quantity(text, unit) == value


@pytest.mark.parametrize("text", ["80GiB", "8e", "fast", "-1s", "1 s", "1e400s", "800", "nan"])
def test_what_is_no_time_is_none(text: str) -> None:
    value = parse_quantity(text, "s")
    assert value is None or value == float("inf")


@pytest.mark.parametrize("exponent", ["400", "9999", "4000312", "999999999999999999999"])
def test_a_number_beyond_all_bounds_is_none(exponent: str) -> None:
    for unit, text in (("FLOP/s", "TFLOP/s"), ("", "")):
        assert parse_quantity(f"1e{exponent}{text}", unit) is None
        assert parse_quantity(f"1e-{exponent}{text}", unit) in (0, None)


def test_a_number_that_its_prefix_makes_too_large_is_none() -> None:
    assert parse_quantity("1e308B", "B") == 1e308
    assert parse_quantity("1e308PB", "B") is None
    # What is too large is what it comes to, not what is written.
    assert parse_quantity("1e309ms", "s") == pytest.approx(1e306)


def test_digits_are_those_of_ascii() -> None:
    assert parse_quantity("\u0668\u0660GiB", "B") is None
    assert parse_quantity("80.\u0665GiB", "B") is None
    with pytest.raises(MachineError, match="a character has no meaning"):
        Machine.parse("dgx-a100-80g x 8, memory \u0668\u0660GiB")


@given(_machines())
def test_a_machine_is_read_as_it_was_printed(machine: Machine) -> None:
    assert Machine.parse(str(machine)) == machine


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_is_one_node_of_its_own_name(name: str) -> None:
    machine = tw.Machine.parse(name)
    assert machine.name == name
    assert machine.devices == machine.node_devices or len(machine.links) == 1
    assert Machine.parse(str(machine)) == machine


def test_a_count_is_of_devices_or_of_nodes() -> None:
    devices = Machine.parse("dgx-a100-80g x 64")
    assert devices.devices == 64
    assert Machine.parse("dgx-a100-80g x 8 nodes") == devices
    assert Machine.parse("dgx-a100-80g x 4").devices == 4


def test_an_overridden_link_is_what_one_node_sends() -> None:
    machine = Machine.parse("dgx-a100-80g x 8, link 800Gb/s, memory 40GB, gemm_fraction 0.7")
    assert machine.links[-1].bandwidth == 100e9 / 8
    assert machine.links[0] == Machine.parse("dgx-a100-80g").links[0]
    assert (machine.device.memory_bytes, machine.constants.gemm_fraction) == (40e9, 0.7)


def test_a_line_that_ends_with_a_comma_goes_on() -> None:
    machine = Machine.parse("host-2core")
    assert Machine.parse(str(machine).replace(", ", ",\n    ")) == machine


def test_a_machine_is_read_from_a_file(tmp_path: Path, golden: Golden) -> None:
    machine = Machine.parse("dgx-h100 x 16, gemm_fraction 0.7")
    path = tmp_path / "cluster.txt"
    path.write_text(f"{machine}\n", encoding="utf-8")
    assert Machine.parse(str(path)) == machine
    path.write_bytes(b"\xff\xfe")
    told = []
    for text in (str(path), "nowhere.txt"):
        with pytest.raises(MachineError) as caught:
            Machine.parse(text)
        told.append(str(caught.value))
    golden("machine_files.txt", "\n\n".join(told))


def test_the_page_of_the_machines(golden: Golden) -> None:
    golden("machines.txt", "\n".join(machine_lines()))


REFUSED = {
    "unknown_machine": "dgx-a10-80g x 8",
    "unknown_setting": "dgx-a100-80g x 8, links 800Gb/s",
    "link_without_a_unit": "dgx-a100-80g x 8, link 800",
    "too_good": "dgx-a100-80g x 8, gemm_fraction 0.95",
    "half_a_node": "dgx-a100-80g x 12",
    "no_device": "dgx-a100-80g x 0",
    "said_twice": "dgx-h100 x 8, link 1Gb/s, link 2Gb/s",
    "a_strange_character": "dgx-h100 x 8; link 1Gb/s",
    "more_behind_it": "dgx-h100 x 8 fast",
    "truncated_record": "machine m x 8\ndevice d: memory 1GiB, bandwidth 1GB/s",
    "record_without_links": "machine m x 8\n"
    "device d: memory 1GiB, bandwidth 1GB/s, launch 1us\n"
    "constants: gemm_fraction 0.8, memory_fraction 0.8, product_seconds 0s, operator_seconds 0s, "
    "micro_batch_seconds 0s, loss_seconds 0s, collective_seconds 0s, straggler_seconds 0s, "
    "overlap_slowdown 1",
    "link_that_joins_all_inside": str(Machine.parse("dgx-h100")).replace("groups 8, ", ""),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_text_that_is_no_machine_is_refused(name: str, golden: Golden) -> None:
    with pytest.raises(MachineError) as caught:
        Machine.parse(REFUSED[name])
    golden(f"machine_{name}.txt", str(caught.value))


@given(st.text(alphabet="dghx-a10 8,:\nlinkmemory=\u00d7\t.GB/s", max_size=60))
def test_any_text_is_a_machine_or_refused(text: str) -> None:
    try:
        machine = Machine.parse(text)
    except MachineError:
        return
    assert Machine.parse(str(machine)) == machine


def test_a_device_without_a_peak_says_so(golden: Golden) -> None:
    with pytest.raises(MachineError) as caught:
        Machine.parse("p3.16xlarge").device.peak("bfloat16")
    golden("machine_without_bfloat16.txt", str(caught.value))


# --------------------------------------------------------------------------------------- the links


def test_ranks_are_joined_by_the_innermost_level_that_holds_them() -> None:
    machine = Machine.parse("dgx-a100-80g x 64")
    assert machine.level_of([3]) == machine.level_of(range(8)) == 0
    assert machine.level_of([7, 8]) == machine.level_of(range(64)) == 1


def test_groups_multiply_up_to_all_devices() -> None:
    text = str(Machine.parse("dgx-h100 x 64")).replace(
        "link infiniband:", "link rail: groups 4, latency 1us, bandwidth 50GB/s, share 1\nlink far:"
    )
    machine = Machine.parse(text)
    assert [machine.group_devices(level) for level in (-1, 0, 1, 2)] == [1, 8, 32, 2048]
    assert machine.node_devices == 32
    assert machine.level_of([0, 31]) == 1


# ----------------------------------------------------------------------------------- the constants


def test_constants_are_found_again_from_what_they_predict() -> None:
    machine = Machine.parse("dgx-a100-80g")
    truth = machine.adjusted({"gemm_fraction": 0.61, "operator_seconds": 6e-5, "nvlink.share": 0.5})

    def predict(machine: Machine, row: tuple[float, int, float]) -> float:
        flops, layers, sent = row
        compute = flops / (machine.device.peak("float16") * machine.constants.gemm_fraction)
        return max(compute, 60 * layers * machine.constants.operator_seconds) + (
            sent / machine.links[0].reached
        )

    rows = [(1e12 * k**3, 24, 1e9 * (k % 4)) for k in range(1, 12)]
    measured = [(row, predict(truth, row)) for row in rows]
    found = machine.calibrate(
        measured, predict, ["gemm_fraction", "operator_seconds", "nvlink.share"]
    )
    for name in ("gemm_fraction", "operator_seconds", "nvlink.share"):
        assert found.value(name) == pytest.approx(truth.value(name), rel=1e-6)


def test_a_constant_stays_within_its_bounds_whatever_was_measured() -> None:
    machine = Machine.parse("dgx-a100-80g")

    def predict(machine: Machine, flops: float) -> float:
        return flops / (machine.device.peak("float16") * machine.constants.gemm_fraction)

    impossible = [(1e12, 1e12 / 312e12), (2e12, 2e12 / 312e12)]
    found = machine.calibrate(impossible, predict, ["gemm_fraction"])
    assert 0.9 - 1e-9 < found.constants.gemm_fraction <= 0.9


def test_more_constants_than_measurements_are_refused(golden: Golden) -> None:
    machine = Machine.parse("dgx-a100-80g")
    with pytest.raises(MachineError) as caught:
        machine.calibrate([((), 1.0)], lambda *_: 1.0, ["gemm_fraction", "nvlink.share"])
    golden("machine_with_few_measurements.txt", str(caught.value))


ROWS = [(1.0, 2.0), (2.0, 3.0), (3.0, 4.0)]
ONE = ["gemm_fraction"]
CALIBRATIONS: dict[str, tuple[Any, ...]] = {
    "no_number": ([(1.0, "2")], ONE, 1.0, None),
    "no_seconds": ([(1.0, math.nan)], ONE, 1.0, None),
    "no_time": ([(1.0, math.inf)], ONE, 1.0, None),
    "no_rows": (None, ONE, 1.0, None),
    "rows_alone": ([1.0, 2.0], ONE, 1.0, None),
    "no_names": (ROWS, [], 1.0, None),
    "one_name": (ROWS, "gemm_fraction", 1.0, None),
    "twice": (ROWS, ONE * 2, 1.0, None),
    "name_of_a_number": (ROWS, [3], 1.0, None),
    "predicted_nothing": (ROWS, ONE, None, None),
    "predicted_nan": (ROWS, ONE, math.nan, None),
    "bounds_turned": (ROWS, ONE, 1.0, {"gemm_fraction": (0.8, 0.2)}),
    "bounds_wider": (ROWS, ONE, 1.0, {"gemm_fraction": (0.1, 0.99)}),
    "bounds_of_one": (ROWS, ONE, 1.0, {"gemm_fraction": 0.5}),
    "bounds_of_others": (ROWS, ONE, 1.0, {"memory_fraction": (0.1, 0.2)}),
}


@pytest.mark.parametrize("name", CALIBRATIONS)
def test_what_cannot_be_fitted_is_refused(name: str, golden: Golden) -> None:
    rows, names, predicted, within = CALIBRATIONS[name]
    with pytest.raises(MachineError) as caught:
        Machine.parse("dgx-a100-80g").calibrate(rows, lambda *_: predicted, names, within)
    golden(f"calibration_{name}.txt", str(caught.value))


@pytest.mark.parametrize("given", [None, "fast", 5], ids=repr)
def test_what_cannot_be_asked_for_a_price_is_refused(given: Any, golden: Golden) -> None:
    machine, rows = Machine.parse("dgx-a100-80g"), [(1, 1.0)]
    with pytest.raises(MachineError) as caught:
        machine.calibrate(rows, given, ["gemm_fraction"])
    golden(f"calibration_by_{given}.txt", str(caught.value))
    if given:
        with pytest.raises(MachineError, match="bounds are of no constants"):
            machine.calibrate(rows, lambda *_: 1.0, ["gemm_fraction"], given)


@pytest.mark.parametrize("devices", [None, "8", 8.0, math.nan, True, 0, -8, 10**30], ids=repr)
def test_a_machine_has_a_whole_number_of_devices(devices: Any) -> None:
    with pytest.raises(MachineError, match=r"has .* devices"):
        Machine.parse("dgx-a100-80g").with_devices(devices)


def test_an_unknown_constant_is_refused(golden: Golden) -> None:
    with pytest.raises(MachineError) as caught:
        Machine.parse("dgx-a100-80g").adjusted({"nvlink.speed": 1.0})
    golden("machine_with_an_unknown_constant.txt", str(caught.value))


def test_a_machine_cannot_be_made_better_than_physics() -> None:
    with pytest.raises(MachineError, match="gemm_fraction of the constants is out of bounds"):
        replace(Machine.parse("dgx-a100-80g").constants, gemm_fraction=0.97)


DATA = Path(__file__).parents[3] / "shared" / "data" / "vtrain"


@pytest.mark.skipif(not DATA.is_dir(), reason=f"the measured all-reduces are not at {DATA}")
@pytest.mark.parametrize(
    ("name", "device"),
    [("p3.16xlarge", "v100"), ("dgx-a100-40g", "a100"), ("dgx-a100-80g", "a100")],
)
def test_a_presets_node_all_reduces_as_fast_as_was_measured(name: str, device: str) -> None:
    machine, ranks = Machine.parse(name), 8
    link, launch = machine.links[0], machine.constants.collective_seconds
    with (DATA / f"allreduce_{device}_{ranks}gpu.csv").open(encoding="utf-8") as file:
        rows = [(float(row[0]), float(row[3]) * 1e-9) for row in list(csv.reader(file))[1:]]
    errors = []
    for size, seconds in rows:
        ring = 2 * (ranks - 1) * (link.latency + size / ranks / link.reached)
        errors.append(abs((launch + ring) / seconds - 1))
    assert len(errors) > 1000
    assert sum(errors) / len(errors) < 0.02


# ------------------------------------------------------------------------------------ the host here


def test_this_host_is_a_machine_that_prints_and_parses() -> None:
    told: list[str] = []
    machine = tw.Machine.here(told.append)
    assert Machine.parse(str(machine)) == machine
    assert len(told) == 5
    # What any host of this century reaches.
    assert machine.device.peak("float32") > 1e8
    assert machine.device.memory_bandwidth > 1e8
    assert 1e-8 < machine.device.launch_seconds < 1e-3
