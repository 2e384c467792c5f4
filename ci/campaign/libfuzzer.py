"""libFuzzer's command line, and what its log says."""

from __future__ import annotations

import pathlib
import re
from dataclasses import dataclass

INPUT_TIMEOUT_S = 10  # an input takes microseconds; whatever takes this long hangs
SLOW_S = 2  # and whatever takes this long is a finding of its own, unless the machine was asleep
MEMORY_LIMIT_MIB = 2048  # the sanitizers' own memory is far below; whatever needs more grows without bound
MOST_LOG = 16 << 20  # bytes that are read of each end of a log
SMALLEST_MAX_LEN = 4096  # bytes; above the longest line people write

_status = re.compile(rb"^#(\d+)\s.* rss: \d+Mb", re.M)
_numbers = {"edges": rb" cov: (\d+)", "features": rb" ft: (\d+)", "corpus": rb" corp: (\d+)", "rate": rb" exec/s: (\d+)"}
_artifact = re.compile(r"Test unit written to (\S*/(?:crash|leak|timeout|oom|slow-unit)-[0-9a-f]+)")


@dataclass
class Status:
    executions: int = 0
    rate: int = 0
    features: int = 0
    edges: int = 0
    corpus: int = 0


def limits(max_len: int) -> list[str]:
    """The options under which an input is an offence: a repeat has the same."""
    return [f"-timeout={INPUT_TIMEOUT_S}", f"-rss_limit_mb={MEMORY_LIMIT_MIB}", f"-max_len={max_len}"]


def fuzz_options(seconds: float, seed: int, max_len: int) -> list[str]:
    # libFuzzer runs until the seconds are exceeded, which is one more; 0 would be for ever.
    return [
        f"-max_total_time={max(1, round(seconds) - 1)}",
        f"-seed={seed}",
        "-artifact_prefix=artifacts/",
        f"-report_slow_units={SLOW_S}",
        "-print_final_stats=1",
        "-detect_leaks=1",
        *limits(max_len),
    ]


def tail(log: pathlib.Path, size: int) -> bytes:
    try:
        with open(log, "rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - size))
            return file.read()
    except OSError:
        return b""


def read_status(log: pathlib.Path, size: int = 16384) -> Status | None:
    """The latest status line: `#1234 NEW cov: 57 ft: 101 corp: 12/345b lim: 4096 exec/s: 1000 rss: 60Mb ...`"""
    lines = list(_status.finditer(tail(log, size)))
    if not lines:
        return None
    found = {name: re.search(pattern, lines[-1][0]) for name, pattern in _numbers.items()}
    return Status(int(lines[-1][1]), **{name: int(match[1]) if match else 0 for name, match in found.items()})


def final_executions(log: pathlib.Path) -> int | None:
    found = re.search(rb"^stat::number_of_executed_units: *(\d+)", tail(log, 4096), re.M)
    return int(found[1]) if found else None


def artifacts(text: str) -> list[str]:
    """Names, below the process's folder, of inputs that libFuzzer says it wrote; its promise, not yet a file."""
    return _artifact.findall(text)


def merged_files(text: str) -> int | None:
    """How many inputs a merge says it added."""
    found = re.findall(r"^MERGE-OUTER: (\d+) new files with", text, re.M)
    return int(found[-1]) if found else None


def read_log(log: pathlib.Path) -> str:
    """A log; of one that somebody flooded its beginning and its end."""
    try:
        with open(log, "rb") as file:
            data = file.read(MOST_LOG)
            size = file.seek(0, 2)
            if size > MOST_LOG:
                file.seek(max(MOST_LOG, size - MOST_LOG))
                data += b"\n...\n" + file.read()
    except FileNotFoundError:
        return ""
    return data.decode(errors="replace")


def part_of(text: str, artifact: str) -> str:
    """What a log says of one of the inputs it tells of: a merge goes on behind one that fails."""
    end = text.find(artifact) if artifact else -1
    if end < 0:
        return text
    end = text.find("\n", end) % (len(text) + 1)
    begin = text.rfind("Test unit written to ", 0, text.find(artifact) - len("Test unit written to artifacts/"))
    return text[text.find("\n", begin) + 1 if begin >= 0 else 0 : end]


def log_without_noise(text: str) -> str:
    """The report in a log: without status lines, the engine's own frames, shadow bytes, and inputs in hex."""
    kept, shadow, skip = [], False, 0
    for line in text.splitlines():
        if skip:
            skip -= 1
            continue
        if line.startswith("Shadow bytes around"):
            shadow = True
        if line.endswith("ABORTING"):
            shadow = False
            continue
        if shadow or re.match(r"#\d+\t|INFO: |\s+NEW_(FUNC|PC)|stat::|artifact_prefix=|Base64: |MS: \d+ |NOTE: libFuzzer", line):
            continue
        if re.match(r"\s+#\d+ 0x[0-9a-f]+ in (fuzzer::|main |_start |__libc_start|__sanitizer_print)", line):
            continue
        if re.match(r"(0x[0-9a-f]{1,2},)+\s*$", line):
            skip = 1  # the line behind is the input once more
            continue
        kept.append(line)
    return "\n".join(kept).strip("\n") + "\n"
