"""What a failure is told by: the invariant it names, or the sanitizer's kind and the top frames of project code."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_finding = re.compile(r"^(?:.*: )?FINDING ([A-Za-z][A-Za-z0-9_ -]*?): (.*)$", re.M)
_sanitizer = re.compile(r"^.*(?:ERROR|WARNING): (Address|Thread|Leak|Memory|UndefinedBehavior)Sanitizer:? ([^\n]*)", re.M)
_undefined = re.compile(r"^(\S+):(\d+):\d+: runtime error: ([^\n]*)", re.M)
_frame = re.compile(r"^\s*#\d+ (?:0x[0-9a-f]+ in )?(.+?) (\S+?):(\d+)(?::\d+)?(?: \(.*)?$", re.M)
_suite = re.compile(r"^\[  FAILED  \] (\S+)", re.M)
FRAMES = 3


@dataclass
class Blame:
    kind: str  # as model.Finding.kind
    id: str
    claim: str
    where: str = ""
    difference: str = ""
    frames: list[str] = field(default_factory=list)

    @property
    def key(self) -> str:
        """What failures of one group have in common."""
        # Without line numbers: they change with every edit above them.
        return self.id if self.kind == "invariant" else "|".join([self.id, *(f.rsplit(":", 1)[0] for f in self.frames)])


def _project_frames(text: str, root: str) -> list[str]:
    """The top frames of project code, without the harness's own way to die."""
    frames = []
    for function, path, line in _frame.findall(text):
        if not path.startswith(root + "/"):
            continue
        path = re.sub(r"^build/[^/]+/planted/all/", "", path[len(root) + 1 :])
        if path.startswith(("build/", "fuzz/target.cpp", "fuzz/engine.cpp")):
            continue
        name = re.sub(r"\(.*", "", function.replace("(anonymous namespace)::", ""))
        frames.append(f"{name} {path}:{line}")
        if len(frames) == FRAMES:
            break
    return frames


def _line_behind(text: str, name: str) -> str:
    found = re.search(rf"^{name}: +(.*)$", text, re.M)
    return found[1] if found else ""


def blame(text: str, root: str, artifact: str = "") -> Blame:
    """Reads a log. `artifact` is the name of the input that libFuzzer wrote, which tells time-outs apart."""
    said = _finding.search(text)
    if said and re.fullmatch(r"[A-Z]\d+|text", said[1]):
        return Blame("invariant", said[1], said[2], _line_behind(text, "where"), _line_behind(text, "differs"))
    # attnfuzz says "crash" and "hang" of what it checks in another process: that one's own report says more.
    if said and said[1] not in ("crash", "hang"):
        return Blame("invariant", said[1].removeprefix("fuzz_"), said[2])
    frames = _project_frames(text, root)
    if artifact.startswith("slow-unit"):
        return Blame("slow", "slow", "an input takes far longer than others")
    if artifact.startswith("timeout"):
        return Blame("timeout", "timeout", "an input does not come to its end", frames=frames)
    if artifact.startswith("oom"):
        return Blame("memory", "out-of-memory", "an input takes more memory than all others together", frames=frames)
    undefined = _undefined.search(text)
    if undefined:
        place = f"{undefined[1][len(root) :].lstrip('/') if undefined[1].startswith(root) else undefined[1]}:{undefined[2]}"
        what = re.sub(r"-?\d+", "N", undefined[3])
        return Blame("sanitizer", "undefined-behaviour", what, place, undefined[3], frames or [place])
    found = _sanitizer.search(text)
    if found:
        what = found[2].split(" on ")[0].split(" (pid")[0].strip()
        kind = "race" if found[1] == "Thread" and "race" in what else "sanitizer"
        name = re.sub(r"[^A-Za-z0-9]+", "-", what).strip("-").lower() or "sanitizer"
        return Blame(kind, name[:40], f"{found[1]}Sanitizer: {what}", frames=frames)
    if said and said[1] == "hang":
        return Blame("timeout", "timeout", "an input does not come to its end")
    if said:
        return Blame("crash", "crash", "the process died", _line_behind(text, "where"), frames=frames or [_line_behind(text, "where")])
    if artifact:
        found = re.search(r"ERROR: libFuzzer: (.*)", text)
        what = found[1] if found else "the process died"
        return Blame("crash", "crash", f"libFuzzer: {what}", frames=frames)
    failed = _suite.search(text)
    if failed:
        return Blame("property", "test", f"{failed[1]} failed", failed[1], frames=[failed[1]])
    return Blame("crash", "died", "the process ended without a report", difference=text.strip()[-200:], frames=frames)
