"""Real processes over Gloo: a function is called in each, as a rank of one group.

The idea: the processes are forked from a server that has imported torch once, so that five of them
start in a moment.  They meet at a file, so that no port is taken.
"""

import multiprocessing
import queue
import tempfile
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

SECONDS = 60  # after which ranks that wait for each other give up


def run_ranks(ranks: int, call: Callable[..., Any], *args: Any) -> list[Any]:
    """Return what `call(rank, *args)` gives in each of the processes, joined as one group."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.multi.preload"])
    answers = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        meeting = (Path(folder) / "meeting").as_uri()
        started = [
            context.Process(target=_run, args=(answers, meeting, rank, ranks, call, args))
            for rank in range(ranks)
        ]
        for process in started:
            process.start()
        try:
            found = dict(_answer(answers, started) for _ in started)
        finally:
            for process in started:
                process.join(timeout=10)
                process.kill()
    wrong = [answer for answer in found.values() if isinstance(answer, BaseException)]
    if wrong:
        raise wrong[0]
    return [found[rank] for rank in range(ranks)]


def _answer(answers: Any, started: Sequence[Any]) -> Any:
    while True:
        try:
            return answers.get(timeout=1)
        except queue.Empty:
            codes = [process.exitcode for process in started]
            assert not any(codes), f"a process ended without an answer: exit codes {codes}"


def _run(
    answers: Any, meeting: str, rank: int, ranks: int, call: Callable[..., Any], args: Any
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo", init_method=meeting, rank=rank, world_size=ranks,
            timeout=timedelta(seconds=SECONDS),
        )  # fmt: skip
        answers.put((rank, call(rank, *args)))
        dist.barrier()
        dist.destroy_process_group()
    except BaseException as error:
        answers.put((rank, error))
