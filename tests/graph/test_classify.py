"""Sums of products are recognised in every form, and nothing else is; views know their strides."""

import itertools

import numpy as np
import pytest

from tilewright.base.dtypes import BF16, F32, I64, DType
from tilewright.graph import notation
from tilewright.graph.classify import classify_contraction
from tilewright.graph.convolution import Convolution, classify_convolution
from tilewright.graph.evaluate_grid import evaluate_grid
from tilewright.graph.evaluate_naive import evaluate_naive
from tilewright.graph.ir import Formula, TensorType
from tilewright.graph.views import contiguous, is_pointwise, is_reduction, view_of

torch = pytest.importorskip("torch")


def formula(text: str, *shape: int, dtype: DType = F32) -> Formula:
    return notation.read(text, TensorType(shape, dtype))


def types(**shapes: tuple[int, ...]) -> dict[str, TensorType]:
    return {name: TensorType(shape, F32) for name, shape in shapes.items()}


# ------------------------------------------------------------------------------------- contractions


MATRICES = {"a": (4, 5), "b": (5, 6)}
Shapes = dict[str, tuple[int, ...]]


@pytest.mark.parametrize(
    ("text", "shape", "shapes", "parts"),
    [
        (
            "y[m,n] += a[m<4,k<5] * b[k,n<6]",
            (4, 6),
            {"a": (4, 5), "b": (5, 6)},
            ("", "m", "n", "k"),
        ),
        (
            "y[m,n] += b[k,n<6] * a[m<4,k<5]",
            (4, 6),
            {"a": (4, 5), "b": (5, 6)},
            ("", "n", "m", "k"),
        ),
        (
            "y[b,t,o] += x[b<2,t<3,i<5] * w[o<6,i]",
            (2, 3, 6),
            {"x": (2, 3, 5), "w": (6, 5)},
            ("", "bt", "o", "i"),
        ),
        (
            "y[o,i] += d[b<2,t<3,o<6] * x[b,t,i<5]",
            (6, 5),
            {"x": (2, 3, 5), "d": (2, 3, 6)},
            ("", "o", "i", "bt"),
        ),
        (
            "y[b,h,s,t] += q[b<2,s<4,h*8+d] * k[b,t<4,h*8+d] for h<3, d<8",
            (2, 3, 4, 4),
            {"q": (2, 4, 24), "k": (2, 4, 24)},
            ("bh", "s", "t", "d"),
        ),
        (
            "y[b,g*3+o] += x[b<2,g*5+i] * w[g*3+o,i<5] for g<4, o<3",
            (2, 12),
            {"x": (2, 20), "w": (12, 5)},
            ("g", "b", "o", "i"),
        ),
    ],
)
def test_each_loop_of_a_contraction_plays_a_part(
    text: str, shape: tuple[int, ...], shapes: dict[str, tuple[int, ...]], parts: tuple[str, ...]
) -> None:
    found = classify_contraction(formula(text, *shape), types(**shapes))
    assert found is not None
    kinds = (found.batch, found.m, found.n, found.k)
    assert tuple("".join(loop.name for loop in kind) for kind in kinds) == parts
    assert found.is_matrix


@pytest.mark.parametrize(
    ("text", "operands", "dtype", "product"),
    [
        ("y[n] += a[k<64] * b[n<64,k]", {"a": (64,), "b": (64, 64)}, BF16, True),
        ("y[n] += b[n<64,k<64] * a[k]", {"a": (64,), "b": (64, 64)}, BF16, True),
        ("y[n] += a[k<64] * b[k,n<64]", {"a": (64,), "b": (64, 64)}, BF16, False),
        ("y[n] += a[k<63] * b[n<99,k]", {"a": (63,), "b": (99, 63)}, BF16, False),
        ("y[n] += a[k<64] * b[n<63,k]", {"a": (64,), "b": (63, 64)}, BF16, False),
        ("y[n] += a[n<64,k<64] * b[n,k]", {"a": (64, 64), "b": (64, 64)}, BF16, False),
        ("y[n] += a[k<64] * b[n<64,k]", {"a": (64,), "b": (64, 64)}, F32, False),
    ],
    ids=["along", "turned", "across", "short", "little", "weighted sums", "float32"],
)
def test_long_vectors_of_pairs_by_rows_are_products(
    text: str, operands: dict[str, tuple[int, ...]], dtype: DType, *, product: bool
) -> None:
    made = formula(text, operands["b"][0], dtype=dtype)
    given = {name: TensorType(shape, dtype) for name, shape in operands.items()}
    found = classify_contraction(made, given)
    assert found is not None
    assert found.is_matrix == product


def test_a_constant_factor_is_set_apart() -> None:
    made = formula("y[m,n] += -(a[m<4,k<5] * 0.5 * b[k,n<6])", 4, 6)
    found = classify_contraction(made, types(a=(4, 5), b=(5, 6)))
    assert found is not None
    assert found.scale == -0.5


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("y[m,n] += a[m<4,k<5] + b[k,n<6]", "a sum"),
        ("y[m,n] max= a[m<4,k<5] * b[k,n<6]", "no sum"),
        ("y[m,n] += a[m<4,k<5] * b[k,n<6] where m >= n", "guarded"),
        ("y[m,n] += a[m<4,k<5] * b[k,n<6] else 1", "filled"),
        ("y[m,n] += a[m<4,k<5] * b[k+1,n<6]", "a read outside"),
        ("y[m,n] += a[m<4,k<5] * b[l<5,n<6]", "a loop of one operand"),
        ("y[m,n] += a[m<4,k<5] * a[m,k] * b[k,n<6]", "three factors"),
        ("y[m,n] += (a[m<4,k<5] ?? 0) * b[k,n<6]", "a default"),
    ],
)
def test_what_is_no_contraction_is_none(text: str, why: str) -> None:
    assert classify_contraction(formula(text, 4, 6), types(a=(4, 5), b=(5, 6))) is None, why


def test_a_sum_over_rows_of_products_is_no_matrix_product() -> None:
    found = classify_contraction(
        formula("y[i] += a[i<4,k<5] * b[i,k]", 4), types(a=(4, 5), b=(4, 5))
    )
    assert found is not None
    assert not found.is_matrix


# ------------------------------------------------------------------------------------- convolutions

Ints = tuple[int, ...]
Case = tuple[int, int, int, Ints, Ints, Ints, Ints, Ints]
CASES: list[Case] = [
    # channels in, out, groups, size, kernel, stride, padding, dilation
    (3, 4, 1, (7, 8), (3, 3), (1, 1), (1, 1), (1, 1)),
    (3, 4, 1, (7, 8), (3, 2), (2, 1), (0, 1), (1, 2)),
    (4, 6, 2, (9, 7), (3, 3), (2, 2), (1, 1), (1, 1)),
    (4, 4, 4, (6, 6), (3, 3), (1, 1), (1, 1), (1, 1)),
    (4, 8, 4, (6, 6), (3, 3), (2, 2), (1, 1), (1, 1)),
    (3, 5, 1, (4, 4), (1, 1), (1, 1), (0, 0), (1, 1)),
    (3, 5, 1, (8, 8), (1, 1), (2, 2), (0, 0), (1, 1)),
    (3, 5, 1, (3, 3), (3, 3), (1, 1), (0, 0), (1, 1)),
    (3, 5, 1, (8, 7), (1, 1), (2, 3), (1, 2), (1, 1)),
    (1, 1, 1, (6, 6), (2, 2), (3, 3), (0, 0), (1, 1)),
    (2, 3, 1, (6,), (3,), (2,), (1,), (1,)),
    (2, 3, 1, (4, 5, 4), (2, 3, 3), (1, 2, 1), (1, 1, 0), (1, 1, 1)),
]


def forms(kind: str, case: Case, batch: int) -> tuple[list[str], Shapes, Ints]:
    """Return texts that mean one convolution, the shapes of x, w, d, and the result's."""
    cin, cout, groups, size, kernel, stride, padding, dilation = case
    c, o = cin // groups, cout // groups
    out = tuple(
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(size, kernel, stride, padding, dilation, strict=True)
    )
    dims = list(zip("hwz", "ijk", "abe", stride, padding, dilation, strict=False))
    window = [f"{h}*{s}+{i}*{d}-{p}" for h, i, _, s, p, d in dims]
    solved = [f"({a}-{i}*{d}+{p})/{s}" for _, i, a, s, p, d in dims]
    hs, ids, abe = (list(text[: len(size)]) for text in ("hwz", "ijk", "abe"))
    loops = {"n": batch, "g": groups, "o": o, "c": c}
    loops |= dict(zip(ids, kernel, strict=True))
    heights = dict(zip(hs, out, strict=True))
    widths = dict(zip(abe, size, strict=True))
    shapes = {"x": (batch, cin, *size), "w": (cout, c, *kernel), "d": (batch, cout, *out)}
    x, w, y = (
        ",".join(["n", f"g*{c}+c", *window]),
        ",".join([f"g*{o}+o", "c", *ids]),
        ",".join(["n", f"g*{o}+o", *hs]),
    )

    def text(target: str, left: str, right: str, extents: dict[str, int]) -> str:
        limits = ", ".join(f"{name}<{extent}" for name, extent in extents.items())
        return f"y[{target}] += {left} * {right} for {limits}"

    if kind == "forward":
        target_bare = ",".join(["n", "O", *hs])
        x_bare = ",".join(["n", f"O//{o}*{c}+c", *window])
        w_bare = ",".join(["O", "c", *ids])
        bare = {**loops, **heights, "O": cout}
        del bare["g"], bare["o"]
        made = [
            text(y, f"x[{x}]", f"w[{w}]", {**loops, **heights}),
            text(y, f"w[{w}]", f"x[{x}]", dict(sorted({**loops, **heights}.items()))),
            text(target_bare, f"x[{x_bare}]", f"w[{w_bare}]", bare),
        ]
        return made, shapes, shapes["d"]
    if kind == "weight":
        made = [text(w, f"d[{y}]", f"x[{x}]", {**heights, **loops})]
        return made, shapes, shapes["w"]
    target = ",".join(["n", f"g*{c}+c", *abe])
    scattered = text(x, f"d[{y}]", f"w[{w}]", {**loops, **heights})
    inside = (f"{at} >= 0 and {at} < {n}" for at, n in zip(window, size, strict=True))
    d_solved = ",".join(["n", f"g*{o}+o", *solved])
    bare = {**loops, **widths, "C": cin}
    del bare["g"], bare["c"]
    made = [
        text(target, f"d[{d_solved}]", f"w[{w}]", {**loops, **widths}),
        scattered,
        scattered.replace(" for ", f" where {' and '.join(inside)} for "),
        text(
            ",".join(["n", "C", *abe]),
            f"w[{','.join([f'C//{c}*{o}+o', f'C%{c}', *ids])}]",
            f"d[{','.join(['n', f'C//{c}*{o}+o', *solved])}]",
            bare,
        ),
    ]
    return made, shapes, shapes["x"]


def by_torch(found: Convolution, arrays: dict[str, np.ndarray]) -> np.ndarray:
    x, w, d = (torch.from_numpy(arrays[name]).double() for name in "xwd")
    x.requires_grad_()
    w.requires_grad_()
    call = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}[found.n]
    y = call(x, w, None, found.stride, found.padding, found.dilation, found.groups)
    if found.kind == "forward":
        return np.asarray(y.detach())
    (gradient,) = torch.autograd.grad(y, [x if found.kind == "input" else w], d)
    return np.asarray(gradient)


@pytest.mark.parametrize("kind", ["forward", "input", "weight"])
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("batch", [1, 2])
def test_convolutions_and_their_gradients_are_recognised_in_any_form(
    kind: str, case: Case, batch: int
) -> None:
    texts, shapes, shape = forms(kind, case, batch)
    generator = np.random.default_rng(1)
    arrays = {name: generator.standard_normal(s).astype(np.float32) for name, s in shapes.items()}
    names = {"forward": ("x", "w", None), "input": (None, "w", "d"), "weight": ("x", None, "d")}
    for text in texts:
        made = notation.read(text, TensorType(shape, F32))
        found = classify_convolution(made, types(**shapes))
        assert found is not None, text
        assert (found.kind, found.groups) == (kind, case[2])
        assert (found.input, found.weight, found.output) == names[kind]
        expected = evaluate_grid(made, [arrays[name] for name in made.operands], wide=True)
        np.testing.assert_allclose(by_torch(found, arrays), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("y[n<2,o<4,h<6] += x[n,c<3,h+i-1] * w[o,c,i<3] where h > 0", "guarded"),
        ("y[n<2,o<4,h<6] += x[n,c<3,h+i*h-1] * w[o,c,i<3]", "no window"),
        ("y[n<2,o<4,h<6] += x[n,c<3,5-h+i] * w[o,c,i<3]", "backward"),
        ("y[n<2,o<4,h<6] += x[1-n,c<3,h+i-1] * w[o,c,i<3]", "a batch that is mixed"),
        ("y[n<2,o<4,h<6] += x[n,2-c,h+i-1] * w[o,c<3,i<3]", "channels that are mixed"),
        ("y[n<2,o<4,h<5] += x[n,c<3,h+i-1] * w[o,c,i<3]", "another size"),
    ],
)
def test_what_is_no_convolution_is_none(text: str, why: str) -> None:
    height = 5 if "h<5" in text else 6
    made = formula(text, 2, 4, height)
    assert classify_convolution(made, types(x=(2, 3, 6), w=(4, 3, 3))) is None, why


@pytest.mark.parametrize("guard", ["2*h-1 >= 1", "2*h-1 < 6", "h >= 0 and h > n", "h < 4"])
def test_a_gradient_that_skips_what_is_inside_is_no_convolution(guard: str) -> None:
    text = f"y[n<2,c<3,2*h-1] += d[n,o<4,h<5] * w[o,c,i<1] where {guard}"
    shapes = types(d=(2, 4, 5), w=(4, 3, 1))
    assert classify_convolution(formula(text, 2, 3, 8), shapes) is None
    loose = text.replace(guard, "2*h-1 >= 0 and 2*h-1 < 8")
    assert classify_convolution(formula(loose, 2, 3, 8), shapes) is not None


LAST: dict[str, tuple[str, tuple[int, ...]]] = {
    "forward": ("y[n<2,h<4,w<3,c<5] += x[n,2*h+i-1,w+j,c] * k[c,0,i<3,j<2]", (2, 4, 3, 5)),
    "input": ("y[n<2,2*h+i-1,w+j,c<5] += d[n,h<4,w<3,c] * k[c,0,i<3,j<2]", (2, 8, 4, 5)),
    "weight": ("y[c<5,0,i<3,j<2] += x[n<2,2*h+i-1,w+j,c] * d[n,h<4,w<3,c]", (5, 1, 3, 2)),
}


@pytest.mark.parametrize("kind", LAST)
def test_channels_may_be_the_last_dim_where_each_has_a_kernel_of_its_own(kind: str) -> None:
    text, shape = LAST[kind]
    shapes = types(x=(2, 8, 4, 5), k=(5, 1, 3, 2), d=(2, 4, 3, 5))
    made = formula(text, *shape)
    found = classify_convolution(made, {name: shapes[name] for name in made.operands})
    assert found is not None
    assert (found.kind, found.last, found.groups) == (kind, True, 5)
    assert (found.stride, found.padding, found.dilation) == ((2, 1), (1, 0), (1, 1))
    assert found.shapes == ((2, 5, 8, 4), (5, 1, 3, 2), (2, 5, 4, 3))


def test_other_convolutions_have_their_channels_second() -> None:
    made = formula("y[n<2,h<4,o<6] += x[n,h+i,c<5] * k[o,c,i<3]", 2, 4, 6)
    assert classify_convolution(made, types(x=(2, 6, 5), k=(6, 5, 3))) is None


def test_a_batched_matrix_product_is_no_convolution() -> None:
    made = formula("y[b<2,m<3,n<4] += a[b,m,k<5] * w[b,k,n]", 2, 3, 4)
    assert classify_convolution(made, types(a=(2, 3, 5), w=(2, 5, 4))) is None


def test_a_product_over_no_channels_is_no_convolution() -> None:
    made = formula("y[n<2,o<4,h<6] += x[n,c<0,h+i-1] * w[o,c,i<3]", 2, 4, 6)
    assert classify_convolution(made, types(x=(2, 0, 6), w=(4, 0, 3))) is None


# -------------------------------------------------------------------------------------------- views


@pytest.mark.parametrize(
    ("text", "shape", "expected"),
    [
        ("y[i,j] = x[j<6,i<4]", (4, 6), lambda x: x.T),
        ("y[i<2,j<6] = x[j,i*2+1]", (2, 6), lambda x: x.T[1::2]),
        ("y[a,b,j] = x[a*3+b,j<4] for a<2, b<3", (2, 3, 4), lambda x: x.reshape(2, 3, 4)),
        ("y[n<24] = x[n//4,n%4]", (24,), lambda x: x.reshape(-1)),
        ("y[a<3,b<8] = x[(a*8+b)//4,(a*8+b)%4]", (3, 8), lambda x: x.reshape(3, 8)),
        ("y[k<5,i,j] = x[i<6,j<4]", (5, 6, 4), lambda x: np.broadcast_to(x, (5, 6, 4))),
        ("y[i,j<1] = x[i<6,2]", (6, 1), lambda x: x[:, 2:3]),
        ("y[a*2+b] = x[a<3,b<2] for a<3", (6,), None),
        ("y[n<12] = x[n//2,n%2]", (12,), None),
    ],
)
def test_a_view_has_strides_where_its_elements_lie_evenly(
    text: str, shape: tuple[int, ...], expected: object
) -> None:
    made = formula(text, *shape)
    kinds = types(x=(6, 4))
    view = view_of(made, kinds)
    assert view is not None
    x = np.arange(24, dtype=np.float32).reshape(6, 4)
    strided = view.strided(contiguous((6, 4)), 0)
    if expected is None:
        assert strided is None
        return
    assert strided is not None
    flat = x.ravel()
    steps = [step * 4 for step in strided.strides]
    seen = np.lib.stride_tricks.as_strided(flat[strided.offset :], shape, steps)
    np.testing.assert_array_equal(seen, expected(x))  # type: ignore[operator]
    np.testing.assert_array_equal(seen, evaluate_naive(made, [x]))


def test_a_reshape_of_a_transposed_tensor_needs_a_copy() -> None:
    view = view_of(formula("y[n<24] = x[n//4,n%4]", 24), types(x=(6, 4)))
    assert view is not None
    assert view.strided((1, 6)) is None
    assert view.strided((8, 2), 3) is not None


@pytest.mark.parametrize(
    "text",
    [
        "y[i<4] = x[i] + 1",
        "y[i<4] = x[i-1]",
        "y[i<4] = x[i] where i > 1",
        "y[i<4] = x[i-1] ?? 0",
        "y[i<4] = x[ids[i]]",
        "y[i<4] = 2",
        "y[i*2] = x[i<2]",
        "y[i<4] += x[i]",
    ],
)
def test_what_computes_is_no_view(text: str) -> None:
    kinds = {**types(x=(4,)), "ids": TensorType((4,), I64)}
    assert view_of(formula(text, 4), kinds) is None


def test_an_identity_is_one_whatever_its_loops_are_called() -> None:
    view = view_of(formula("y[b,a] = x[b<3,a<1]", 3, 1), types(x=(3, 1)))
    assert view is not None
    assert view.is_identity((3, 1))
    assert not view.is_identity((1, 3))


@pytest.mark.parametrize(
    ("text", "pointwise", "reduction"),
    [
        ("y[i<4,j<3] = x[i,j] * 2", True, False),
        ("y[i<4,0] = x[i,0]", False, False),
        ("y[i<4,j<3] += x[i,k<3]", False, True),
        ("y[i<4,j<2] = x[i,j]", False, False),
        ("y[i<4,x[j<3,0]] += x[i,j]", False, False),
    ],
)
def test_kinds_of_loops(text: str, pointwise: bool, reduction: bool) -> None:
    made = formula(text, 4, 3)
    assert (is_pointwise(made), is_reduction(made)) == (pointwise, reduction)


def test_all_orders_of_loops_and_factors_are_one_convolution() -> None:
    loops = {"n": 2, "o": 4, "h": 6, "c": 3, "i": 3}
    shapes = types(x=(2, 3, 6), w=(4, 3, 3))
    found = set()
    for order in itertools.islice(itertools.permutations(loops), 24):
        limits = ", ".join(f"{name}<{loops[name]}" for name in order)
        for value in ("x[n,c,h+i-1] * w[o,c,i]", "w[o,c,i] * x[n,c,i+h-1]"):
            made = formula(f"y[n,o,h] += {value} for {limits}", 2, 4, 6)
            found.add(classify_convolution(made, shapes))
    assert len(found) == 1
    assert None not in found
