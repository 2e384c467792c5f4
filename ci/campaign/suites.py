"""Suites under GoogleTest and RapidCheck: how they are run with fresh seeds, and what their logs say."""

from __future__ import annotations

import re

from campaign.model import Property, Share

_run = re.compile(r"^\[ RUN      \] (\S+)$", re.M)
_end = re.compile(r"^\[ +(OK|FAILED|SKIPPED) +\] (\S+?),? .*?\((\d+) ms\)$", re.M)
_name = re.compile(r"^- (.+)$", re.M)
_passed = re.compile(r"^OK, passed (\d+) tests?", re.M)
_falsified = re.compile(r"^Falsifiable after (\d+) tests?", re.M)
_share = re.compile(r'^ *([\d.]+)% - "?(.*?)"?$', re.M)
_kept = re.compile(r"^before shrinking, kept in (.+\.batch):$", re.M)


def parameters(seed: int, cases: int) -> dict[str, str]:
    return {"RC_PARAMS": f"seed={seed} max_success={cases}"}


def parts(text: str) -> list[tuple[str, str]]:
    """Each test that was started, and what the log says until the next one."""
    starts = list(_run.finditer(text))
    return [(m[1], text[m.end() : starts[i + 1].start() if i + 1 < len(starts) else len(text)]) for i, m in enumerate(starts)]


def races(text: str) -> list[str]:
    """ThreadSanitizer's reports."""
    return [part for part in text.split("==================") if "WARNING: ThreadSanitizer" in part]


def properties_of(text: str, suite: str, seed: int) -> list[Property]:
    """The RapidCheck properties in a log, with the shares of their classes."""
    found = []
    for _, part in parts(text):
        name = _name.search(part)
        if not name:
            continue
        end = _end.search(part)
        passed, falsified = _passed.search(part), _falsified.search(part)
        shares = [Share(label, float(percent)) for percent, label in _share.findall(part)]
        result = "ok" if end and end[1] == "OK" else "finding" if end and end[1] == "FAILED" else "error"
        cases = int((passed or falsified or [0, 0])[1])
        found.append(Property(suite, name[1], seed, cases, int(end[3]) / 1000 if end else 0, result, shares))
    return found


def kept_cases(text: str) -> list[tuple[str, str]]:
    """The cases that a property wrote before it shrunk them: file, and the report behind its name."""
    marks = list(_kept.finditer(text))
    return [(m[1], text[m.end() : marks[i + 1].start() if i + 1 < len(marks) else len(text)]) for i, m in enumerate(marks)]


def passed(text: str) -> int:
    """How many tests held."""
    return sum(result == "OK" for result, _, _ in _end.findall(text))


def failed_tests(text: str, also_unfinished: bool = True) -> list[str]:
    """Names of tests that failed, each once; one that the process died in is the last that was started."""
    failed = [name for result, name, _ in _end.findall(text) if result == "FAILED"]
    started, ended = _run.findall(text), {name for _, name, _ in _end.findall(text)}
    if also_unfinished and started and started[-1] not in ended:
        failed.append(started[-1])
    return list(dict.fromkeys(failed))
