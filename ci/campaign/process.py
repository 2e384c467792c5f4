"""Starting other programs, and ending only those."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import time

# What a campaign started ends with it, also when it is killed: a fuzzer nobody waits for would run for hours.
with_parent = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []

ENVIRONMENT = {
    "LC_ALL": "C.UTF-8",  # messages are parsed, and the harness prints UTF-8
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
}


class Process:
    """A program in a folder of its own, its output in a file. It is the head of a process group, so that a Ctrl-C at the
    terminal reaches the campaign alone, and so that its own children can be ended with it."""

    def __init__(self, command: list[str], folder: pathlib.Path, log: pathlib.Path, environment: dict[str, str]):
        with open(log, "wb") as output:
            self._popen = subprocess.Popen(
                with_parent + command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **ENVIRONMENT, **environment},
                start_new_session=True,
            )

    def status(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._popen.poll()

    def ask_to_end(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        self._popen.wait()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, number)


def run(command: list[str], folder: pathlib.Path, limit_s: float, environment: dict[str, str] | None = None) -> tuple[int, str]:
    """Runs a program to its end: exit code (124: it ran into the limit) and output."""
    popen = subprocess.Popen(
        with_parent + command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **ENVIRONMENT, **(environment or {})},
        start_new_session=True,
    )
    try:
        output, _ = popen.communicate(timeout=limit_s)
        return popen.returncode, output.decode(errors="replace")
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(popen.pid, signal.SIGKILL)
        output, _ = popen.communicate()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        return 124, output.decode(errors="replace") + f"\nstill running after {limit_s:.0f} s\n"


def end_all(processes: list[Process], patience_s: float = 3) -> None:
    """Asks first: libFuzzer then prints its statistics."""
    for process in processes:
        process.ask_to_end()
    until = time.monotonic() + patience_s
    while any(p.status() is None for p in processes) and time.monotonic() < until:
        time.sleep(0.05)
    for process in processes:
        process.kill()
