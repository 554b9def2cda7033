"""Fuse formulas into kernels: decide (`plan_fusion`), check, and do.

The idea: what costs is moving memory, so a plan groups formulas such that values live and die
inside a kernel, writes what others need once, and computes again what is cheaper than reading it.
Matrix products, convolutions, composites that were kept, library calls and views that need no copy
stay as they are.

This module does not know how a kernel is written.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from tilewright.base.errors import UNKNOWN
from tilewright.graph.build import producers, prune, sort
from tilewright.graph.classify import classify_addition
from tilewright.graph.compose import over_values, types_of
from tilewright.graph.ir import FORMULA, FUSED, Formula, Graph, Node, Value
from tilewright.graph.total import Types, fixed, total
from tilewright.graph.views import bytes_of, contiguous, is_pointwise, is_reduction, view_of
from tilewright.optimize.merge import Limits, Merger
from tilewright.optimize.plan import FusionPlan, Region, bytes_moved, bytes_read, problems
from tilewright.optimize.recompute import Recomputing, kept_formulas
from tilewright.optimize.rewriting import with_formula
from tilewright.optimize.views import is_for_library

__all__ = ["Fuse", "FusionPlan", "Limits", "Region", "fuse", "plan_fusion"]


@dataclass(frozen=True, slots=True)
class Fuse:
    """Group formulas in fused nodes, one kernel each.

    ::

        %m = {y[i<4] max= x[i, j<8]}(%x)            -->   %y = fused(%x) with graph y(%x) {
        %e = {y[i<4, j<8] = exp(x[i, j] - m[i])}          %m = {y[i<4] max= x[i, j<8]}(%x)
        %s = {y[i<4] += e[i, j<8]}(%e)                      ...
        %y = {y[i<4, j<8] = e[i, j] / s[i]}(%e, %s)         return %y
                                                          }

    keep: operators (by name) that stay nodes of their own.  balance: operations that take as long
    as moving one byte.
    """

    keep: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)
    balance: float = 4.0
    name: str = "fuse"
    needs: tuple[str, ...] = ()
    ensures: tuple[str, ...] = ("fused",)

    def __call__(self, graph: Graph) -> Graph:
        graph = prune(graph)
        plan = plan_fusion(graph, keep=self.keep, limits=self.limits, balance=self.balance)
        return fuse(graph, plan)


def plan_fusion(
    graph: Graph,
    *,
    keep: Collection[str] = (),
    limits: Limits | None = None,
    balance: float = 4.0,
) -> FusionPlan:
    """Decide which formulas become one kernel."""
    types = types_of(graph)
    formulas: dict[str, Formula] = {}
    kept: list[tuple[str, str]] = []
    for node in graph.nodes:
        made = _fusable(node, types, keep, formulas)
        if isinstance(made, str):
            kept += [(value.name, made) for value in node.outputs]
        else:
            formulas[node.output.name] = made
    merger = Merger(graph, formulas, types, limits or Limits())
    merger.run()
    merger.gather_tiny()
    again = Recomputing(merger, balance=balance)
    again.run()
    additions = _additions(again)
    kept += [(name, "an addition to a product, for a library") for name in additions]
    made_by = producers(graph)
    regions = [
        _region(at, made_by, again)
        for at, group in sorted(merger.group.items())
        if again.outputs(at) and group.formulas[0] not in additions
    ]
    after = sum(region.bytes for region in regions)
    plan = FusionPlan(tuple(regions), tuple(kept), bytes_moved(graph, formulas, types), after)
    for problem in problems(plan, graph):
        raise AssertionError(f"fusion of {graph.name!r}: {problem}")
    return plan


def fuse(graph: Graph, plan: FusionPlan) -> Graph:
    """Apply a plan: one fused node per region, everything else as it was."""
    outside = {name for name, _ in plan.kept}
    # A region stands where its last formula stood, so that results are made as late as they were.
    last = {region.outputs[-1].name: _fused(region) for region in plan.regions}
    nodes: list[Node] = []
    for node in graph.nodes:
        if any(value.name in outside for value in node.outputs):
            nodes.append(node)
        nodes += [last[value.name] for value in node.outputs if value.name in last]
    return prune(sort(replace(graph, nodes=tuple(nodes))))


def _additions(again: Recomputing) -> list[str]:
    """Return the values that are a region alone and only add to a product made for them."""
    merger = again.merger
    found: list[str] = []
    for at, group in merger.group.items():
        formulas = list(again.readers[at].formulas.values())
        addition = classify_addition(formulas[0], merger.types) if len(formulas) == 1 else None
        if addition is None or addition.product not in merger.position:
            continue
        maker = merger.graph.nodes[merger.position[addition.product]]
        alone = len(merger.users[addition.product]) == 1
        fresh = addition.product not in merger.results
        product = maker.formula is not None and is_for_library(over_values(maker), merger.types)
        if product and alone and fresh:
            found.append(group.formulas[0])
    return found


def _fusable(
    node: Node, types: Types, keep: Collection[str], fusable: Collection[str]
) -> Formula | str:
    """Return the formula to fuse, or why the node stays outside.

    fusable: the values known to be made by kernels; all others may lie anyhow in memory.
    """
    if node.formula is None:
        return node.op
    if node.op in keep:
        return f"{node.op} is kept"
    formula = over_values(node)
    if any(fixed(loop.extent) == 0 for loop in formula.loops) or bytes_of(formula.type) == 0:
        return "empty"
    if is_for_library(formula, types):
        return "a sum of products, for a library"
    view = view_of(formula, types)
    if view is not None:
        shape = [fixed(dim) for dim in types[view.operand].shape]
        free = view.strided(contiguous(shape)) is not None
        if free or view.operand not in fusable:
            return f"a view of {view.operand}"
    if is_pointwise(formula) or is_reduction(formula) or formula.op != "=":
        return formula
    return total(formula, types) or formula


def _region(at: int, made_by: Mapping[str, Node], again: Recomputing) -> Region:
    group, reader = again.merger.group[at], again.readers[at]
    outputs = again.outputs(at)
    formulas = kept_formulas(reader.formulas, outputs)
    origins = {new: old for old, new in reader.again.items()}
    nodes: list[Node] = []
    for name, formula in formulas.items():
        old = made_by[origins.get(name, name)]
        blank = Node(FORMULA, (), (Value(name, formula.type),), origin=old.origin)
        nodes.append(with_formula(blank, formula, again.types))
    inputs = dict.fromkeys(
        value for node in nodes for value in node.inputs if value.name not in formulas
    )
    read = bytes_read(formulas.values(), again.types)
    moved = sum(size for name, size in read.items() if name not in formulas)
    moved += sum(bytes_of(again.types[name]) for name in outputs)
    rows = group.space.rows
    points = group.space.size(group.space.digits)
    count = points if rows is None else group.space.size(rows)
    refused = again.merger.refusals(group.formulas)
    return Region(
        group.kind,
        count,
        points // max(count, 1),
        tuple(nodes),
        tuple(inputs),
        tuple(Value(name, again.types[name]) for name in outputs),
        moved,
        tuple(name for name in formulas if name in origins),
        (*group.reasons, *again.reasons[at], *refused),
    )


def _fused(region: Region) -> Node:
    body = Graph(region.name, region.inputs, region.nodes, region.outputs)
    origins = [node.origin for node in region.nodes if node.origin != UNKNOWN]
    return Node(
        FUSED,
        region.inputs,
        region.outputs,
        (("recipe", region.recipe),),
        graphs=(body,),
        origin=origins[-1] if origins else UNKNOWN,
    )
