# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Calls that may hang: in a process that is ended when they take too long."""

import multiprocessing
from collections.abc import Callable
from typing import Any


def _work(connection: Any, function: Callable[..., Any]) -> None:
    """Answers calls until its process is ended."""
    while True:
        args = connection.recv()
        try:
            answer = True, function(*args)
        except Exception as error:  # noqa: BLE001, whatever it raises is the answer
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            answer = False, f"{type(error).__name__}: {' '.join(lines)}"
        connection.send(answer)


class Worker:
    """Calls one function, one call after the other, in a process that it replaces when it hangs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._process: Any = None

    def __call__(self, *args: Any, timeout: float) -> Any:
        """The function's result.

        Raises:
            TimeoutError: if there is none after `timeout` seconds.
            ChildProcessError: if the function ended its process.
            RuntimeError: if it raised, with what it said.
        """
        if self._process is None:
            context = multiprocessing.get_context("spawn")
            self._connection, theirs = context.Pipe()
            self._process = context.Process(
                target=_work, args=(theirs, self._function), daemon=True
            )
            self._process.start()
            theirs.close()
        self._connection.send(args)
        try:
            if not self._connection.poll(timeout):
                self.close()
                raise TimeoutError(f"no result after {timeout:g} s")
            worked, answer = self._connection.recv()
        except EOFError:
            self.close()
            raise ChildProcessError("the process ended without a result") from None
        if not worked:
            raise RuntimeError(answer)
        return answer

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None
