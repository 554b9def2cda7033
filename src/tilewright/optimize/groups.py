"""Groups of nodes that become one kernel, and who depends on whom among them.

The idea: every node starts as a group; bit sets of ancestors and descendants say at once whether
making two groups one would close a circle, and are kept up to date as groups merge.

This module does not know formulas.
"""

from collections.abc import Iterable, Iterator

from tilewright.graph.ir import Graph


class Groups:
    """A partition of a graph's nodes, by number.  Mutable: it is owned by whoever merges."""

    def __init__(self, graph: Graph) -> None:
        self.members: dict[int, tuple[int, ...]] = {at: (at,) for at in range(len(graph.nodes))}
        self.group_of: dict[int, int] = {at: at for at in range(len(graph.nodes))}
        made: dict[str, int] = {}
        self.before = [0] * len(graph.nodes)
        self.after = [0] * len(graph.nodes)
        for at, node in enumerate(graph.nodes):
            for value in node.inputs:
                if value.name in made:
                    source = made[value.name]
                    self.before[at] |= self.before[source] | (1 << source)
            for value in node.outputs:
                made[value.name] = at
        for at in reversed(range(len(graph.nodes))):
            for value in graph.nodes[at].inputs:
                if value.name in made:
                    self.after[made[value.name]] |= self.after[at] | (1 << at)

    def alive(self) -> Iterable[int]:
        """Return the numbers of the groups that there are."""
        return self.members.keys()

    def closes_circle(self, a: int, b: int) -> bool:
        """Say whether something outside depends on one of two groups and the other on it."""
        pair = ~((1 << a) | (1 << b))
        between = (self.after[a] & self.before[b]) | (self.after[b] & self.before[a])
        return bool(between & pair)

    def merge(self, a: int, b: int) -> None:
        """Make group `b` a part of group `a`."""
        assert not self.closes_circle(a, b), f"merging {a} and {b} closes a circle"
        one, other = 1 << a, 1 << b
        before = (self.before[a] | self.before[b]) & ~(one | other)
        after = (self.after[a] | self.after[b]) & ~(one | other)
        self.before[a], self.after[a] = before, after
        for at in _bits(before):
            self.after[at] = (self.after[at] | after | one) & ~other
        for at in _bits(after):
            self.before[at] = (self.before[at] | before | one) & ~other
        self.members[a] = tuple(sorted((*self.members[a], *self.members.pop(b))))
        for at in self.members[a]:
            self.group_of[at] = a


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
