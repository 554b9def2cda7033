"""What computes a kernel that can be computed in more than one way: as measured, where it was.

The idea: who places a node asks with the usual way in hand, and gets another where one was measured
to be clearly faster on this processor.  What was asked is remembered, each kernel as a graph of its
own, so that a tuner can ask the same of each.

This module does not know how a way is carried out, nor how it is measured.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tilewright.compiler.options import Options
from tilewright.graph.ir import Graph, Node
from tilewright.kernels import PRODUCT_RECIPE, Product, Tiling, described_product, usual_tiling
from tilewright.program import View
from tilewright.tune import (
    LIBRARY,
    Measured,
    Store,
    Verdict,
    judge,
    show_tiling,
    this_processor,
)

OWN = "own"


@dataclass(frozen=True, slots=True)
class Asked:
    """A kernel that there is a choice for.

    kernel: what it computes and how its operands lie, in words that no name is part of; title:
    shorter.  recipe: its version.  default: the usual way.  ways: others than knobs.  graph: the
    kernel alone.  lying: where its operands lie; None where the passes are yet to come.  product:
    what has knobs.
    """

    kernel: str
    title: str
    recipe: int
    default: str
    ways: tuple[str, ...]
    flops: int
    graph: Graph
    lying: tuple[tuple[str, View], ...] | None = None
    product: Product | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What the measurements say of a kernel under a version of its recipe: the text of one, "" for
    none."""

    kernel: str
    recipe: int
    measured: str


class Choices:
    """What was measured, and what was asked of it; final.

    Mutable: `asked`, `counts`, `verdicts` and what was found grow.  What was measured of a kernel
    is looked up once: it stays what it is while a graph is compiled.  forced: ways that are taken
    whatever was measured.
    """

    def __init__(self, store: Store | None = None, forced: Mapping[str, str] | None = None) -> None:
        self.store = store
        self.forced = dict(forced or {})
        self.asked: dict[str, Asked] = {}
        self.counts: Counter[str] = Counter()
        self.verdicts: dict[str, Verdict] = {}
        self._found: dict[tuple[str, int], Measured | None] = {}

    def take(self, asked: Asked, allowed: Callable[[str], bool] = lambda _: True) -> Verdict:
        """Return the way to take, with the reason if it was measured."""
        self.asked.setdefault(asked.kernel, asked)
        self.counts[asked.kernel] += 1
        verdict = self._verdict(asked, allowed)
        self.verdicts[asked.kernel] = verdict
        return verdict

    def _verdict(self, asked: Asked, allowed: Callable[[str], bool]) -> Verdict:
        if asked.kernel in self.forced:
            return Verdict(self.forced[asked.kernel], "", 1.0)
        found = self._measured(asked.kernel, asked.recipe)
        return (
            Verdict(asked.default, "", 1.0)
            if found is None
            else judge(found, asked.default, allowed)
        )

    def _measured(self, kernel: str, recipe: int) -> Measured | None:
        if self.store is None:
            return None
        if (kernel, recipe) not in self._found:
            self._found[kernel, recipe] = self.store.get(kernel, recipe)
        return self._found[kernel, recipe]

    def answer(self, kernel: str, recipe: int) -> Answer:
        """Return what was measured of a kernel."""
        found = self._measured(kernel, recipe)
        return Answer(kernel, recipe, "" if found is None else str(found))

    def answers(self) -> tuple[Answer, ...]:
        """Return all that was asked of the measurements, and answered."""
        return tuple(self.answer(*asked) for asked in self._found)

    def told(self) -> tuple[str, ...]:
        """Return what was measured where no decision of one node says it, in the words of
        `explain`: convolutions become several nodes, calls are as the operator has them."""
        lines = []
        for kernel, verdict in self.verdicts.items():
            asked = self.asked[kernel]
            whole = asked.lying is None or verdict.choice == LIBRARY
            if asked.product is None and whole and verdict.reason:
                by = "the library" if verdict.choice == LIBRARY else "products of ours"
                lines.append(f"{asked.title}: by {by}; {verdict.reason}")
        return tuple(lines)


def choices_for(options: Options, store: Store | None = None) -> Choices:
    """Return the choices of a compilation: as measured, unless the options forbid it.

    store: measurements in the place of those that are kept for this processor.
    """
    if not options.tuned:
        return Choices()
    return Choices(Store(this_processor(options.target)) if store is None else store)


def usual_knobs(options: Options) -> Tiling:
    """Return the knobs of our products that are taken where nothing was measured."""
    return usual_tiling(this_processor(options.target).vector)


def last_cache(options: Options) -> int:
    """Return the bytes of the last cache before memory."""
    return this_processor(options.target).l3


def alone(node: Node) -> Graph:
    """Return the graph of one node."""
    return Graph("kernel", tuple(dict.fromkeys(node.inputs)), (node,), node.outputs)


def ask_product(
    product: Product,
    graph: Graph,
    lying: tuple[tuple[str, View], ...],
    usual: Tiling | None,
    *,
    copies: int,
) -> Asked:
    """Return the question what computes a product.

    usual: the knobs of our kernel, None for the library.  copies: how many operands are copied
    before it, as no strides say where they lie.
    """
    first = "N" if product.terms[-1][1] == 1 else "T"
    second = "N" if product.columns[-1][1] == 1 else "T"
    return Asked(
        product_words(product) + " copied" * copies,
        f"{first}{second} {described_product(product)}",
        PRODUCT_RECIPE,
        LIBRARY if usual is None else show_tiling(usual),
        (LIBRARY,),
        product.flops,
        graph,
        lying,
        product,
    )


def product_words(product: Product) -> str:
    """Return what a product computes, and how its operands lie, in words."""
    named = zip(
        ("batch", "rows", "columns", "terms"),
        (product.batch, product.rows, product.columns, product.terms),
        strict=True,
    )
    loops = (
        f"{name} {','.join(':'.join(map(str, loop)) for loop in role) or '-'}"
        for name, role in named
    )
    scaled = " scaled" if product.scale != 1.0 else ""
    return f"product {product.dtype.name} {' '.join(loops)}{scaled}"
