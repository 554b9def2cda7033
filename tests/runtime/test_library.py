"""Library calls give what torch gives, write where they are told, and keep nothing."""

import itertools
import weakref
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tilewright.base.dtypes import BF16, BOOL, F32, I64
from tilewright.base.errors import IndexRangeError, LibraryCallError, Origin
from tilewright.graph.ir import Role, TensorType
from tilewright.program import (
    Buffer,
    Input,
    Launch,
    LibraryCall,
    Program,
    Segment,
    Template,
    View,
    Vjp,
    contiguous,
    verify,
    whole,
)
from tilewright.runtime import Executable

from .programs import affine, calling, f32, gradient, i64, linear_relu

HERE = Origin("model.py", 3, "x @ y")


def test_a_product_with_out_is_torchs_to_the_bit() -> None:
    executable = Executable(linear_relu(33, 17, 65))
    w = torch.randn(65, 17)
    for _ in range(3):
        x = torch.randn(33, 17)
        assert torch.equal(executable.run([x, w])[0], torch.relu((2 * x) @ w.t()))


def test_parameters_may_move_between_runs() -> None:
    """The view that a call takes of a lasting input is kept, but never longer than it is right."""
    executable = Executable(linear_relu(4, 8, 4))
    x = torch.randn(4, 8)
    w = torch.nn.Parameter(torch.randn(4, 8))
    for _ in range(20):
        expected = torch.relu((2 * x) @ w.detach().t())
        assert torch.allclose(executable.run([x, w])[0], expected, atol=1e-5)
        w.data = torch.randn(4, 8)
    with torch.no_grad():
        w.mul_(2)
    expected = torch.relu((2 * x) @ w.detach().t())
    assert torch.allclose(executable.run([x, w])[0], expected, atol=1e-5)


def test_a_parameter_whose_storage_is_given_up_and_taken_again_is_read_anew() -> None:
    executable = Executable(linear_relu(4, 8, 4))
    x, w = torch.randn(4, 8), torch.randn(4, 8)
    executable.run([x, w])
    for _ in range(5):
        storage = w.untyped_storage()
        storage.resize_(0)
        storage.resize_(4 * 8 * 4)
        w.copy_(torch.randn(4, 8))
        assert torch.allclose(executable.run([x, w])[0], torch.relu(2 * x @ w.t()), atol=1e-5)


def call_of(target: str, *args: Template, **changes: object) -> LibraryCall:
    """Return a call whose outputs are to be filled in."""
    return replace(
        LibraryCall(target, args, (), (), (), origin=HERE),
        **changes,  # type: ignore[arg-type]
    )


def test_lists_numbers_dtypes_and_keywords_reach_the_operator() -> None:
    x, y = Buffer("x", f32(2, 3), "input"), Buffer("y", f32(2, 3), "input")
    made = Buffer("z", TensorType((2, 6), F32), "library")
    cat = call_of(
        "aten.cat.default", ("list", ("%", 0), ("%", 1)), -1,
        inputs=(whole(x), whole(y)), outputs=(whole(made),), results=(0,),
    )  # fmt: skip
    a, b = torch.randn(2, 3), torch.randn(2, 3)
    found = Executable(calling(cat, [x, y], [made])).run([a, b])[0]
    assert torch.equal(found, torch.cat([a, b], -1))

    total = Buffer("s", TensorType((2,), BF16), "library")
    total_of = call_of(
        "aten.sum.dim_IntList", ("%", 0), ("list", 1), False,
        kwargs=(("dtype", ("dtype", "bf16")),), inputs=(whole(x),), outputs=(whole(total),),
        results=(0,),
    )  # fmt: skip
    found = Executable(calling(total_of, [x], [total])).run([a])[0]
    assert torch.equal(found, a.sum(1, dtype=torch.bfloat16))

    copy = call_of(
        "aten._to_copy.default", ("%", 0),
        kwargs=(("device", ("device", "cpu")), ("layout", ("layout", "strided")),
                ("memory_format", ("memory_format", "contiguous_format"))),
        inputs=(whole(x),), outputs=(whole(replace(made, type=f32(2, 3), strides=(3, 1))),),
        results=(0,),
    )  # fmt: skip
    made = replace(made, type=f32(2, 3), strides=(3, 1))
    assert torch.equal(Executable(calling(copy, [x], [made])).run([a])[0], a)


def test_some_results_of_several_are_taken() -> None:
    x = Buffer("x", f32(3, 8), "input")
    mean, out = Buffer("m", f32(3, 1), "library"), Buffer("o", f32(3, 8), "library")
    norm = call_of(
        "aten.native_layer_norm.default", ("%", 0), ("list", 8), None, None, 1e-5,
        inputs=(whole(x),), outputs=(whole(mean), whole(out)), results=(1, 0),
    )  # fmt: skip
    value = torch.randn(3, 8)
    found = Executable(calling(norm, [x], [mean, out])).run([value])
    expected = torch.ops.aten.native_layer_norm(value, [8], None, None, 1e-5)
    assert torch.equal(found[0], expected[1])
    assert torch.equal(found[1], expected[0])


def test_results_that_are_none_keep_their_place() -> None:
    x, w, dy = (
        Buffer(n, f32(*s), "input")
        for n, s in (("x", (1, 2, 5, 5)), ("w", (3, 2, 3, 3)), ("dy", (1, 3, 3, 3)))
    )
    dw = Buffer("dw", w.type, "library")
    backward = call_of(
        "aten.convolution_backward.default", ("%", 0), ("%", 1), ("%", 2), None, ("list", 1, 1),
        ("list", 0, 0), ("list", 1, 1), False, ("list", 0, 0), 1, ("list", False, True, False),
        inputs=(whole(dy), whole(x), whole(w)), outputs=(whole(dw),), results=(1,),
    )  # fmt: skip
    values = [torch.randn(b.shape) for b in (x, w, dy)]
    (found,) = Executable(calling(backward, [x, w, dy], [dw])).run(values)
    weight = values[1].requires_grad_()
    torch.nn.functional.conv2d(values[0], weight).backward(values[2])
    expected = weight.grad
    assert expected is not None
    assert torch.allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("kind", ["output", "arena", "input"])
def test_results_are_copied_into_memory_that_the_program_places(kind: str) -> None:
    x, y = Buffer("x", f32(2, 3), "input"), Buffer("y", f32(3, 2), kind)
    out = Buffer("out", f32(6), "output")
    exp = call_of(
        "aten.exp.default", ("%", 0), inputs=(whole(x),), outputs=(View("y", (2, 3), (1, 2)),),
        results=(0,),
    )  # fmt: skip
    program = Program(
        "exp", (x, y, out), (affine("same", 6, 1.0, 0.0),),
        (exp, Segment((Launch("same", (whole(y),), (whole(out),)),))),
        (Input("x"), Input("y")) if kind == "input" else (Input("x"),),
        (whole(out),), ("y",) if kind == "input" else (), 64,
    )  # fmt: skip
    value, state = torch.randn(2, 3), torch.zeros(3, 2)
    found = Executable(program).run([value, state] if kind == "input" else [value])[0]
    assert torch.equal(found.view(3, 2), value.exp().t())
    if kind == "input":
        assert torch.equal(state, value.exp().t())


def test_a_result_of_other_strides_is_laid_out_as_declared() -> None:
    x = Buffer("x", f32(4, 6), "input")
    y = Buffer("y", f32(6, 4), "library")
    z = Buffer("z", f32(6, 4), "output")
    t = call_of("aten.t.default", ("%", 0), inputs=(whole(x),), outputs=(whole(y),), results=(0,))
    launch = Launch("f", (whole(y),), (whole(z),))
    program = Program(
        "t", (x, y, z), (affine("f", 24, 1.0, 1.0),), (t, Segment((launch,))), (Input("x"),),
        (whole(z), whole(y)),
    )  # fmt: skip
    value = torch.randn(4, 6)
    found, turned = Executable(program).run([value])
    assert torch.equal(found, value.t() + 1)
    assert turned.stride() == (4, 1)
    assert turned.untyped_storage().data_ptr() != value.untyped_storage().data_ptr()


def test_a_result_that_is_a_view_does_not_see_later_writes() -> None:
    """x.t() of arena memory that a later launch takes over, and of an input that is updated."""
    x = Buffer("x", f32(4, 4), "input")
    a, b = Buffer("a", f32(4, 4), "arena"), Buffer("b", f32(4, 4), "arena")
    v = Buffer("v", f32(4, 4), "library", strides=(1, 4))
    u = Buffer("u", f32(4, 4), "library", strides=(1, 4))
    calls = [
        call_of("aten.t.default", ("%", 0), inputs=(whole(s),), outputs=(whole(t),), results=(0,))
        for s, t in ((a, v), (x, u))
    ]
    double = affine("double_", 16, 2.0, 0.0)
    program = Program(
        "view", (x, a, b, v, u), (double,),
        (
            Segment((Launch("double_", (whole(x),), (whole(a),)),)),
            *calls,
            Segment((Launch("double_", (whole(x),), (whole(b),)),
                     Launch("double_", (whole(b),), (whole(x),)))),
        ),
        (Input("x"),), (whole(v), whole(u)), ("x",), 64,
    )  # fmt: skip
    verify(program)
    executable = Executable(program)
    x1 = torch.randn(4, 4)
    before = x1.clone()
    first, turned = executable.run([x1])
    executable.run([torch.randn(4, 4)])
    assert torch.equal(first, 2 * before.t())
    assert torch.equal(turned, before.t())
    assert torch.equal(x1, 4 * before)


class _Census(TorchDispatchMode):
    """Counts, at each operator's end, how many results of operators so far are alive."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[weakref.ref[torch.Tensor]] = []
        self.alive: list[int] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> torch.Tensor:
        found: torch.Tensor = func(*args, **(kwargs or {}))
        self.seen.append(weakref.ref(found))
        self.alive.append(sum(reference() is not None for reference in self.seen))
        return found


def test_a_result_is_dropped_after_its_last_use() -> None:
    values = [Buffer("x0", f32(10), "input")]
    values += [Buffer(f"x{i}", f32(10), "library") for i in range(1, 51)]
    calls = tuple(
        call_of("aten.neg.default", ("%", 0), inputs=(whole(a),), outputs=(whole(b),), results=(0,))
        for a, b in itertools.pairwise(values)
    )
    program = Program("chain", tuple(values), (), calls, (Input("x0"),), (whole(values[-1]),))
    executable = Executable(program)
    value = torch.randn(10)
    executable.run([value])
    census = _Census()
    with census:
        (found,) = executable.run([value])
    assert torch.equal(found, value)
    assert len(census.seen) == 50
    assert max(census.alive) <= 2
    del found
    assert all(reference() is None for reference in census.seen)


# ---- modes that the caller may be in ------------------------------------------------------------


def test_the_callers_modes_neither_matter_nor_change() -> None:
    executable = Executable(linear_relu(8, 8, 8))
    x, w = torch.randn(8, 8), torch.nn.Parameter(torch.randn(8, 8))
    expected = executable.run([x, w])[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(executable.run([x, w])[0], expected)
        assert torch.is_autocast_enabled("cpu")
    with torch.inference_mode():
        assert torch.equal(executable.run([x, w])[0], expected)
        assert torch.is_inference_mode_enabled()
        inside = Executable(linear_relu(8, 8, 8))
        assert torch.equal(inside.run([x, w])[0], expected)
    assert torch.equal(inside.run([x, w])[0], expected)
    with torch.no_grad():
        assert torch.equal(executable.run([x, w])[0], expected)
        assert not torch.is_grad_enabled()
    with torch.device("meta"):
        assert torch.equal(executable.run([x, w])[0], expected)
        executable.release()
        assert torch.equal(executable.run([x, w])[0], expected)
    assert torch.is_grad_enabled()
    assert not executable.run([x, w])[0].requires_grad


@pytest.mark.parametrize("role", ["argument", "parameter"])
def test_inputs_that_require_gradients_run_in_every_mode(role: str) -> None:
    program = linear_relu(4, 4, 4)
    executable = Executable(replace(program, inputs=(Input("x"), Input("w", Role(role)))))
    x, w = (torch.randn(4, 4, requires_grad=True) for _ in range(2))
    (expected,) = executable.run([x, w])
    modes: list[AbstractContextManager[Any]] = [
        torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode(), torch.no_grad(),
        torch.enable_grad(),
    ]  # fmt: skip
    for mode in modes:
        with mode:
            assert torch.equal(executable.run([x, w])[0], expected)
    with torch.inference_mode():
        a, b = torch.randn(4, 4), torch.randn(4, 4)
        (inside,) = executable.run([a, b])
    (outside,) = executable.run([a, b])
    assert torch.equal(inside, outside)
    assert torch.equal(executable.run([x, w])[0], expected)


def test_a_gradient_is_taken_in_inference_mode_too() -> None:
    x, dy = Buffer("x", f32(3), "input"), Buffer("dy", f32(3), "input")
    executable = Executable(gradient("aten.exp.default", (("%", 0),), [x], (0,), [dy]))
    with torch.inference_mode():
        value = torch.randn(3)
        (found,) = executable.run([value, torch.ones(3)])
        assert torch.equal(found, value.exp())
    assert torch.equal(executable.run([value, torch.ones(3)])[0], found)


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("kind", ["output", "input"])
def test_out_arguments_may_be_outputs_and_updated_inputs(kind: str, inference: bool) -> None:
    x, y = Buffer("x", f32(2, 3), "input"), Buffer("y", f32(2, 2), kind)
    product = call_of(
        "aten.mm.out", ("%", 0), ("%", 1), inputs=(whole(x), View("x", (3, 2), (1, 3))),
        outputs=(View("y", (2, 2), (1, 2)),),
    )  # fmt: skip
    given = (Input("x"), Input("y", Role("state"))) if kind == "input" else (Input("x"),)
    program = Program(
        "gram", (x, y), (), (product,), given, (whole(y),), ("y",) if kind == "input" else ()
    )
    executable = Executable(program)
    with torch.inference_mode(mode=inference):
        value, state = torch.randn(2, 3), torch.zeros(2, 2)
        for _ in range(2):
            (found,) = executable.run([value, state] if kind == "input" else [value])
            assert torch.equal(found.t(), value @ value.t())
            assert (found is state) == (kind == "input")


# ---- gradients ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "args", "shapes", "wrt"),
    [
        ("aten.tanh.default", (("%", 0),), [(3, 4)], (0,)),
        ("aten.mul.Tensor", (("%", 0), ("%", 1)), [(3, 4), (4,)], (0, 1)),
        ("aten.mul.Tensor", (("%", 0), ("%", 1)), [(3, 4), (4,)], (1,)),
        (
            "aten.convolution.default",
            (("%", 0), ("%", 1), ("%", 2), ("list", 2, 2), ("list", 1, 1), ("list", 1, 1), False,
             ("list", 0, 0), 1),
            [(2, 3, 8, 8), (4, 3, 3, 3), (4,)],
            (2, 0, 1),
        ),
        ("aten.cat.default", (("list", ("%", 0), ("%", 1)), 1), [(2, 3), (2, 1)], (0, 1)),
        ("aten.logsumexp.default", (("%", 0), ("list", 1), True), [(3, 4)], (0,)),
    ],
)  # fmt: skip
def test_a_gradient_is_torchs(
    target: str,
    args: tuple[Template, ...],
    shapes: list[tuple[int, ...]],
    wrt: tuple[int, ...],
) -> None:
    values = [torch.randn(shape) for shape in shapes]
    namespace, name, overload = target.split(".")
    function = getattr(getattr(getattr(torch.ops, namespace), name), overload)

    def decode(template: Template) -> object:
        if isinstance(template, tuple) and template[0] == "%":
            return leaves[template[1]]  # type: ignore[index]
        if isinstance(template, tuple):
            return [decode(item) for item in template[1:]]
        return template

    leaves = [value.clone().requires_grad_() for value in values]
    result = function(*[decode(arg) for arg in args])
    tangent = torch.randn(result.shape)
    expected = torch.autograd.grad(result, [leaves[i] for i in wrt], tangent)

    operands = [Buffer(f"x{i}", f32(*shape), "input") for i, shape in enumerate(shapes)]
    dy = Buffer("dy", f32(*result.shape), "input")
    executable = Executable(gradient(target, args, operands, wrt, [dy]))
    with torch.no_grad():
        found = executable.run([*values, tangent])
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)
        assert ours.stride() == contiguous(tuple(theirs.shape))
        assert not ours.requires_grad


def test_a_gradient_that_does_not_exist_is_zero() -> None:
    x, y = Buffer("x", f32(3), "input"), Buffer("y", f32(3), "input")
    dy = Buffer("dy", f32(3), "input")
    condition = Buffer("c", TensorType((3,), BOOL), "input")
    args = (("%", 2), ("%", 0), ("%", 1))
    sign = gradient("aten.where.self", args, [x, y, condition], (0, 1), [dy])
    mask, tangent = torch.tensor([True, True, True]), torch.ones(3)
    found = Executable(sign).run([torch.randn(3), torch.randn(3), mask, tangent])
    assert found[0].tolist() == [1, 1, 1]
    assert found[1].tolist() == [0, 0, 0]
    zeros = gradient("aten.zeros_like.default", (("%", 0),), [x], (0,), [dy])
    assert Executable(zeros).run([torch.randn(3), tangent])[0].tolist() == [0, 0, 0]


def test_the_tangent_of_one_result_of_several() -> None:
    x, d = Buffer("x", f32(2, 8), "input"), Buffer("d", f32(2, 3), "input")
    args = (("%", 0), ("list", 5, 3), 1)
    program = gradient("aten.split_with_sizes.default", args, [x], (0,), [d], results=(1,))
    tangent = torch.randn(2, 3)
    found = Executable(program).run([torch.randn(2, 8), tangent])[0]
    assert torch.equal(found, torch.cat([torch.zeros(2, 5), tangent], 1))


# ---- refusals -----------------------------------------------------------------------------------


def _one(target: str, *args: Template, outputs: int = 1, vjp: Vjp | None = None) -> Program:
    x = Buffer("x", f32(3, 3), "input")
    made = [Buffer(f"y{i}", f32(3, 3), "library") for i in range(outputs)]
    call = call_of(
        target, *args, inputs=(whole(x),) * (2 if vjp else 1),
        outputs=tuple(whole(b) for b in made), results=tuple(range(outputs)), vjp=vjp,
    )  # fmt: skip
    return calling(call, [x], made)


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (
            _one("aten.no_such_thing.default", ("%", 0)),
            "has no operator aten.no_such_thing.default",
        ),
        (_one("aten.mm.no_such_overload", ("%", 0)), "has no operator"),
        (_one("aten.add_.Tensor", ("%", 0), ("%", 0)), "may not be called by a program"),
        (_one("aten.from_file.default", "/etc/passwd", False, 1), "may not be called"),
        (_one("aten.max.dim_max", ("%", 0), 0), "does not fit its outputs"),
        (_one("aten.bernoulli.default", ("%", 0), vjp=Vjp((0,), (0,))), "other random numbers"),
    ],
)
def test_calls_that_cannot_be_right_are_refused_before_anything_runs(
    program: Program, says: str
) -> None:
    with pytest.raises(LibraryCallError, match=says) as raised:
        Executable(program)
    assert raised.value.where == "model.py:3   x @ y"


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (_one("aten.mm.default", ("%", 0)), "aten.mm.default failed: "),
        (_one("aten.sum.default", ("%", 0)), "result 0 of aten.sum.default is not what"),
        (_one("aten.argmax.default", ("%", 0), 0, True), "is not what"),
        (_one("aten.exp.default", ("%", 0), outputs=2), "result 1 of aten.exp.default"),
    ],
)
def test_calls_that_fail_name_the_line_of_the_user(program: Program, says: str) -> None:
    executable = Executable(program)
    for _ in range(2):
        with pytest.raises(LibraryCallError, match=says) as raised:
            executable.run([torch.randn(3, 3)])
        assert raised.value.where == "model.py:3   x @ y"


def test_an_index_out_of_range_in_the_library_is_an_index_error() -> None:
    table, ids = Buffer("t", f32(4, 2), "input"), Buffer("ids", TensorType((1,), I64), "input")
    out = Buffer("y", f32(1, 2), "library")
    embed = call_of(
        "aten.embedding.default", ("%", 0), ("%", 1), inputs=(whole(table), whole(ids)),
        outputs=(whole(out),), results=(0,),
    )  # fmt: skip
    executable = Executable(calling(embed, [table, ids], [out]))
    with pytest.raises(IndexRangeError) as raised:
        executable.run([torch.randn(4, 2), torch.tensor([9])])
    assert raised.value.where == "model.py:3   x @ y"


def test_a_program_with_library_calls_does_not_run_on_arrays() -> None:
    executable = Executable(linear_relu(2, 2, 2))
    x = torch.zeros(2, 2).numpy()
    with pytest.raises(LibraryCallError, match="cannot run on NumPy arrays"):
        executable(x, x)


def test_roles_of_inputs_do_not_change_results() -> None:
    program = linear_relu(4, 8, 4)
    x, w = torch.randn(4, 8), torch.randn(4, 8)
    found = [
        Executable(replace(program, inputs=(Input("x"), Input("w", Role(role))))).run([x, w])[0]
        for role in ("argument", "parameter")
    ]
    assert torch.equal(*found)
    assert i64(2).dtype == I64
