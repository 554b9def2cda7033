"""Print expressions as C: typed as the evaluator types them, every value total and safe to compute.

The idea: what may be absent is said apart from the value.  `presence` gives the conditions under
which a term exists, `faults` those under which it is an error; the value itself can then be
computed anywhere, branch-free: a read that may lie outside is `inside ? a0[i] : 0`, an index that
is itself read is clamped, a division of integers does not trap.  A select computes both branches.

Reads of values that have a formula but no memory are that formula at the read's index.

This module does not know loops, recipes or kernels.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilewright.base import algebra
from tilewright.base.dtypes import BOOL, I64, DType
from tilewright.base.expr import (
    Call,
    Const,
    Expr,
    Read,
    Sym,
    children,
    names,
    substitute,
    walk,
)
from tilewright.base.scalar import BY_NAME as FUNCTIONS
from tilewright.base.sizes import least_of
from tilewright.graph.ir import Formula
from tilewright.graph.total import conjuncts
from tilewright.kernels.asked_rows import ask_ahead
from tilewright.kernels.body import Body, has_read, is_pointwise, may_choose, static_shape
from tilewright.kernels.conditions import (
    Limit,
    exactness,
    exactness_of,
    is_index,
    limit_of,
    proved,
    unturned,
    without_exact,
)
from tilewright.kernels.conversion import convert, literal, load, rounded
from tilewright.kernels.functions import apply
from tilewright.kernels.text import ATOM, COMPARE, PRODUCT, TERNARY, Scope, Term, c_type, unsigned

OUT_OF_RANGE, ZERO_DIVISION, OUT_OF_MEMORY = 1, 2, 4


@dataclass(frozen=True, slots=True)
class Memory:
    """A tensor in memory: the C pointer, the type of its elements, its shape and strides."""

    pointer: str
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """An error of a term: it is one if all conditions hold.  code: what the kernel returns."""

    conditions: tuple[Expr, ...]
    code: int


class Printer:
    """What printing one kernel's expressions needs.  Mutable: it counts names and notes functions.

    memory: the tensors that have memory; others are formulas of `body`.  extents: of all loops.
    used: the support functions that the text calls.  can_fail: whether the text notes faults.
    limits: what is known of the loops that are open, beside their extents: bounds of each.
    asks: whether rows that indices choose are asked for ahead where they are read.
    """

    def __init__(self, body: Body, memory: dict[str, Memory]) -> None:
        self.body = body
        self.memory = memory
        self.extents: dict[str, int] = {}
        self.used: set[str] = set()
        self.can_fail, self.asks = False, True
        self.limits: tuple[tuple[str, frozenset[Limit]], ...] = ()
        self._counts: dict[str, int] = {}
        self._faults: dict[Read, list[Fault]] = {}
        self._simple: dict[Expr, Expr] = {}
        self._chooses = any(may_choose(formula) for _, formula in body.formulas)

    def enter(self, extents: Mapping[str, int]) -> None:
        """Go on with other loops."""
        self.extents.clear()
        self.extents.update(extents)
        self._faults.clear()
        self._simple.clear()

    def bounded(self, limits: tuple[tuple[str, frozenset[Limit]], ...]) -> None:
        """Go on where loops have these limits: what was found absent under others need not be."""
        if limits != self.limits:
            self.limits = limits
            self._faults.clear()

    def simplify(self, expr: Expr) -> Expr:
        """Bring an index to its normal form."""
        found = self._simple.get(expr)
        if found is None:
            found = self._simple[expr] = algebra.simplify(expr, self.extents)
        return found

    # ------------------------------------------------------------------------------------- values

    def value(self, expr: Expr, scope: Scope) -> Term:
        """Return the term for an expression over loops open in `scope`."""
        match expr:
            case Const(number):
                return literal(number)
            case Sym(name):
                known = scope.find(expr)
                return known or Term(name, I64, weak=True)
            case Read():
                return self._read(self.normal(expr), scope)
            case Call(fn, args):
                return self._call(expr, fn, args, scope)

    def _call(self, expr: Call, fn: str, args: tuple[Expr, ...], scope: Scope) -> Term:
        known = scope.find(expr)
        if known is not None:
            return known
        home = scope.home(names(expr))
        if not has_read(expr):
            simple = self.simplify(expr) if is_index(expr) else expr
            if fn in ("lt", "le", "gt", "ge") and all(map(is_index, args)):
                simple = algebra.coarse(expr, self.extents)
            if not isinstance(simple, Call) or simple != expr:
                return self.value(simple, scope)
        terms = [self.value(arg, scope) for arg in args]
        result = self._index_division(fn, args, terms) or apply(fn, terms, self.used)
        if result.literal is None and home is not scope and FUNCTIONS[fn].flops and has_read(expr):
            return self.define(expr, result, home)
        return result

    def _index_division(self, fn: str, args: Sequence[Expr], terms: Sequence[Term]) -> Term | None:
        """Divide by a positive constant as C does where the dividend cannot be negative."""
        if fn not in ("floordiv", "mod", "exactdiv") or not terms[0].weak or terms[0].literal:
            return None
        limits = algebra.bounds(args[0], self.extents)
        if limits is None or least_of(limits[0]) < 0 or not isinstance(args[1], Const):
            return None
        sign = "%" if fn == "mod" else "/"
        text = f"{terms[0].at(PRODUCT)} {sign} {terms[1].at(PRODUCT + 1)}"
        return Term(text, I64, PRODUCT, weak=True)

    def define(self, expr: Expr, term: Term, home: Scope, prefix: str = "x") -> Term:
        """Give a term a name in `home`; it is known by `expr` from then on."""
        name = self.fresh(prefix)
        home.add(f"const {c_type(term.held)} {name} = {term.text};")
        made = Term(name, term.dtype, ATOM, term.weak, exact=term.exact)
        home.known[expr] = made
        return made

    def fresh(self, prefix: str) -> str:
        """Return a name not handed out yet: `x0`, `x1`, ..."""
        number = self._counts.get(prefix, 0)
        self._counts[prefix] = number + 1
        return f"{prefix}{number}"

    def normal(self, read: Read) -> Read:
        """Bring the index to its normal form, by which a value once computed is found again."""
        index = tuple(self.simplify(entry) for entry in read.index)
        return Read(read.tensor, index, read.default)

    def _read(self, read: Read, scope: Scope) -> Term:
        known = scope.find(read)
        if known is not None:
            return known
        home = scope.home(names(read))
        inside = self.inside(read)
        plain = Read(read.tensor, read.index)
        if read.tensor not in self.memory:
            term = scope.find(plain) or self._computed(plain, home)
            if read.default is None:
                return term
        else:
            term = self._load(plain, inside, home)
            if read.default is None:
                return self.define(read, term, home)
        if not inside:
            return self.define(read, term, home) if term.level < ATOM else term
        otherwise = self.value(read.default, home)
        condition = self.conjunction(inside, home)
        return self.define(read, apply("select", [condition, term, otherwise], self.used), home)

    def _load(self, read: Read, inside: Sequence[Expr], home: Scope) -> Term:
        memory = self.memory[read.tensor]
        place = self._place(read, memory, home)
        ask_ahead(self, read, memory, home)
        if 0 in memory.shape:
            return convert(literal(0), memory.dtype.compute)
        if inside or self._chooses:
            place = unturned(place, self.extents, lambda: self._hidden(1, home))
        element = f"{memory.pointer}[{self.value(place, home).text}]"
        if inside:
            element = f"{self.conjunction(inside, home).at(TERNARY + 1)} ? {element} : 0"
            return load(memory.dtype, element, TERNARY, self.used)
        return load(memory.dtype, element, ATOM, self.used)

    def offset(self, read: Read, memory: Memory, scope: Scope) -> str:
        """Return the text of an element's offset; entries that are themselves read are clamped."""
        return self.value(self._place(read, memory, scope), scope).text

    def _place(self, read: Read, memory: Memory, scope: Scope) -> Expr:
        total: Expr = Const(0)
        for entry, extent, stride in zip(read.index, memory.shape, memory.strides, strict=True):
            if has_read(entry):
                entry = self.clamped(entry, extent, scope)
            total = Call("add", (total, Call("mul", (without_exact(entry), Const(stride)))))
        return self.simplify(total)

    def clamped(self, entry: Expr, extent: int, scope: Scope) -> Expr:
        """Define an index that is read as a name whose value lies inside the tensor."""
        inside, loaded = algebra.within(entry, extent, self.extents), self.is_loaded(entry)
        if inside and loaded:
            return entry
        mark = Read("@clamped", (entry, Const(extent)))
        known = scope.find(mark)
        if known is None:
            home = scope.home(names(entry))
            index = self.value(without_exact(entry), home)
            if index.level < ATOM:
                index = self.define(Read("@index", (entry,)), index, home, "j")
            test = f"(unsigned long){index.text} < {unsigned(max(extent, 1))}"
            text = f"(long){index.text}" if inside else f"{test} ? (long){index.text} : 0"
            if not loaded:
                text = f"({text}) ^ {self._hidden(0, home)}"
            name = self.fresh("j")
            home.add(f"const long {name} = {text};")
            known = home.known[mark] = Term(name, I64, weak=True)
            home.known[Sym(known.text)] = known
        return Sym(known.text)

    def is_loaded(self, entry: Expr) -> bool:
        """Say whether an index is an integer in memory, of which the compiler knows nothing."""
        plain = without_exact(entry)
        memory = self.memory.get(plain.tensor) if isinstance(plain, Read) else None
        return memory is not None and memory.dtype != BOOL

    def _hidden(self, number: int, scope: Scope) -> str:
        """Define a number that the compiler takes for any other, outside of all loops.

        GCC 12.2 reads element -1 in the place of 1, by vectors, where it has found out that an
        index is a truth value: such an index is changed by 0.
        """
        mark, home = Read("@hidden", (Const(number),)), scope.home(frozenset())
        known = scope.find(mark)
        if known is None:
            name = self.fresh("one" if number else "zero")
            home.add(f"long {name} = {number};")
            home.add(f'__asm__("" : "+r"({name}));')
            known = home.known[mark] = Term(name, I64)
        return known.text

    def _computed(self, read: Read, scope: Scope) -> Term:
        """Compute a value that has no memory: first all it is made of, the deepest first."""
        term: Term | None = None
        for inner in self.from_the_ground(read, lambda known: scope.find(known) is not None):
            term = self._formula(inner, scope)
        assert term is not None, f"{read.tensor} is computed last"
        return term

    def computed(self, parts: Iterable[Expr | None]) -> list[Read]:
        """Return what expressions read directly that has no memory, in normal form."""
        nodes = (node for part in parts if part is not None for node in walk(part))
        reads = (
            node for node in nodes if isinstance(node, Read) and node.tensor not in self.memory
        )
        return [self.normal(Read(node.tensor, node.index)) for node in reads]

    def from_the_ground(self, read: Read, known: Callable[[Read], bool]) -> Iterator[Read]:
        """Yield the values without memory that a value is made of, itself last, each after its own.

        Not by recursion: chains of values may be long.
        """
        stack, opened = [read], set[Read]()
        while stack:
            top = stack[-1]
            if top in opened:
                stack.pop()
                if not known(top):
                    yield top
                continue
            opened.add(top)
            formula = self.body.formula(top.tensor)
            assert formula is not None, f"{top.tensor} has neither memory nor a formula"
            for inner in self.computed(bound_to(formula, top.index)):
                if inner not in opened and not known(inner):
                    stack.append(inner)

    def _formula(self, read: Read, scope: Scope) -> Term:
        """Compute a value that has no memory, where it is read."""
        formula = self.body.formula(read.tensor)
        assert formula is not None, f"{read.tensor} has neither memory nor a formula"
        home = scope.home(names(read))
        value, where, fill = bound_to(formula, read.index)
        term = self.repeated(value, home)
        present = self.presence(value) if where is None else self.presence_where(value, where)
        if present:
            condition = self.conjunction(present, home)
            term = apply("select", [condition, term, self.value(fill, home)], self.used)
        term = rounded(term, formula.type.dtype, self.used)
        if term.literal is not None:
            return term
        return self.define(read, term, home, f"{read.tensor}_")

    def repeated(self, value: Expr, scope: Scope) -> Term:
        """Print a value, what occurs in it more than once (and costs something) under a name."""
        seen: dict[Expr, int] = {}
        for node in walk(value):
            if isinstance(node, Call) and has_read(node):
                seen[node] = seen.get(node, 0) + 1
        shared = [node for node, count in seen.items() if count > 1]
        for node in sorted(shared, key=lambda node: sum(1 for _ in walk(node))):
            term = self.value(node, scope)
            if not term.text.isidentifier():
                self.define(node, term, scope.home(names(node)))
        return self.value(value, scope)

    # --------------------------------------------------------------------------- presence, faults

    def inside(self, read: Read) -> tuple[Expr, ...]:
        """Return the conditions that a read's direct index lies in its tensor, none if it must."""
        formula = self.body.formula(read.tensor)
        shape = static_shape(self.body.type(read.tensor) if formula is None else formula.type)
        return self.landing(read.index, shape)

    def landing(self, index: Sequence[Expr], shape: Sequence[int]) -> tuple[Expr, ...]:
        """Return the conditions that a target's index lies in the result, where it is not read."""
        found: list[Expr] = []
        for entry, extent in zip(index, shape, strict=True):
            found += exactness(entry)
            if not has_read(entry):
                plain = without_exact(entry)
                if not algebra.within(plain, extent, self.extents):
                    found += [Call("ge", (plain, Const(0))), Call("lt", (plain, Const(extent)))]
        return self.open_conditions(found)

    def open_conditions(self, conditions: Sequence[Expr]) -> tuple[Expr, ...]:
        """Drop the conditions that the loops' extents and limits prove."""
        found = dict.fromkeys(c for c in conditions if not proved(c, self.extents))
        return tuple(c for c in found if not self._is_a_limit(c))

    def _is_a_limit(self, condition: Expr) -> bool:
        return any(limit_of(condition, name, self.extents) in own for name, own in self.limits)

    def presence(self, expr: Expr) -> tuple[Expr, ...]:
        """Return the conditions under which an expression is not absent."""
        match expr:
            case Read(_, index, default):
                inner = [c for entry in index for c in self.presence(entry)]
                inside = self.inside(self.normal(expr))
                if default is None:
                    return self.open_conditions([*inner, *inside])
                other = self.presence(default)
                return self.open_conditions([*inner, *(_implied(inside, c) for c in other)])
            case Call("select", (cond, yes, no)):
                found = [*self.presence(cond)]
                found += [Call("or", (Call("not", (cond,)), c)) for c in self.presence(yes)]
                found += [Call("or", (cond, c)) for c in self.presence(no)]
                return self.open_conditions(found)
            case _:
                parts = [c for part in children(expr) for c in self.presence(part)]
                return tuple(dict.fromkeys([*parts, *self.open_conditions(exactness_of(expr))]))

    def presence_where(self, value: Expr, where: Expr) -> tuple[Expr, ...]:
        """Return the conditions under which a term with a `where` is present, those of it first."""
        parts = [*self.presence(where), *conjuncts(where), *self.presence(value)]
        return self.open_conditions(parts)

    def faults(self, expr: Expr) -> list[Fault]:
        """Return what can go wrong in an expression, and when."""
        found: list[Fault] = []
        match expr:
            case Call("select", (cond, yes, no)):
                found += self.faults(cond)
                for side, branch in ((cond, yes), (Call("not", (cond,)), no)):
                    found += [Fault((side, *f.conditions), f.code) for f in self.faults(branch)]
                return found
            case Read(tensor, index):
                found += self.index_faults(
                    self.normal(expr).index, static_shape(self.body.type(tensor))
                )
                if tensor not in self.memory:
                    found += self._formula_faults(tensor, index)
            case Call("floordiv" | "mod" | "fmod", (_, divisor)) if has_read(divisor):
                if self.type_of(divisor).kind != "float":
                    found.append(Fault((Call("eq", (divisor, Const(0))),), ZERO_DIVISION))
        for part in children(expr):
            found += self.faults(part)
        return list(dict.fromkeys(found))

    def index_faults(self, index: Sequence[Expr], shape: Sequence[int]) -> list[Fault]:
        """Return when an entry that is itself read lies outside the tensor."""
        found = []
        for entry, extent in zip(index, shape, strict=True):
            if has_read(entry) and not algebra.within(entry, extent, self.extents):
                below = Call("lt", (entry, Const(0)))
                above = Call("ge", (entry, Const(extent)))
                found.append(Fault((Call("or", (below, above)),), OUT_OF_RANGE))
        return found

    def _formula_faults(self, tensor: str, index: tuple[Expr, ...]) -> list[Fault]:
        read = self.normal(Read(tensor, index))
        if self._is_reduced(read):  # computed once, with its own checks, where it is reduced
            return []
        known = self._faults
        for inner in self.from_the_ground(read, lambda r: r in known or self._is_reduced(r)):
            formula = self.body.formula(inner.tensor)
            assert formula is not None, f"{inner.tensor} has neither memory nor a formula"
            known[inner] = self._bound_faults(formula, inner.index)
        return known[read]

    def _is_reduced(self, read: Read) -> bool:
        formula = self.body.formula(read.tensor)
        return formula is not None and not is_pointwise(formula)

    def _bound_faults(self, formula: Formula, index: tuple[Expr, ...]) -> list[Fault]:
        value, where, _ = bound_to(formula, index)
        inner = self.faults(value)
        if not inner and where is None:
            return []
        present = self.presence(value) if where is None else self.presence_where(value, where)
        return [Fault((*present, *fault.conditions), fault.code) for fault in inner] + (
            [] if where is None else self.faults(where)
        )

    def check(self, faults: Sequence[Fault], present: Sequence[Expr], scope: Scope) -> None:
        """Add the lines that note faults of terms that are present."""
        for conditions, code in dict.fromkeys((f.conditions, f.code) for f in faults):
            self.can_fail = True
            test = self.conjunction((*present, *conditions), scope)
            home = scope.home(frozenset(n for c in (*present, *conditions) for n in names(c)))
            home.add(f"bad |= {test.at(TERNARY + 1)} ? {code} : 0;")

    def conjunction(self, conditions: Sequence[Expr], scope: Scope) -> Term:
        """Print `a && b && c`; nothing to ask is true."""
        if not conditions:
            return literal(True)
        terms = [convert(self.value(condition, scope), BOOL) for condition in conditions]
        terms = list({term.text: term for term in terms}.values())
        if len(terms) == 1:
            return terms[0]
        return Term(" && ".join(term.at(COMPARE) for term in terms), BOOL, 3)

    def type_of(self, expr: Expr) -> DType:
        """Return the type that an expression is computed in."""
        return self._typed(expr)[0]

    def held(self, expr: Expr) -> DType:
        """Return the type that the C expression for an expression has."""
        dtype, weak = self._typed(expr)
        return Term("", dtype, weak=weak).held

    def _typed(self, expr: Expr) -> tuple[DType, bool]:
        match expr:
            case Const() | Sym():
                term = literal(expr.value) if isinstance(expr, Const) else Term("", I64, weak=True)
                return term.dtype, term.weak
            case Read(tensor, _, _):
                return self.body.type(tensor).dtype.compute, False
            case Call(fn, args):
                kinds = [Term("0", dtype, weak=weak) for dtype, weak in map(self._typed, args)]
                made = apply(fn, kinds, set())
                return made.dtype, made.weak


# ------------------------------------------------------------------------------------------- forms


def bound_to(formula: Formula, index: tuple[Expr, ...]) -> tuple[Expr, Expr | None, Expr]:
    """Return the value, the `where` and the fill of a pointwise formula at one index."""
    binding = {
        entry.name: at
        for entry, at in zip(formula.index, index, strict=True)
        if isinstance(entry, Sym)
    }
    where = None if formula.where is None else substitute(formula.where, binding)
    fill = formula.fill
    if isinstance(fill, Read):
        fill = Read(fill.tensor, index)
    return substitute(formula.value, binding), where, fill


def _implied(inside: Sequence[Expr], condition: Expr) -> Expr:
    """Return `all of inside or condition`."""
    everything = inside[0]
    for part in inside[1:]:
        everything = Call("and", (everything, part))
    return Call("or", (everything, condition))
