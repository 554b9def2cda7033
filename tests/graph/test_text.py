"""The text of graphs: round trip, hostile input, the brief form, and the hash."""

import random
from dataclasses import replace

import pytest
from tests.graph.graphs import random_graph

from tilewright.base.dtypes import F32
from tilewright.base.errors import UNKNOWN, GraphError, Origin
from tilewright.base.expr import Sym, call
from tilewright.graph import notation
from tilewright.graph.build import Builder, names, rename
from tilewright.graph.ir import FUSED, Graph, Role, TensorType
from tilewright.graph.text import digest, parse, show, show_attr, show_node, show_type

TEXT = """\
graph main(
  %x : f32[32, 128],
  %w : f32[128, 64] parameter "layers.0.mlp.down.weight",
  %"running mean" : f32[64] buffer,
) {
  %y = matmul(%x, %w) : f32[32, 64] {y[i<32, j<64] += a[i, k<128] * b[k, j]} \
@ "model.py":12 "x = self.down(h)" "layers.0.mlp"
  %p = softmax(%y, dim=-1, scale=0.5, mode="none", dims=(1,)) : f32[32, 64]
  %dx = {y[i<32, k<128] += a[i, j<64] * b[k, j]}(%p, %w) : f32[32, 128] @ "model.py":12
  %c = constant(value=((1.0, inf), (nan, -0.0))) : f32[2, 2]
  %v, %i = topk(%p, k=2) : f32[32, 2], i64[32, 2]
  %f, %m = fused(%p, %"running mean") : f32[32, 64], f32[64] @ "norm.py":3 with
    graph body(
      %a : f32[32, 64],
      %b : f32[64],
    ) {
      %s = {y[i<32, j<64] = a[i, j] + b[j]}(%a, %b) : f32[32, 64]
      %t = {y[j<64] += a[i<32, j]}(%s) : f32[64]
      return %s, %t
    }
  return %dx, %v, %i, %f, %m, %c
  updates %"running mean" = 4
}
"""


def test_the_text_of_everything_reads_back_to_the_same_text() -> None:
    graph = parse(TEXT)
    assert show(graph) == TEXT
    assert graph.role("w") == Role("parameter", "layers.0.mlp.down.weight")
    assert graph.nodes[0].origin == Origin("model.py", 12, "x = self.down(h)", "layers.0.mlp")
    assert graph.updates == (("running mean", 4),)
    assert [node.op for node in graph.nodes[5].graphs[0].nodes] == ["formula", "formula"]


@pytest.mark.parametrize("seed", range(120))
def test_parse_gives_back_an_equal_graph(seed: int) -> None:
    graph = random_graph(seed)
    assert parse(show(graph)) == graph


def test_sizes_are_expressions() -> None:
    n = Sym("n")
    type_ = TensorType((n, call("floordiv", call("add", n, 1), 2), 3), F32)
    builder = Builder()
    x = builder.input("x", type_)
    graph = builder.finish([x])
    assert show_type(type_) == "f32[n, (n + 1) // 2, 3]"
    assert parse(show(graph)) == graph


def test_comments_and_spacing_do_not_count() -> None:
    text = "graph g(%x:f32[2],%y:f32[ 2 ]){# nothing\n\n  return  %y ,%x}# end"
    assert (
        show(parse(text)) == "graph g(\n  %x : f32[2],\n  %y : f32[2],\n) {\n  return %y, %x\n}\n"
    )


def test_the_brief_form_leaves_out_origins_and_the_loops_of_named_operators() -> None:
    brief = show(parse(TEXT), brief=True)
    assert "@" not in brief
    assert "  %y = matmul(%x, %w) : f32[32, 64]\n" in brief
    assert "  %dx = {y[i<32, k<128] += a[i, j<64] * b[k, j]}(%p, %w) : f32[32, 128]\n" in brief
    assert show(parse(brief), brief=True) == brief


def test_a_node_prints_alone() -> None:
    assert show_node(parse(TEXT).nodes[2], brief=True) == (
        "%dx = {y[i<32, k<128] += a[i, j<64] * b[k, j]}(%p, %w) : f32[32, 128]"
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None"),
        (True, "True"),
        (-3, "-3"),
        (1.0, "1.0"),
        (float("-inf"), "-inf"),
        ("a\n", '"a\\n"'),
        ("é", '"é"'),
        ((), "()"),
        ((1, ("x",)), '(1, ("x",))'),
    ],
)
def test_attributes_are_written_as_in_python(value: object, text: str) -> None:
    assert show_attr(value) == text  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------- hostile text


BAD = {
    "graph g() { return": "line 1: cannot read the graph\n  expected  '}'\n"
    "  found     the end of the text",
    "graph g() {\n  return %x\n}": "line 2: cannot read the graph\n"
    "  expected  a value that is defined before\n  found     %x",
    "graph g(%x : f99[2]) { return }": "line 1: cannot read the graph\n"
    "  expected  an element type (bool, u8, i8, i16, i32, i64, f16, bf16, f32, f64)\n"
    "  found     f99[2]) { return }",
    "graph g(%x : f32[2]) {\n  %y = f(%x, a=[1]) : f32[2]\n  return %y\n}": "line 2: cannot read "
    "the graph\n  expected  a number, a string, a tuple, None, True or False\n"
    "  found     [1]) : f32[2]",
    "graph g(%x : f32[2]) {\n  %x = f() : f32[2]\n  return %x\n}": "line 2: cannot read the graph\n"
    "  expected  a name that is free\n  found     %x = f() : f32[2]",
    "graph g(%x : f32[2]) {\n  %y = {y[i<2] = a[i}(%x) : f32[2]\n  return %y\n}": "line 2: cannot "
    "read the graph\n  expected  a formula\n  found     {y[i<2] = a[i}(%x) : f32[2]\n"
    "  known     cannot read the notation: expected ',', found the end of the text",
    "graph g(%x : f32[2]) {\n  %y = {y[i<2] = a[i]}(%x) : f32[3, 4]\n  return %y\n}": "graph 'g' "
    "breaks the rule 'reductions': the target's index is not of its rank\n"
    "  expected  a formula's reduction exists and fits its type\n  found     = into f32[3, 4]",
}


@pytest.mark.parametrize("text", BAD)
def test_bad_text_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(GraphError) as error:
        parse(text)
    assert str(error.value) == BAD[text]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\0",
        "graph",
        "graph g(%x : f32[" + "9" * 5000 + "]) { return }",
        "graph g(%x : f32[" + "(" * 5000 + "]) { return }",
        "graph g(%x : f32[" + "not " * 5000 + "n]) { return }",
        "graph g(%x : f32[1]) { %y = f(a=" + "(" * 5000 + ") : f32[1] return }",
        "graph g(%x : f32[1]) { %y = f(a=" + "1" * 5000 + ") : f32[1] return }",
        "graph g(%x : f32[1]) { %y = f() : f32[1] with "
        + "graph b() { %z = f() : f32[1] with " * 500,
        'graph g(%x : f32[1] "\\q") { return }',
        "graph g() { return } trailing",
    ],
)
def test_hostile_text_is_refused(text: str) -> None:
    with pytest.raises(GraphError):
        parse(text)


def test_truncated_text_is_never_a_graph() -> None:
    for end in range(len(TEXT.rstrip())):
        with pytest.raises(GraphError):
            parse(TEXT[:end])


@pytest.mark.parametrize("seed", range(40))
def test_altered_text_is_a_legal_graph_or_an_error(seed: int) -> None:
    rng = random.Random(seed)
    text = show(random_graph(seed))
    for _ in range(40):
        at, other = rng.randrange(len(text)), rng.randrange(len(text))
        character = rng.choice('{}[]()%:=@"<,0123456789abc -+?/\n\\#é')
        altered = rng.choice(
            (
                text[:at] + character + text[at + 1 :],
                text[:at] + text[at + rng.randrange(30) :],
                text[:at] + text[other : other + 40] + text[at:],
            )
        )
        try:
            graph = parse(altered)
        except GraphError:
            continue
        assert parse(show(graph)) == graph


# --------------------------------------------------------------------------------------- the hash


def test_the_hash_does_not_depend_on_names_or_origins() -> None:
    graph = parse(TEXT)
    renamed = rename(graph, {name: f"other {at}" for at, name in enumerate(names(graph))})
    moved = replace(
        renamed,
        name="other",
        nodes=tuple(replace(node, origin=UNKNOWN) for node in renamed.nodes),
        roles=tuple((name, Role(role.kind, "another.name")) for name, role in renamed.roles),
    )
    assert moved != graph
    assert digest(moved) == digest(graph)


def test_the_hash_does_not_depend_on_the_names_of_loops_and_operands() -> None:
    one = TEXT.replace("a[i, k<128] * b[k, j]", "p[i, q<128] * r[q, j]")
    assert one != TEXT
    assert digest(parse(one)) == digest(parse(TEXT))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a[i, k<128] * b[k, j]", "a[i, k<128] * b[k, 63-j]"),
        ("dim=-1", "dim=1"),
        ("dim=-1", "dim=-1.0"),
        ("scale=0.5", "scale=0.25"),
        ("softmax", "log_softmax"),
        ("parameter", "buffer"),
        ("return %dx, %v, %i, %f", "return %dx, %v, %i, %p"),
        ('updates %"running mean" = 4\n', "\n"),
        ("(1.0, inf)", "(1.0, -inf)"),
        ("a[i, j] + b[j]", "a[i, j] - b[j]"),
    ],
)
def test_the_hash_depends_on_what_is_computed(before: str, after: str) -> None:
    altered = TEXT.replace(before, after)
    assert altered != TEXT
    assert digest(parse(altered)) != digest(parse(TEXT))


def test_different_graphs_have_different_hashes() -> None:
    assert len({digest(random_graph(seed)) for seed in range(60)}) == 60


def test_inputs_with_no_role_and_roles_out_of_order_are_kept() -> None:
    builder = Builder("g")
    x = builder.input("x", TensorType((), F32), Role("argument"))
    builder.input("y", TensorType((), F32), Role("state", 'odd "name"'))
    builder.input("z", TensorType((), F32))
    graph = builder.finish([x])
    swapped = replace(graph, roles=tuple(reversed(graph.roles)))
    for each in (graph, swapped, Graph("empty", (), (), ())):
        assert parse(show(each)) == each


def test_a_fused_node_without_results_still_prints() -> None:
    builder = Builder("g")
    inner = Builder("body").finish([])
    builder.multi(FUSED, [], [], graphs=[inner])
    assert parse(show(builder.finish([]))) == builder.finish([])


def test_formulas_that_compare_loops_read_back() -> None:
    vector = TensorType((3,), F32)
    formula = notation.read("y[i<3] += a[j<3] where j < 2", vector)
    builder = Builder("g")
    y = builder.formula(formula, builder.input("x", vector))
    assert parse(show(builder.finish([y]))) == builder.finish([y])
    assert len(formula.loops) == 2
    assert formula.where == call("lt", Sym("j"), 2)
