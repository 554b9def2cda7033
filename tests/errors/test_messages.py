"""What a user reads when something is wrong: each message whole, against its golden."""

import hashlib
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.errors import mistakes
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import tilewright as tw
from tilewright.base.errors import CacheWarning, FallbackWarning, TilewrightError
from tilewright.compiler.fallback import FALLBACKS
from tilewright.program import save

Golden = Callable[[str, str], None]
Tensor = torch.Tensor

ROOT = Path(__file__).parent.parent.parent
X = torch.ones(2, 4)


def _message(error: BaseException) -> str:
    """Class and text, with this machine's folders taken out."""
    text = str(error).replace(f"{ROOT}/", "")
    return f"{type(error).__name__}: {text}"


def _asking(*shape: int) -> Tensor:
    return torch.ones(*shape, requires_grad=True)


def _overlapping() -> tuple[Tensor, Tensor]:
    whole = torch.ones(3, 4)
    return whole[:2], whole[1:]


def _linear_without_memory(make: Any) -> nn.Module:
    with make:
        return nn.Linear(4, 4)


COMPILED: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "shape_in_a_module": (mistakes.Stack(), (X,), {}),
    "dtype_in_a_module": (mistakes.Mixed(), (X,), {}),
    "data_dependent_shape": (mistakes.keeps_positive, (X,), {}),
    "data_dependent_branch": (mistakes.branches, (X,), {}),
    "data_dependent_number": (mistakes.scales_by_item, (X,), {}),
    "mutation_of_a_parameter": (mistakes.DecaysItsWeight(), (X,), {}),
    "mutation_past_autograd": (mistakes.writes_past_autograd, (_asking(2, 4),), {}),
    "mutation_of_a_leaf": (mistakes.adds_to_argument, (_asking(2, 4),), {}),
    "mutation_with_a_gradient": (mistakes.overwrites_argument, (_asking(2, 4) * 1,), {}),
    "mutation_of_shared_memory": (mistakes.adds_first_to_second, _overlapping(), {}),
    "mutation_of_strides": (mistakes.transposes_argument, (X.clone(),), {}),
    "print": (mistakes.prints, (X,), {}),
    "python_state": (mistakes.Remembers(), (X,), {}),
    "exception": (mistakes.raises, (X,), {}),
    "assertion": (mistakes.asserts, (X,), {}),
    "forbidden_library_call": (mistakes.sorts, (X,), {"options": tw.Options(library=False)}),
    "custom_function": (mistakes.uses_custom_function, (_asking(3),), {}),
    "derivative_inside": (mistakes.takes_a_gradient, (_asking(3),), {}),
    "packed_sequence": (mistakes.packs, (torch.ones(2, 2, 3),), {}),
    "bucket_that_is_reduced": (
        mistakes.centres,
        (torch.ones(5, 4),),
        {"options": tw.Options(buckets=("batch",))},
    ),
    "missing_dim": (mistakes.softmax_of_missing_dim, (X,), {}),
    "result_of_no_tensor": (mistakes.counts_letters, (X,), {}),
    "parameter_on_meta": (_linear_without_memory(torch.device("meta")), (X.to("meta"),), {}),
    "parameter_that_is_fake": (_linear_without_memory(FakeTensorMode()), (X,), {}),
    "complex_argument": (mistakes.sorts, (torch.ones(2, dtype=torch.complex64),), {}),
}


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("name", COMPILED)
def test_what_cannot_be_compiled_is_refused_at_the_users_line(name: str, golden: Golden) -> None:
    fn, args, options = COMPILED[name]
    with pytest.raises(TilewrightError) as caught:
        tw.compile(fn, *args, **options)
    assert "expected" in str(caught.value)
    assert "found" in str(caught.value)
    golden(f"{name}.txt", _message(caught.value))


CALLS: dict[str, tuple[Any, tuple[Any, ...], tuple[Any, ...]]] = {
    "call_with_another_batch": (mistakes.Stack(6), (X,), (torch.ones(3, 4),)),
    "call_with_another_dtype": (mistakes.Stack(6), (X,), (X.double(),)),
    "call_with_more_arguments": (mistakes.Stack(6), (X,), (X, X)),
    "call_with_a_list": (mistakes.Stack(6), (X,), ([1.0, 2.0],)),
    "index_out_of_range": (
        mistakes.Tokens(),
        (torch.zeros(2, 3, dtype=torch.int64),),
        (torch.tensor([[1, 2, 10], [0, 0, 0]]),),
    ),
    "integer_division_by_zero": (
        mistakes.divides_integers,
        (torch.ones(2, dtype=torch.int64), torch.ones(2, dtype=torch.int64)),
        (torch.tensor([1, 2]), torch.tensor([1, 0])),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_cannot_be_right_is_refused(name: str, golden: Golden) -> None:
    fn, example, args = CALLS[name]
    compiled = tw.compile(fn, *example)
    with pytest.raises(TilewrightError) as caught:
        compiled(*args)
    golden(f"{name}.txt", _message(caught.value))


def test_the_gradient_of_a_gradient_is_refused(golden: Golden) -> None:
    compiled = tw.compile(lambda x: (x**3).sum(), _asking(4))
    x = _asking(4)
    (first,) = torch.autograd.grad(compiled(x), x, create_graph=True)
    with pytest.raises(TilewrightError) as caught:
        first.sum().backward()
    golden("second_derivative.txt", _message(caught.value))


def test_a_fallback_of_torch_compile_says_why_and_names_the_line(golden: Golden) -> None:
    torch._dynamo.reset()
    FALLBACKS.clear()
    compiled = torch.compile(mistakes.DecaysItsWeight(), backend="tilewright")
    with pytest.warns(FallbackWarning) as caught:
        compiled(X)
    (warning,) = [w for w in caught if issubclass(w.category, FallbackWarning)]
    golden("fallback.txt", _message(warning.message))  # type: ignore[arg-type]
    assert len(FALLBACKS) == 1


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("unknown_option", {"options": {"fusion": True}}),
        ("unknown_mode", {"mode": "max-autotune"}),
        ("unknown_check", {"options": {"check": "torch"}}),
        ("unknown_random", {"options": {"random": "numpy"}}),
        ("unknown_buckets", {"options": {"buckets": ("length",)}}),
        ("buckets_of_a_backend", {"options": {"buckets": ("batch",)}}),
    ],
)
def test_options_that_mean_nothing_are_refused(
    name: str, arguments: dict[str, Any], golden: Golden
) -> None:
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        torch.compile(nn.Linear(4, 4), backend="tilewright", **arguments)(X)
    golden(f"{name}.txt", _message(caught.value.inner_exception))


# ---------------------------------------------------------------------------- compiler and cache


@pytest.mark.parametrize(
    ("name", "environment"),
    [
        ("no_c_compiler", {"CC": "", "PATH": ""}),
        ("missing_c_compiler", {"CC": "no-such-compiler"}),
        ("failing_c_compiler", {"CC": "false"}),
    ],
)
def test_without_a_c_compiler_the_mend_is_named(
    name: str, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    with pytest.raises(TilewrightError) as caught:
        tw.compile(torch.tanh, X)
    golden(f"{name}.txt", _message(caught.value))


def test_a_bound_of_the_caches_that_is_no_number_is_refused(
    monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_MIB", "1G")
    with pytest.raises(TilewrightError) as caught:
        tw.compile(torch.tanh, X)
    golden("cache_bound.txt", _message(caught.value))


def test_with_a_cache_that_cannot_be_written_it_warns_once_and_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way of a folder")
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(blocked / "cache"))
    with pytest.warns(CacheWarning) as caught:
        compiled = tw.compile(lambda x: torch.tanh(x) * 1.25, X)
    torch.testing.assert_close(compiled(X), torch.tanh(X) * 1.25)
    (warning,) = [w for w in caught if issubclass(w.category, CacheWarning)]
    golden("unwritable_cache.txt", _message(warning.message).replace(str(tmp_path), "FOLDER"))  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tw.compile(lambda x: torch.tanh(x) * 1.75, X)


# ---------------------------------------------------------------------------- saved Programs


def _cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _altered(data: bytes) -> bytes:
    return data.replace(b"tanh", b"sinh", 1)


def _of_another_version(data: bytes) -> bytes:
    return data.replace(b"tilewright program 4 ", b"tilewright program 5 ", 1)


def _no_program(_: bytes) -> bytes:
    return b"PK\x03\x04 a pickled model, perhaps"


def _empty(_: bytes) -> bytes:
    return b""


def _breaking_a_rule(data: bytes) -> bytes:
    """Altered by somebody who wrote a fitting sum: the kernel would write over its input."""
    body = data.split(b"\n", 1)[1]
    broken = body.replace(b" -> (tanh) flops", b" -> (arg0) flops")
    assert broken != body
    return (
        b"tilewright program 4 sha256 %s\n" % hashlib.sha256(broken).hexdigest().encode() + broken
    )


DAMAGED = {
    "program_truncated": _cut,
    "program_altered": _altered,
    "program_of_another_version": _of_another_version,
    "program_that_is_none": _no_program,
    "program_empty": _empty,
    "program_that_breaks_a_rule": _breaking_a_rule,
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_program_is_refused_before_any_of_it_is_run(
    name: str, tmp_path: Path, golden: Golden
) -> None:
    place = tmp_path / "model.program"
    save(tw.compile(torch.tanh, X).program, place)
    place.write_bytes(DAMAGED[name](place.read_bytes()))
    with pytest.raises(TilewrightError) as caught:
        tw.load(place)
    text = re.sub(r"[0-9a-f]{64}", "SUM", _message(caught.value).replace(str(tmp_path), "FOLDER"))
    golden(f"{name}.txt", re.sub(r"k_[0-9a-f]{16}", "KERNEL", text))


def test_a_whole_program_is_read_back_and_gives_the_same(tmp_path: Path) -> None:
    compiled = tw.compile(torch.tanh, X)
    save(compiled.program, tmp_path / "model.program")
    (found,) = tw.load(tmp_path / "model.program")(X)
    assert torch.equal(found, compiled(X))
