"""From Dynamo's texts to the user's words."""

import pytest
import torch

from tilewright.base.errors import Origin
from tilewright.capture.origin import dotted, identifier, module_of_meta, origin_of_text


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ("L['self']._modules['layers']._modules['0']._parameters['weight']", "layers.0.weight"),
        ("L['self'].__dict__['_modules']['fc']._buffers['mean']", "fc.mean"),
        ("L['x']", "x"),
        ("G['table']", "table"),
        ("L['batch']['ids']", "ids"),
        ("L['self']", "self"),
    ],
)
def test_a_source_becomes_a_dotted_path(source: str, path: str) -> None:
    assert dotted(source) == path


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("layers.0.weight", "layers_0_weight"),
        ("batch['ids']", "batch_ids"),
        ("0", "_0"),
        ("", "_"),
    ],
)
def test_a_path_becomes_an_identifier(text: str, name: str) -> None:
    assert identifier(text) == name
    assert name.isidentifier()


def test_the_innermost_frame_that_is_not_torchs_is_the_origin() -> None:
    trace = f"""  File "/home/me/train.py", line 3, in step
    loss = model(x)
  File "/usr/lib/models/bert.py", line 88, in forward
    h = F.linear(x, self.w)
  File "{torch.__file__}", line 9, in linear
    return _linear(x, w)"""
    assert origin_of_text(trace, "bert.layer") == Origin(
        "/usr/lib/models/bert.py", 88, "h = F.linear(x, self.w)", "bert.layer"
    )


def test_no_trace_and_no_module_are_no_origin() -> None:
    assert str(origin_of_text(None)) == ""
    assert module_of_meta({}) == ""


def test_the_module_of_a_node_is_the_innermost_one() -> None:
    stack = {"1": ("L['self']", int), "2": ("L['self'].layers.0.fc", int)}
    assert module_of_meta({"nn_module_stack": stack}) == "layers.0.fc"
    assert module_of_meta({"nn_module_stack": {"1": ("L['self']", int)}}) == ""
