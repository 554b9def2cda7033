"""What a user may choose; everything else is derived and shown by `explain`.

The idea: one frozen record, the same words in Python and on the command line.
"""

from dataclasses import dataclass

from tilewright.base.errors import OptionError
from tilewright.runtime import NATIVE, check_target, processor

CHECKS = ("", "eager")
RANDOM = ("", "torch")
BUCKETS = ("batch",)


@dataclass(frozen=True, slots=True)
class Options:
    """Choices of one compilation.

    check: "eager" compares every node with PyTorch eager at each call and raises DivergenceError at
    the first that differs (debug mode).  library: False forbids calls to ATen, with a
    LibraryCallError that names the first operator that would need one.  winograd: False computes
    every convolution by plain sums, in which what no tap reads has no part, not even in rounding.
    chunk_mib: a product whose result has as many MiB, as the scores of a large vocabulary, is
    computed with what follows it a quarter of that at a time, where its rows can be told apart, so
    that the whole result never exists; 0 for never.  tuned: False computes every kernel in the
    usual way, whatever `tilewright tune` has measured on this processor.  verify: check the graph
    after every pass, the loops of every kernel, and the Program before it runs (slower to compile).
    fuse: False gives every operator a kernel of its own.  frozen: True computes what depends on
    parameters and buffers alone once, at the first call, and keeps it: until another tensor or
    other memory stands in the place of one of them, or torch has counted a write to it (in-place
    operations, `load_state_dict`); what torch does not count, as `p.data.add_(...)`, is seen after
    `Compiled.refresh()` alone; a call that asks for gradients raises OptionError.  random: "torch"
    lets a training step draw from torch's generator in eager's order, as compiled functions always
    do: the same `torch.manual_seed` gives eager's masks bit for bit; left out, a step's masks are
    Philox numbers of a seed and of each element's place, which cost no memory (each step of a scan
    has its own; in a while, whose steps nobody knows, torch's generator draws them).  buckets:
    ("batch",) lets `tw.compile` pad the batch (the first dim of every tensor argument) to a power
    of two where that is proved to be right, and cut the results, so that one compilation serves all
    batches up to it.  target: the instruction set that kernels are compiled for, a level of x86-64
    ("x86-64", "x86-64-v2", "x86-64-v3" with AVX2, "x86-64-v4" with AVX-512); left out, all that
    this processor can do.
    """

    check: str = ""
    library: bool = True
    winograd: bool = True
    chunk_mib: int = 64
    tuned: bool = True
    verify: bool = False
    fuse: bool = True
    frozen: bool = False
    random: str = ""
    buckets: tuple[str, ...] = ()
    target: str = NATIVE

    def __post_init__(self) -> None:
        if self.check not in CHECKS:
            raise OptionError(
                f"unknown check {self.check!r}",
                expected='"" or "eager"',
                found=repr(self.check),
                mend='Options(check="eager") compares every node with eager',
            )
        if self.random not in RANDOM:
            raise OptionError(
                f"unknown source of random numbers {self.random!r}",
                expected='"" or "torch"',
                found=repr(self.random),
                mend='Options(random="torch") draws what eager draws after the same seed',
            )
        if self.buckets not in ((), BUCKETS):
            raise OptionError(
                "unknown sizes to round up",
                expected='("batch",): the first dim of every tensor argument',
                found=repr(self.buckets),
                mend='Options(buckets=("batch",))',
            )
        if type(self.chunk_mib) is not int or self.chunk_mib < 0:
            raise OptionError(
                "chunk_mib is not a size in MiB",
                expected="a whole number, 0 for never",
                found=repr(self.chunk_mib),
                mend="Options(chunk_mib=64)",
            )
        check_target(self.target, processor())
        for name in ("library", "winograd", "tuned", "verify", "fuse", "frozen"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise OptionError(
                    f"option {name} is not a bool", expected="True or False", found=repr(value)
                )

    def refuse_frozen(self) -> None:
        """Raise OptionError where weights are frozen: gradients are asked for, to change them."""
        if self.frozen:
            raise OptionError(
                "frozen weights are for calls without gradients",
                expected="no gradients asked for, or no frozen weights",
                found="frozen=True, and a call that asks for gradients",
                mend="call under torch.no_grad(), or leave frozen out",
            )

    def refuse_buckets(self) -> None:
        """Raise OptionError where there are buckets: none but `tw.compile` pads a batch."""
        if self.buckets:
            raise OptionError(
                "buckets are an option of tw.compile",
                expected="no buckets here",
                found=f"buckets={self.buckets!r}",
                mend="torch.compile(dynamic=True) compiles once for all batches",
            )
