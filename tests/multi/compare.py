"""What each process does: run message programs, and compare with torch's own collectives."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from tests.cost.collectives.cases import ROWS, settings

from tilewright.base.errors import CollectiveError, OptionError
from tilewright.cost import COLLECTIVES, MessageProgram, build_program
from tilewright.runtime.messages import COMBINE, Traffic, agree, run_messages

TYPES = (torch.float32, torch.float64, torch.int64)
OPS = {
    "sum": dist.ReduceOp.SUM,
    "prod": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
}
ELEMENTS = 41  # so that no chunks are equally long


def part_of(program: MessageProgram, rank: int, whole: torch.Tensor) -> torch.Tensor:
    """Return the chunks that a rank begins with, of its vector of all elements."""
    if program.collective == "all-to-all":
        return whole
    parts = whole.split(program.lengths(len(whole)))
    held = [parts[chunk] for chunk in program.begins(rank)]
    return torch.cat(held) if held else whole.new_empty(0)


def torchs(
    program: MessageProgram,
    rank: int,
    wholes: list[torch.Tensor],
    op: str,
    group: dist.ProcessGroup,
) -> torch.Tensor:
    """Return what torch's own collective gives; wholes: the vectors of all ranks, known to all."""
    whole, ranks = wholes[rank].clone(), program.ranks
    lengths = program.lengths(len(whole))
    own = [wholes[k].split(lengths)[k] for k in range(ranks)] if len(lengths) == ranks else []
    root = dist.get_global_rank(group, program.root)
    match program.collective:
        case "broadcast":
            dist.broadcast(whole, root, group)
        case "reduce":
            dist.reduce(whole, root, OPS[op], group)
            whole = whole if rank == program.root else whole[:0]
        case "all-reduce":
            dist.all_reduce(whole, OPS[op], group)
        case "reduce-scatter":
            # Gloo has none for parts of unlike lengths: it is what its name says.
            dist.all_reduce(whole, OPS[op], group)
            whole = whole.split(lengths)[rank]
        case "scatter":
            whole = torch.empty(max(lengths), dtype=whole.dtype)
            padded = [padded_to(part, max(lengths)) for part in wholes[program.root].split(lengths)]
            dist.scatter(whole, padded if rank == program.root else None, root, group)
            whole = whole[: lengths[rank]]
        case "gather" | "all-gather":
            out = [torch.empty(max(lengths), dtype=whole.dtype) for _ in range(ranks)]
            mine = padded_to(own[rank], max(lengths))
            if program.collective == "gather":
                dist.gather(mine, out if rank == program.root else None, root, group)
            else:
                dist.all_gather(out, mine, group)
            kept = program.collective == "all-gather" or rank == program.root
            whole = torch.cat([part[: lengths[k]] for k, part in enumerate(out)])[: kept * ELEMENTS]
        case "all-to-all":
            to = list(lengths[:ranks])
            out = torch.empty(ranks * to[rank], dtype=whole.dtype)
            dist.all_to_all_single(out, whole, [to[rank]] * ranks, to, group)
            whole = out
    return whole


def padded_to(part: torch.Tensor, length: int) -> torch.Tensor:
    return torch.cat([part, part.new_zeros(length - len(part))])


def vectors(ranks: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Return whole numbers, whose sums and products are exact in any order."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(1, 9, (ELEMENTS,), generator=generator).to(dtype) for _ in range(ranks)]


def compare(rank: int, sizes: tuple[int, ...], names: tuple[str, ...], every: bool) -> int:
    """Run variants among the first ranks, of each number; return how many runs were compared."""
    count = 0
    for ranks in sizes:
        group = dist.new_group(list(range(ranks)))
        if rank >= ranks:
            continue
        assert group is not None, "this rank is in the group"
        for name in names:
            for program in programs(name, ranks, every):
                for dtype, op in kinds(program, every):
                    run_one(program, rank, dtype, op, group)
                    count += 1
    return count


def run_one(
    program: MessageProgram, rank: int, dtype: torch.dtype, op: str, group: dist.ProcessGroup
) -> None:
    wholes = vectors(program.ranks, dtype)
    what = f"{program.collective} by {program.variant}, {program.ranks} ranks, {dtype}, {op}"
    mine = part_of(program, rank, wholes[rank])
    found, traffic = run_messages(program, mine, elements=ELEMENTS, op=op, group=group)
    expected = torchs(program, rank, wholes, op, group)
    assert found.dtype == expected.dtype, what
    assert torch.equal(found, expected), what
    assert traffic == planned(program, rank, dtype), what


def planned(program: MessageProgram, rank: int, dtype: torch.dtype) -> Traffic:
    """Return what the program says that a rank sends and receives."""
    lengths = program.lengths(ELEMENTS)
    into = [m for m in program.messages() if m.target == rank]
    counts = [sum(lengths[chunk] for chunk in message.chunks) for message in into]
    messages, elements = program.traffic(rank, ELEMENTS)
    return Traffic(
        messages,
        elements * dtype.itemsize,
        sum(n > 0 for n in counts),
        sum(counts) * dtype.itemsize,
    )


def programs(name: str, ranks: int, every: bool) -> Iterator[MessageProgram]:
    row = ROWS[name]
    for at in settings(row, ranks, roots=every):
        root = at.root if every or not COLLECTIVES[row.collective].rooted else ranks - 1
        yield build_program(
            row.collective, row.name, ranks, root=root, segments=at.segments, node=at.node
        )


def kinds(program: MessageProgram, every: bool) -> Iterator[tuple[torch.dtype, str]]:
    if not every:
        yield torch.float32, "sum"
        return
    for dtype in TYPES:
        for op in COMBINE if COLLECTIVES[program.collective].reduces else ("sum",):
            yield dtype, op


def disagrees(rank: int) -> list[str]:
    """Return how ranks are told that they have different programs, lengths, types or operators."""
    ring = build_program("all-reduce", "ring", 3)
    agree(ring, elements=6, dtype=torch.float32)
    odd = rank == 1
    cases = (
        (build_program("all-reduce", "bruck", 3) if odd else ring, 6, torch.float32, "sum"),
        (ring, 7 if odd else 6, torch.float32, "sum"),
        (ring, 6, torch.float64 if odd else torch.float32, "sum"),
        (ring, 6, torch.float32, "max" if odd else "sum"),
    )
    told = []
    for program, elements, dtype, op in cases:
        with pytest.raises(CollectiveError) as caught:
            agree(program, elements=elements, dtype=dtype, op=op)
        told.append(str(caught.value))
    return told


def refuses(_: int) -> list[str]:
    """Return how calls that do not fit are told, after one more that does."""
    ring = build_program("all-reduce", "ring", 2)
    wrong = (
        (build_program("all-reduce", "ring", 3), 3, 3, "sum"),
        (ring, 3, 4, "sum"),
        (ring, 4, 4, "mean"),
    )
    told = []
    for program, length, elements, op in wrong:
        with pytest.raises((CollectiveError, OptionError)) as caught:
            run_messages(program, torch.ones(length), elements=elements, op=op)
        told.append(f"{type(caught.value).__name__}: {caught.value}")
    # Nothing was sent: what comes next meets nothing of it.
    found, traffic = run_messages(ring, torch.ones(1), elements=1)
    assert found.tolist() == [2.0]
    assert traffic.messages_sent == 1
    return told
