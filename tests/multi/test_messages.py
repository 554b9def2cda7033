"""Message programs over Gloo: results are torch's, messages and bytes the program's."""

from collections.abc import Callable

import pytest
from tests.cost.collectives.cases import ROWS
from tests.multi.compare import compare, disagrees, refuses
from tests.multi.processes import run_ranks

from tilewright.cost import COLLECTIVES

Golden = Callable[[str, str], None]

FEW = tuple(name for name in ROWS if name.split(" by ")[1] not in ("linear", "binary-tree"))


def test_programs_among_two_to_five_processes_give_torchs_results_by_their_own_messages() -> None:
    counts = run_ranks(5, compare, (2, 3, 4, 5), FEW, False)
    assert counts[0] >= 4 * len(FEW)


@pytest.mark.sweep
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_variant_root_type_and_operator_among_processes(collective: str) -> None:
    names = tuple(name for name, row in ROWS.items() if row.collective == collective)
    counts = run_ranks(5, compare, (2, 3, 4, 5), names, True)
    assert counts[0] >= 4 * 3 * len(names)


def test_calls_that_do_not_fit_are_refused_before_anything_is_sent(golden: Golden) -> None:
    first, second = run_ranks(2, refuses)
    golden("calls_that_do_not_fit.txt", "\n".join(first))
    assert [text.replace("rank 1", "rank 0") for text in second] == first


def test_ranks_that_have_different_programs_are_all_told(golden: Golden) -> None:
    told = run_ranks(3, disagrees)
    assert {text for texts in told for text in texts} == {told[0][0]}
    golden("ranks_that_disagree.txt", told[0][0])
