"""Instruction sets that kernels may be compiled for, and whether this processor has them.

The idea: the levels of x86-64 are data, each with the abilities that it adds, in the words of the
system (System V ABI for AMD64, section 3.1.1, "micro-architecture levels").
This module does not know a compiler.
"""

from tilewright.base.errors import OptionError

NATIVE = ""
"""All that this processor can do."""
LEVELS = (
    ("x86-64", ("cmov", "cx8", "fpu", "fxsr", "mmx", "sse", "sse2")),
    ("x86-64-v2", ("cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3")),
    ("x86-64-v3", ("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave")),
    ("x86-64-v4", ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")),
)
TARGETS = (NATIVE, *(name for name, _ in LEVELS))


def check_target(target: str, told: str) -> None:
    """Raise OptionError unless a processor that says this of itself runs code for the target."""
    if target == NATIVE:
        return
    if target not in TARGETS:
        raise OptionError(
            f"unknown target {target!r}",
            expected=", ".join(repr(name) for name in TARGETS),
            found=repr(target),
            mend='Options(target="x86-64-v3") uses AVX2; "" all that this processor can do',
        )
    abilities = set(told.split())
    needed = [able for _, more in LEVELS[: TARGETS.index(target)] for able in more]
    missing = [able for able in needed if able not in abilities]
    if missing:
        raise OptionError(
            f"this processor does not run code for {target}",
            expected=", ".join(needed),
            found=f"a processor without {', '.join(missing)}",
            mend='Options(target="") compiles for what it can do',
        )
