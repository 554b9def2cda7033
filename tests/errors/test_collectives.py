"""What a user reads where ranks do not meet: each message whole, against its golden."""

from collections.abc import Callable

import numpy as np
import pytest
from tests.errors.ranks import GATHER, SUM, program_of

from tilewright.base.errors import CollectiveError
from tilewright.compiler import build
from tilewright.parallel import evaluate_ranks

Golden = Callable[[str, str], None]


def test_ranks_that_come_to_different_collectives_are_told_apart(
    golden: Golden,
) -> None:
    graphs = [program_of(SUM, GATHER), program_of(GATHER, SUM)]
    with pytest.raises(CollectiveError) as caught:
        evaluate_ranks(graphs, [[np.ones(4)]] * 2)
    golden("collectives_in_another_order.txt", str(caught.value))


def test_a_rank_that_ends_early_is_named(golden: Golden) -> None:
    graphs = [program_of(SUM, GATHER), program_of(SUM)]
    with pytest.raises(CollectiveError) as caught:
        evaluate_ranks(graphs, [[np.ones(4)]] * 2)
    golden("collective_of_a_rank_that_ended.txt", str(caught.value))


def test_ranks_that_wait_for_each_other_are_named(golden: Golden) -> None:
    one = [program_of(("all_reduce", group, {})) for group in ((0, 1), (1, 2), (2, 0))]
    with pytest.raises(CollectiveError) as caught:
        evaluate_ranks(one, [[np.ones(4)]] * 3)
    golden("collectives_in_a_circle.txt", str(caught.value))


def test_several_ranks_cannot_be_one_program(golden: Golden) -> None:
    with pytest.raises(CollectiveError) as caught:
        build(program_of(SUM))
    golden("collective_in_a_program.txt", str(caught.value))
