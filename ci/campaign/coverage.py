"""Which lines of the library the kept corpus runs, by llvm-cov."""

from __future__ import annotations

import pathlib
import shutil

from campaign.files import Failed
from campaign.model import Coverage, Line, Room
from campaign.process import run
from campaign.programs import llvm_tool

SUBJECT = "src/attn"
LIMIT_S = 600
MOST_LINES = 400  # of those never run, that are listed; llvm-cov's pages have all


def _objects(programs: list[str]) -> list[str]:
    # llvm-cov wants the first one bare: it would take the sources for it otherwise.
    return [programs[0]] + [word for program in programs[1:] for word in ("-object", program)]


def count_lines(root: pathlib.Path, programs: list[str], profiles: pathlib.Path, pages: pathlib.Path) -> Coverage:
    """Merges the profiles, writes llvm-cov's pages, and sums up. The programs have to be those that wrote the profiles."""
    raw = [str(path) for path in sorted(profiles.glob("*.profraw"))]
    if not raw:
        raise Failed("no program wrote a profile: lines are not counted")
    merged = str(profiles / "all.profdata")
    _tool([llvm_tool("llvm-profdata"), "merge", "-sparse", "-o", merged, *raw], root)
    cov, what = llvm_tool("llvm-cov"), [f"-instr-profile={merged}", SUBJECT]
    tracefile = _tool([cov, "export", *_objects(programs), "-format=lcov", *what], root)
    aside = pages.with_name(f".{pages.name}-aside")
    shutil.rmtree(aside, ignore_errors=True)
    _tool([cov, "show", *_objects(programs), "-format=html", "-show-line-counts-or-regions", f"-output-dir={aside}", *what], root)
    shutil.rmtree(pages, ignore_errors=True)
    aside.rename(pages)
    return summary(root, tracefile, pages)


def _tool(command: list[str], root: pathlib.Path) -> str:
    status, output = run(command, root, LIMIT_S)
    if status != 0:
        raise Failed(f"{pathlib.Path(command[0]).name} ended with {status}: {output.strip()[-300:]}")
    return output


def summary(root: pathlib.Path, tracefile: str, pages: pathlib.Path) -> Coverage:
    """From lcov's format. A line counts once here; llvm-cov's own table counts it once for every function it is part of."""
    rooms: dict[str, list[int]] = {}
    never: list[Line] = []
    file, lines = "", []
    for entry in tracefile.splitlines():
        if entry.startswith("SF:"):
            path = pathlib.Path(entry[3:])
            # Without a frame of its own a planted file lies in the build; it stands for the library's.
            file = str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
            lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        elif entry.startswith("DA:"):
            number, count = (int(value) for value in entry[3:].split(",")[:2])
            room = rooms.setdefault(str(pathlib.Path(file).parent), [0, 0])
            room[0] += 1
            room[1] += count > 0
            if count == 0 and len(never) < MOST_LINES:
                never.append(Line(file, number, lines[number - 1].strip() if number <= len(lines) else ""))
    link = f"{pages.name}/index.html"
    return Coverage([Room(name, total, run_, link) for name, (total, run_) in sorted(rooms.items())], never, link)
