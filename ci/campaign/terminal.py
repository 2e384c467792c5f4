"""Progress: a block that is drawn over in a terminal, lines where output goes elsewhere."""

from __future__ import annotations

import shutil
import sys
import time

from campaign.state import State

LINE_EVERY_S = 30
DRAW_EVERY_S = 0.5


def _count(number: float) -> str:
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if number >= limit:
            scaled = number / (1e3 if unit == "k" else limit)
            return f"{scaled:.0f}{unit}" if scaled >= 100 else f"{scaled:.1f}{unit}"
    return f"{number:.0f}"


def duration(seconds: float) -> str:
    seconds = max(0, round(seconds))
    if seconds < 120:
        return f"{seconds} s"
    if seconds < 7200:
        return f"{seconds // 60} min {seconds % 60:02} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02} min"


class Terminal:
    def __init__(self) -> None:
        self.is_terminal = sys.stdout.isatty()
        self._drawn = 0
        self._next = 0.0

    def line(self, text: str) -> None:
        """A line that stays, above what is drawn over."""
        self._clear()
        print(text, flush=True)
        self._next = 0.0 if self.is_terminal else self._next

    def show(self, state: State, elapsed_s: float, total_s: float, running: list[str]) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (DRAW_EVERY_S if self.is_terminal else LINE_EVERY_S)
        if self.is_terminal:
            self._draw(state, elapsed_s, total_s, running)
        elif elapsed_s > 2:
            executions = sum(target.executions for target in state.targets)
            print(f"{duration(elapsed_s)} of {duration(total_s)}: {_count(executions)} executions, "
                  f"{len(state.failures)} failures; running: {', '.join(running) or 'nothing'}", flush=True)

    def done(self) -> None:
        self._clear()

    def _draw(self, state: State, elapsed_s: float, total_s: float, running: list[str]) -> None:
        width = shutil.get_terminal_size().columns - 1
        lines = [f"{'target':<22}{'core time':>13}{'exec/s':>9}{'executions':>12}{'features':>10}{'corpus':>8}{'failures':>10}"]
        for target in state.targets:
            lines.append(f"{target.name:<22}{duration(target.core_s):>13}{_count(target.rate):>9}{_count(target.executions):>12}"
                         f"{target.features:>10}{target.corpus:>8}{target.failures:>10}")
        lines.append("running: " + (", ".join(running) or "nothing"))
        share = min(1.0, elapsed_s / total_s) if total_s else 1.0
        bar = ("#" * round(40 * share)).ljust(40, ".")
        left = duration(total_s - elapsed_s) + " left" if elapsed_s < total_s else "closing"
        lines.append(f"[{bar}] {100 * share:3.0f} %  {left}")
        # Lines are cut at the window's width: a wrapped one would break the way back up.
        block = "".join(f"\033[K{line[:width]}\n" for line in lines)
        up = f"\033[{self._drawn}A" if self._drawn else ""
        sys.stdout.write(up + block)
        sys.stdout.flush()
        self._drawn = len(lines)

    def _clear(self) -> None:
        if self._drawn:
            sys.stdout.write(f"\033[{self._drawn}A\033[J")
            sys.stdout.flush()
        self._drawn = 0
