"""tw.capture: what a captured function takes, holds and answers."""

import copy
import dataclasses
import gc
import logging
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from tilewright.base.errors import (
    CaptureError,
    DTypeError,
    OptionError,
    ShapeError,
    TilewrightError,
)
from tilewright.capture import Captured, capture, replay
from tilewright.graph.text import show


@dataclasses.dataclass
class Plain:
    loss: torch.Tensor
    rest: Any


class Pair(NamedTuple):
    first: torch.Tensor
    second: Any


def call(captured: Captured, *args: Any, **kwargs: Any) -> Any:
    """Run a captured function by replay, as the compiled one would be run."""
    leaves = captured.call.flatten(args, kwargs)
    inputs = captured.feed(leaves)
    mutated = {mutation.input for mutation in captured.mutations}
    fed = [t.clone() if at in mutated else t for at, t in enumerate(inputs)]
    return captured.answer(leaves, inputs, replay(captured.graph, fed))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.BatchNorm1d(4)])
        self.layers[0].weight = self.fc.weight

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        for layer in self.layers:
            x = layer(torch.relu(self.fc(x)))
        return x * scale


def test_inputs_carry_the_names_and_kinds_that_the_user_knows() -> None:
    captured = capture(Net(), torch.randn(3, 4))
    roles = {name: (role.kind, role.source) for name, role in captured.graph.roles}
    assert roles == {
        "x": ("argument", "x"),
        "fc_weight": ("parameter", "fc.weight"),
        "fc_bias": ("parameter", "fc.bias"),
        "layers_0_bias": ("parameter", "layers.0.bias"),
        "layers_1_num_batches_tracked": ("buffer", "layers.1.num_batches_tracked"),
        "layers_1_running_mean": ("buffer", "layers.1.running_mean"),
        "layers_1_running_var": ("buffer", "layers.1.running_var"),
        "layers_1_weight": ("parameter", "layers.1.weight"),
        "layers_1_bias": ("parameter", "layers.1.bias"),
    }


def test_every_node_knows_the_users_line_and_module() -> None:
    captured = capture(Net(), torch.randn(3, 4))
    (norm,) = [node for node in captured.graph.nodes if node.op == "batch_norm"]
    assert norm.origin.file == __file__
    assert norm.origin.code == "x = layer(torch.relu(self.fc(x)))"
    assert norm.origin.module == "layers.1"
    assert all(node.origin.line for node in captured.graph.nodes)


def test_capturing_computes_and_changes_nothing() -> None:
    net = Net()
    before = copy.deepcopy(net.state_dict())
    capture(net, torch.randn(3, 4))
    for key, value in net.state_dict().items():
        assert torch.equal(value, before[key])


class Marking(nn.Module):
    """Marks itself as busy while it runs, as some libraries do."""

    def __init__(self, *, tidy: bool) -> None:
        super().__init__()
        self.busy, self.tidy = False, tidy

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.busy = True
        y = torch.relu(x)
        self.busy = not self.tidy
        return y


def test_nobody_asks_for_a_collection_while_a_graph_is_captured() -> None:
    with mock.patch.object(gc, "collect") as asked:
        capture(nn.Linear(4, 4), torch.ones(2, 4))
    asked.assert_not_called()


def test_an_object_that_is_put_back_as_it_was_has_not_changed() -> None:
    module = Marking(tidy=True)
    captured = capture(module, torch.ones(3))
    assert [node.op for node in captured.graph.nodes] == ["relu"]
    assert not module.busy
    with pytest.raises(CaptureError, match="changes Python objects"):
        capture(Marking(tidy=False), torch.ones(3))


class Counting(nn.Module):
    """Writes a buffer and puts what that gives in the buffer's place."""

    def __init__(self, *, fresh: bool = False, swapped: bool = False) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(3))
        self.register_buffer("other", torch.ones(3))
        self.fresh, self.swapped = fresh, swapped

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = None if self.fresh else self.count
        self.count = torch.add(self.count, x, out=out)
        if self.swapped:
            self.count, self.other = self.other, self.count
        return x * self.count


def test_a_buffer_that_is_put_in_its_own_place_is_written() -> None:
    module, reference, x = Counting(), Counting(), torch.tensor([1.0, -2.0, 3.0])
    buffer = module.count
    captured = capture(module, x)
    assert torch.equal(buffer, torch.zeros(3)), "nothing is computed"
    for _ in range(2):
        assert torch.equal(call(captured, x), reference(x))
        assert module.count is buffer
        assert torch.equal(buffer, reference.count)
    for other in (Counting(fresh=True), Counting(swapped=True)):
        held = other.count, other.other
        with pytest.raises(CaptureError, match="changes Python objects"):
            capture(other, x)
        assert other.count is held[0]
        assert other.other is held[1]


def test_spectral_normalization_moves_its_vectors_as_in_eager() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(5, 4)), nn.Tanh())
    reference, x = copy.deepcopy(module), torch.randn(3, 5)
    captured = capture(module, x)
    for _ in range(3):
        torch.testing.assert_close(call(captured, x), reference(x))
        for name, value in reference.state_dict().items():
            torch.testing.assert_close(module.state_dict()[name], value, msg=name)


LOG = logging.getLogger(__name__)


def _logs(x: torch.Tensor) -> torch.Tensor:
    LOG.warning("a tensor of %s", x.shape)
    return torch.relu(x)


def test_what_is_logged_is_no_result(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    captured = capture(_logs, torch.ones(3))
    assert [node.op for node in captured.graph.nodes] == ["relu"]
    assert not caplog.records
    assert not capfd.readouterr().err, "nor does torch speak of it (2.11 would)"


def _count(*given: Any, times: int = 1) -> int:
    return len(given) * times


@pytest.mark.parametrize(
    "count",
    [
        lambda n: _count(*range(n)),
        lambda n: _count(*range(n), times=2),
        lambda n: _count(*range(n, 0, -2), 7),
        lambda n: sum(_count(*range(k)) for k in range(n)),
    ],
)
def test_a_range_unpacked_into_a_call_passes_its_numbers(count: Callable[[int], int]) -> None:
    def shifted(x: torch.Tensor) -> torch.Tensor:
        return x.permute(*range(x.dim())) + count(x.dim())

    for dims in range(1, 5):
        x = torch.zeros([2] * dims)
        torch.testing.assert_close(call(capture(shifted, x), x), x + count(dims))


def _on_meta() -> tuple[nn.Module, torch.Tensor]:
    with torch.device("meta"):
        return Net(), torch.empty(3, 4)


def _fakes() -> tuple[nn.Module, torch.Tensor]:
    with FakeTensorMode():
        return Net(), torch.empty(3, 4)


@pytest.mark.parametrize("make", [_on_meta, _fakes])
def test_tensors_without_memory_are_captured_as_those_with_it(make: Callable[..., Any]) -> None:
    found = capture(*make()).graph
    assert show(found, brief=True) == show(capture(Net(), torch.ones(3, 4)).graph, brief=True)


def test_state_is_the_modules_own_tensors() -> None:
    net = Net()
    captured = capture(net, torch.randn(3, 4))
    x = torch.randn(3, 4)
    with torch.no_grad():
        net.fc.weight.mul_(2)
        expected = copy.deepcopy(net)(x)
        found = call(captured, x)
    torch.testing.assert_close(found, expected)
    assert int(net.layers[1].num_batches_tracked) == 1


def _structures(x: torch.Tensor, y: torch.Tensor) -> Any:
    h = x @ y
    return {"h": h, "plain": Plain(h.sum(), [None, "text", x]), "pair": Pair(h + 1, (y, 3))}


def test_results_come_back_in_the_users_own_structure() -> None:
    x, y = torch.randn(2, 3), torch.randn(3, 2)
    captured = capture(_structures, torch.ones(2, 3), torch.ones(3, 2))
    found, expected = call(captured, x, y), _structures(x, y)
    assert list(found) == ["h", "plain", "pair"]
    assert torch.equal(found["h"], expected["h"])
    assert type(found["plain"]) is Plain
    assert torch.equal(found["plain"].loss, expected["plain"].loss)
    assert found["plain"].rest[:2] == [None, "text"]
    assert found["plain"].rest[2] is x
    assert type(found["pair"]) is Pair
    assert found["pair"].second == (y, 3)


def test_arguments_may_be_nested_and_given_by_keyword() -> None:
    def f(batch: dict[str, torch.Tensor], *rest: torch.Tensor, power: int) -> torch.Tensor:
        return batch["a"] ** power + batch["b"] * rest[0]

    a, b, c = (torch.randn(3) for _ in range(3))
    captured = capture(f, {"a": a, "b": b}, c, power=2)
    assert [role.source for _, role in captured.graph.roles] == ["batch['a']", "batch['b']", "arg1"]
    assert torch.equal(call(captured, {"a": c, "b": a}, b, power=2), c**2 + a * b)


def test_a_result_may_be_an_argument_or_a_parameter_itself() -> None:
    layer = nn.Linear(2, 2)
    captured = capture(lambda x: (x, layer.weight, x.t()), torch.ones(2, 2))
    x = torch.randn(2, 2)
    first, weight, turned = call(captured, x)
    assert first is x
    assert weight is layer.weight
    assert turned.data_ptr() == x.data_ptr()
    assert captured.graph.nodes == ()


def test_a_view_that_python_makes_of_an_argument_stays_a_view() -> None:
    captured = capture(lambda x: (x.T, (x + 1).T), torch.ones(2, 3))
    x = torch.randn(2, 3)
    turned, other = call(captured, x)
    assert turned.data_ptr() == x.data_ptr()
    assert torch.equal(turned, x.T)
    assert torch.equal(other, x.T + 1)


def test_in_place_changes_of_an_argument_reach_the_caller() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x += y
        x[0] = 5.0
        return x

    captured = capture(f, torch.zeros(3), torch.zeros(3))
    x = torch.arange(3.0)
    version = x._version
    assert call(captured, x, torch.ones(3)) is x
    assert x.tolist() == [5.0, 2.0, 3.0]
    assert x._version > version
    assert [name for name, _ in captured.graph.updates] == ["x"]


def test_many_captures_of_one_function_do_not_fill_dynamos_cache() -> None:
    layer = nn.Linear(2, 2)
    for size in range(1, 20):
        assert capture(layer, torch.ones(size, 2)).graph.inputs[0].type.shape in ((2, 2), (size, 2))


def test_tensors_reached_by_the_function_itself_are_state() -> None:
    table = torch.arange(6.0).reshape(3, 2)
    captured = capture(lambda ids: table[ids], torch.tensor([0, 2]))
    assert sorted(role.kind for _, role in captured.graph.roles) == ["argument", "buffer"]
    table[1] = 7.0
    assert call(captured, torch.tensor([1, 1])).tolist() == [[7.0, 7.0]] * 2


def test_a_long_constant_becomes_an_input_and_a_short_one_a_node() -> None:
    values = list(range(2000))
    captured = capture(lambda x: x + torch.tensor(values) + torch.tensor([1]), torch.ones(2000))
    assert len(captured.graph.inputs) == 2
    assert [node.op for node in captured.graph.nodes].count("constant") == 1
    assert torch.equal(call(captured, torch.zeros(2000)), torch.arange(2000.0) + 1)


def test_recurrent_modules_are_captured_whole() -> None:
    lstm = nn.LSTM(3, 4, num_layers=2, dropout=0.5)
    x = torch.randn(5, 2, 3)
    captured = capture(lstm, x)
    torch.manual_seed(0)
    expected = lstm(x)[0]
    torch.manual_seed(0)
    torch.testing.assert_close(call(captured, x)[0], expected)
    calls = [dict(n.attrs).get("target", n.op) for n in captured.graph.nodes]
    layers = [name for name in calls if name in ("lstm", "aten.lstm.input", "aten.bernoulli.p")]
    assert layers == ["lstm", "aten.bernoulli.p", "lstm"]


# ---------------------------------------------------------------------------- calls that differ


def _scaled(x: torch.Tensor, y: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    return x + y * scale


ONES = torch.ones(2, 3)
DIFFERENT: list[tuple[tuple[Any, ...], dict[str, Any], type[TilewrightError], str]] = [
    (
        (torch.ones(4, 3), ONES.clone(), 2.0),
        {},
        ShapeError,
        """argument 'x' has another shape than the one compiled for
  expected  x: [2, 3]
  found     x: [4, 3]
  mend      compile again with an example of this shape, or use \
torch.compile(backend="tilewright"), which compiles once per shape""",
    ),
    (
        (ONES.double(), ONES.clone(), 2.0),
        {},
        DTypeError,
        """argument 'x' has another element type than the one compiled for
  expected  x: torch.float32
  found     x: torch.float64
  mend      convert it with .to(torch.float32), or compile again""",
    ),
    (
        (ONES, 1.0, 2.0),
        {},
        DTypeError,
        """argument 'y' is not a tensor
  expected  a tensor of torch.float32 and shape [2, 3]
  found     1.0, of type float
  mend      pass a tensor: torch.as_tensor(..., dtype=torch.float32)""",
    ),
    (
        (ONES, ONES.clone(), 3.0),
        {},
        OptionError,
        """argument 'scale' has another value than the one compiled in
  expected  scale = 2.0
  found     scale = 3.0
  mend      pass the same value, or compile again with this one""",
    ),
    (
        (ONES, ONES.clone()),
        {"scale": 2.0},
        OptionError,
        """the arguments are not arranged as they were in the example call
  expected  x, y, scale
  found     2 positional arguments, keywords: scale
  mend      pass arguments by position or keyword as in the example call""",
    ),
]


@pytest.mark.parametrize(("args", "kwargs", "kind", "message"), DIFFERENT)
def test_a_call_that_differs_is_refused(
    args: tuple[Any, ...], kwargs: dict[str, Any], kind: type[TilewrightError], message: str
) -> None:
    captured = capture(_scaled, ONES, torch.zeros(2, 3), 2.0)
    with pytest.raises(kind) as caught:
        captured.bind(args, kwargs)
    assert str(caught.value) == message


def test_one_tensor_passed_twice_has_to_be_one_again() -> None:
    captured = capture(_scaled, ONES, ONES)
    with pytest.raises(OptionError, match="'x' and 'y' were one tensor in the example call"):
        captured.bind((torch.ones(2, 3), torch.ones(2, 3)), {})
