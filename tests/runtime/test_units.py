"""Small kernels share a text, in which each is what it is alone."""

import ctypes
import random
from collections.abc import Sequence

import pytest

from tilewright.kernels.support import SUPPORT, print_support
from tilewright.program import KernelSource
from tilewright.runtime import find_toolchain
from tilewright.runtime.toolchain import build
from tilewright.runtime.units import ENOUGH, Units, units

SIZED = "typedef struct {{ {} x[3]; }} T;\nstatic int value(void) {{ return (int)sizeof(T); }}\n"


def kernel(name: str, before: str, length: int = 0) -> KernelSource:
    """A kernel that gives what the `value` that stands before it gives."""
    head = f"int {name}(char **p, long part, long end, long parts)\n{{\n"
    return KernelSource(name, f"{before}{head}    /* {'.' * length} */\n    return value();\n}}")


def valued(name: str, value: int, length: int = 0) -> KernelSource:
    before = f"/* of {name} */\nstatic int value(void) {{\n    return {value};\n}}\n"
    return kernel(name, before, length)


def run(kernels: Sequence[KernelSource]) -> list[int]:
    """What the kernels give, compiled as their texts are."""
    arguments = "(char **p, long part, long end, long parts)"
    exports = "".join(
        f"extern int {kernel.name}{arguments};\n"
        f'__attribute__((visibility("default"))) int run_{kernel.name}(void)\n'
        f"{{ return {kernel.name}(0, 0, 1, 1); }}\n"
        for kernel in kernels
    )
    library = build(find_toolchain(), units(kernels) | {"exports": exports})
    return [ctypes.CFUNCTYPE(ctypes.c_int)((f"run_{k.name}", library))() for k in kernels]


def test_kernels_share_a_text_until_it_is_long_enough() -> None:
    made = units([valued(f"k{i}", i, ENOUGH // 4) for i in range(8)])
    assert list(made) == ["kernels k0, k1, k2, k3", "kernels k4, k5, k6, k7"]


def test_a_long_kernel_is_alone_and_breaks_off_no_text() -> None:
    made = units([valued("a", 1), valued("long", 2, ENOUGH), valued("b", 3)])
    assert set(made) == {"kernel long", "kernels a, b"}
    assert made["kernel long"] == valued("long", 2, ENOUGH).text


def test_one_kernel_is_its_text() -> None:
    only = valued("a", 1)
    assert units([only]) == {"kernel a": only.text}
    assert units([]) == {}


def test_texts_follow_from_the_order_however_kernels_come() -> None:
    kernels = [valued(f"k{i}", i, random.Random(i).randrange(ENOUGH)) for i in range(40)]
    several = Units()
    assert dict([*(u for k in kernels for u in several.add(k)), *several.rest()]) == units(kernels)


@pytest.mark.parametrize(
    "before",
    [
        "#define VALUE 3\nstatic int value(void) { return VALUE; }\n",
        "#  undef VALUE\nstatic int value(void) { return 3; }\n",
        "#include <math.h>\nstatic int value(void) { return 3; }\n",
    ],
)
def test_a_kernel_with_macros_is_alone(before: str) -> None:
    odd = kernel("odd", before)
    made = units([valued("a", 1), odd, valued("b", 2)])
    assert made["kernel odd"] == odd.text
    assert set(made) == {"kernel odd", "kernels a, b"}


def test_types_of_one_name_that_differ_do_not_meet() -> None:
    types = {"a": "short", "b": "long", "c": "char"}
    kernels = [kernel(name, SIZED.format(type_)) for name, type_ in types.items()]
    again = kernel("d", SIZED.format("char"))
    made = units([*kernels, again])
    assert list(made) == ["kernel a", "kernel b", "kernels c, d"]
    assert made["kernels c, d"].count("typedef") == 1
    assert run([*kernels, again]) == [6, 24, 3, 3]


def test_what_each_defines_for_itself_is_its_own() -> None:
    kernels = [valued(f"k{i}", i) for i in range(20)]
    assert len(units(kernels)) < len(kernels)
    assert run(kernels) == list(range(20))


def test_what_it_declares_it_may_share() -> None:
    declared = "extern int abs(int);\nstatic const int table[] = {{\n    {0}, -{0} }};\n"
    value = (
        "static __attribute__((noinline)) int value(void) {{ return abs(table[1]) + table[0]; }}\n"
    )
    kernels = [kernel(f"k{i}", (declared + value).format(i)) for i in range(5)]
    made = units(kernels)
    assert len(made) == 1
    assert next(iter(made.values())).count("extern int abs") == 1
    assert run(kernels) == [0, 2, 4, 6, 8]


def test_what_stands_behind_a_pragma_is_its_own() -> None:
    before = (
        '/* of its own */\n#pragma GCC optimize("O1")\n__attribute__((always_inline))\n'
        "static inline int value(void) {{\n    return {};\n}}\n"
    )
    kernels = [kernel(f"k{i}", before.format(i)) for i in range(5)]
    assert len(units(kernels)) == 1
    assert run(kernels) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("first", ["", "typedef int T;\n", "extern int abs(int);\n"])
def test_what_it_asks_of_the_compiler_ends_with_it(first: str) -> None:
    """Before what several share it is not asked of all: the kernel is alone then."""
    value = "{ volatile double x = 1; return x + 1e20 - 1e20 == 1; }"
    lost = f"static int value(void) {value}\n"
    asking = f'#pragma GCC optimize("fast-math")\n{first}{lost}'
    kernels = [kernel("a", asking), kernel("b", lost)]
    assert len(units(kernels)) == (2 if first else 1)
    assert run(kernels) == [1, 0]


def test_whatever_support_kernels_have_they_may_share_a_text() -> None:
    """Two kernels for every function that is printed into kernels: each has its own."""
    texts: dict[str, str] = {}
    for name in SUPPORT:
        support = f"{print_support([name])}\nstatic int value(void) {{ return 5; }}\n"
        pair = [kernel(f"{name}_{which}", support) for which in "ab"]
        made = units(pair)
        assert len(made) == 1 or len(pair[0].text) > ENOUGH, name
        texts |= made
    assert build(find_toolchain(), texts) is not None
