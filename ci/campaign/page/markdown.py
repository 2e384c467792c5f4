"""The campaign as a Markdown summary: what a CI job shows below its log."""

from __future__ import annotations

import re

from campaign.model import Finding, Report, Target
from campaign.page.html import when
from campaign.page.text import (
    canaries,
    change_text,
    clipped,
    counted,
    doubts,
    duration,
    earlier_median,
    faults_in_order,
    key_of,
    one_line,
    percent,
    percent_text,
    plain,
    printable,
    repeats,
    short_commit,
    si,
    verdict,
)

MOST_BYTES = 60_000  # an issue's comment holds 65,536
_MARKS = {"bad": "❌", "doubt": "⚠️", "good": "✅"}
_LINES_SHOWN = 50  # of alarms and of targets


def markdown_of(report: Report) -> str:
    head = [*_verdict(report), *_alarms(report)]
    tail = [*_targets(report), *_coverage(report)]
    left = MOST_BYTES - _size(head) - _size(tail) - 200
    text = "\n".join([*head, *_findings(report, left), *tail]) + "\n"
    # The parts are capped one by one; this holds whatever their sum is.
    return text if len(text.encode()) <= MOST_BYTES else text.encode()[:MOST_BYTES].decode(errors="ignore")


def _size(lines: list[str]) -> int:
    return sum(len(line.encode()) + 1 for line in lines)


def inline(value: object, limit: int = 300) -> str:
    """Data as text that no Markdown reader takes for markup, also inside a table."""
    text, left_out = clipped(one_line(value), limit)
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"([\\`*_\[\]|~#!])", r"\\\1", text)
    # A mention would notify people, a link would lead somewhere.
    text = text.replace("@", "@<!-- -->").replace("://", ":<!-- -->//")
    return text + (" ..." if left_out else "")


def fenced(value: object, limit: int = 1500) -> list[str]:
    """A code block whose fence is longer than any inside."""
    text, left_out = clipped(printable(value).strip("\n"), limit)
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return [fence, text + (f"\n({left_out} characters left out)" if left_out else ""), fence]


def _verdict(report: Report) -> list[str]:
    told = verdict(report)
    lines = [f"## {_MARKS[told.level]} attnfuzz: {inline(told.headline)}", ""]
    subject = f" {inline(report.subject)}" if report.subject else ""
    lines += [
        f"Campaign {inline(report.campaign)}, commit {inline(short_commit(report.commit))}{subject}  ",
        inline(when(report)) + "  ",
    ]
    found = canaries(report)
    if found:
        seconds = min(finding.seconds_to_fail for finding in found)
        lines.append(f"Canary: found after {duration(seconds)}, as it has to be.")
    else:
        lines.append("**Canary: not found.**")
    if report.planted:
        planted = inline(", ".join(report.planted))
        lines += ["", f"**Planted faults are switched on ({planted}): findings are expected.**"]
    return [*lines, ""]


def _alarms(report: Report) -> list[str]:
    alarms = doubts(report)
    if not alarms:
        return []
    lines = [f"### ⚠️ {counted(len(alarms), 'alarm')}", ""]
    lines += [f"- {inline(alarm)}" for alarm in alarms[:_LINES_SHOWN]]
    if len(alarms) > _LINES_SHOWN:
        lines.append(f"- {len(alarms) - _LINES_SHOWN} more, in report.json")
    return [*lines, ""]


def _findings(report: Report, left: int) -> list[str]:
    """The table of all that fit, then a command each; what does not fit is counted."""
    faults = faults_in_order(report)
    if not faults:
        return ["No finding.", ""]
    head = [
        "### Findings, fastest to fail first",
        "",
        "| finding | claim | target | after | failed again | |",
        "| --- | --- | --- | ---: | ---: | --- |",
    ]
    rows, commands = [], [""]
    left -= _size(head)
    for finding in faults:
        row, command = _row(finding), _how_to_repeat(finding)
        left -= _size([row, *command])
        if left < 0:
            break
        rows.append(row)
        commands += command
    more = len(faults) - len(rows)
    note = [f"{counted(more, 'more finding')}, in index.html and findings/.", ""] if more else []
    return [*head, *rows, *commands, *note]


def _row(finding: Finding) -> str:
    notes = ("new" if finding.is_new else "") + (", flaky" if finding.is_flaky else "")
    cells = [
        inline(key_of(finding)),
        inline(finding.claim),
        inline(", ".join(finding.targets)),
        duration(finding.seconds_to_fail),
        repeats(finding),
        notes.removeprefix(", "),
    ]
    return "| " + " | ".join(cells) + " |"


def _how_to_repeat(finding: Finding) -> list[str]:
    differs = f": {inline(finding.difference, 400)}" if finding.difference else ""
    command = fenced(finding.command) if finding.command else ["There is no command that repeats it."]
    return [f"**{inline(key_of(finding))}**{differs}", "", *command, ""]


def _targets(report: Report) -> list[str]:
    if not report.targets:
        return ["No target was run.", ""]
    head = [
        "### Targets",
        "",
        "| target | result | core time | inputs | inputs/s | features | corpus files |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    rows = [_target(target) for target in report.targets[:_LINES_SHOWN]]
    return [*head, *rows, ""]


def _target(target: Target) -> str:
    growth = f"{target.corpus_after - target.corpus_before:+,d}"
    cells = [
        inline(target.name),
        inline(target.result),
        duration(target.core_s),
        si(target.executions),
        _compared(target, "rate"),
        _compared(target, "features"),
        f"{plain(target.corpus_after)} ({growth})",
    ]
    return "| " + " | ".join(cells) + " |"


def _compared(target: Target, field: str) -> str:
    value = getattr(target, field)
    change = change_text(value, earlier_median(target.nights, field))
    return si(value) + (f" ({change})" if change else "")


def _coverage(report: Report) -> list[str]:
    rooms = report.coverage.rooms if report.coverage else []
    lines, covered = sum(room.lines for room in rooms), sum(room.covered for room in rooms)
    if not lines:
        return ["Line coverage was not measured."]
    share = percent_text(percent(covered, lines)).replace("<", "&lt;").replace(">", "&gt;")
    return [f"The kept corpus runs {share} of the library's lines, {plain(covered)} of {plain(lines)}."]
