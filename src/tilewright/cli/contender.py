"""The demo's side of a peer's process: start it, ask it, end it.

The idea: whoever waits for a request sleeps in a read, so that it does not slow the one that runs.

This module does not know what is asked.
"""

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

Answer = dict[str, Any]
PATIENCE = 60.0


class ContenderError(Exception):
    """A contender could not do what it was asked; the text is what it said."""


class Contender:
    """A running peer; mutable: it holds pipes.  Use it in a `with`."""

    def __init__(self, kind: str, scratch: Path) -> None:
        """Start a peer with empty compile caches; what it prints goes to a file in `scratch`."""
        self.kind = kind
        self.log = scratch / f"{kind}.log"
        self._heard = b""  # what has come of lines not yet asked for
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(scratch / f"{kind}-cache")}
        with self.log.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tilewright.cli.peer", kind],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                start_new_session=True,  # Ctrl-C is the parent's business
            )

    def __enter__(self) -> "Contender":
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe(self.process.stdin).close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(3)
        self.process.kill()
        self.process.wait()
        self._pipe(self.process.stdout).close()

    def ask(
        self,
        tell: Callable[[Answer], None] = lambda _: None,
        *,
        patience: float = PATIENCE,
        **request: Any,
    ) -> Answer:
        """Return the answer to a request; `tell` sees the moments that come before it.

        patience: seconds of silence after which the contender is ended.
        """
        pipe = self._pipe(self.process.stdin)
        try:
            pipe.write(json.dumps(request).encode() + b"\n")
            pipe.flush()
        except BrokenPipeError:
            raise ContenderError(self._last_words()) from None
        while True:
            answer = self._read(str(request["do"]), patience)
            if "moment" in answer:
                tell(answer["moment"])
            elif "error" in answer:
                raise ContenderError(answer["error"])
            else:
                return answer

    def _read(self, what: str, patience: float) -> Answer:
        """Return the next line; whatever is read beyond it is kept, as `select` does not see it."""
        output = self._pipe(self.process.stdout).fileno()
        while b"\n" not in self._heard:
            if not select.select([output], [], [], patience)[0]:
                self.process.kill()
                raise ContenderError(f"no answer to {what!r} within {patience:.0f} s")
            more = os.read(output, 65536)
            if not more:
                raise ContenderError(self._last_words())
            self._heard += more
        line, _, self._heard = self._heard.partition(b"\n")
        answer: Answer = json.loads(line)
        return answer

    def _last_words(self) -> str:
        self.process.wait(10)
        lines = [line for line in self.log.read_text().splitlines() if line.strip()]
        return lines[-1] if lines else f"it ended with status {self.process.returncode}"

    @staticmethod
    def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
        assert pipe is not None, "contenders are started with pipes"
        return pipe
