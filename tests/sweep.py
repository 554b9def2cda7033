"""Which cases of a table `make test` runs, and which are left to `make sweep`.

The idea: a law is asked of many cases; some of each kind are asked at every run, all of them by
`make sweep` and in CI.  Which, stands beside the table.  This module does not know any law.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet

asked = True
"""Whether the cases of the sweep are collected too: not where the run leaves them out."""

swept = partial(pytest.param, marks=pytest.mark.sweep)
"""A case that `make sweep` alone runs."""


def few(cases: Iterable[Any], *kept: Any) -> list[ParameterSet]:
    """Return cases as test parameters, of which `make test` runs those kept.

    A tuple is a case of several parameters, the first of which is its name.
    """
    listed = list(cases)
    names = [case[0] if isinstance(case, tuple) else case for case in listed]
    unknown = [name for name in kept if name not in names]
    assert not unknown, f"no such cases: {unknown}"
    chosen = [pytest.param if name in kept else swept for name in names]
    return collected(
        [
            make(*case) if isinstance(case, tuple) else make(case)
            for make, case in zip(chosen, listed, strict=True)
        ]
    )


def collected(cases: list[ParameterSet]) -> list[ParameterSet]:
    """Return the cases that this run may ask: making a test of each takes longer than most run.

    One stays where all are the sweep's, as no test may be without cases.
    """
    chosen = [case for case in cases if asked or pytest.mark.sweep not in case.marks]
    return chosen or cases[:1]
