"""Element types: their names, sizes, promotion, and the types they are computed in.

The idea: a dtype is data; what a printer, the evaluator or the C emitter needs is a field here.
This module does not know torch; `capture` and `runtime` map torch's dtypes by `torch_name`.
"""

from dataclasses import dataclass

import ml_dtypes
import numpy as np


@dataclass(frozen=True, slots=True)
class DType:
    """One element type.

    kind: "bool", "int" or "float".  bytes: size of one element.  c: the C type that holds it in
    memory.  numpy: what the evaluator holds it in.
    """

    name: str
    kind: str
    bytes: int
    c: str
    torch_name: str
    numpy: np.dtype

    def __repr__(self) -> str:
        return self.name

    @property
    def compute(self) -> "DType":
        """The type that arithmetic is done in: float32 for the two half types, else itself."""
        return F32 if self in (BF16, F16) else self


BOOL = DType("bool", "bool", 1, "unsigned char", "bool", np.dtype(np.bool_))
U8 = DType("u8", "int", 1, "unsigned char", "uint8", np.dtype(np.uint8))
I8 = DType("i8", "int", 1, "signed char", "int8", np.dtype(np.int8))
I16 = DType("i16", "int", 2, "short", "int16", np.dtype(np.int16))
I32 = DType("i32", "int", 4, "int", "int32", np.dtype(np.int32))
I64 = DType("i64", "int", 8, "long long", "int64", np.dtype(np.int64))
F16 = DType("f16", "float", 2, "_Float16", "float16", np.dtype(np.float16))
BF16 = DType("bf16", "float", 2, "unsigned short", "bfloat16", np.dtype(ml_dtypes.bfloat16))
F32 = DType("f32", "float", 4, "float", "float32", np.dtype(np.float32))
F64 = DType("f64", "float", 8, "double", "float64", np.dtype(np.float64))

ALL = (BOOL, U8, I8, I16, I32, I64, F16, BF16, F32, F64)
BY_NAME = {dtype.name: dtype for dtype in ALL}
BY_TORCH_NAME = {dtype.torch_name: dtype for dtype in ALL}


def promote(a: DType, b: DType) -> DType:
    """Return the type torch gives to an operation on tensors of types `a` and `b` (no scalars)."""
    if a == b:
        return a
    order = {"bool": 0, "int": 1, "float": 2}
    if order[a.kind] != order[b.kind]:
        return a if order[a.kind] > order[b.kind] else b
    if {a, b} == {F16, BF16}:
        return F32
    if U8 in (a, b):  # unsigned with a signed type: the next wider signed type holds both
        other = b if a == U8 else a
        return I16 if other == I8 else other
    return a if a.bytes > b.bytes else b
