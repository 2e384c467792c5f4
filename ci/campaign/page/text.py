"""Words and numbers that every writer shares: what is printable, how numbers read, what the campaign's verdict is."""

from __future__ import annotations

import math
import re
import statistics
from dataclasses import dataclass
from datetime import datetime

from campaign.model import Finding, Night, Report, Target

_ANSI_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

# What would be invisible, illegal in XML 1.0, or turn the direction of the text around it. Tab and newline stay.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufffe\uffff"
    "\ud800-\udfff\ufdd0-\ufdef]"
)


def _picture_of(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code < 0x20:
        return chr(0x2400 + code)  # Unicode's control pictures: NUL, ESC ...
    if code == 0x7F:
        return "\u2421"
    if 0xD800 <= code <= 0xDFFF or code >= 0xFDD0 or code < 0xA0:
        return "\ufffd"
    return f"<U+{code:04X}>"


def printable(value: object) -> str:
    """Any text as one that HTML, XML and UTF-8 can hold and a person can see; terminal colours are dropped."""
    text = _ANSI_COLOUR.sub("", str(value)).replace("\r\n", "\n").replace("\r", "\n")
    return _UNPRINTABLE.sub(_picture_of, text)


def one_line(value: object) -> str:
    return " ".join(printable(value).split())


def clipped(text: str, limit: int, keep_end: bool = False) -> tuple[str, int]:
    """The first (or last) characters of a text, cut at a line where one is near, and how many were left out."""
    if len(text) <= limit:
        return text, 0
    if keep_end:
        kept = text[len(text) - limit :]
        newline = kept.find("\n")
        kept = kept[newline + 1 :] if 0 <= newline < limit // 4 else kept
    else:
        kept = text[:limit]
        newline = kept.rfind("\n")
        kept = kept[: newline + 1] if newline > limit - limit // 4 else kept
    return kept, len(text) - len(kept)


def si(value: float) -> str:
    """A number as people say it, three digits: 950, 1.23k, 12k, 4.5M."""
    if not math.isfinite(value):
        return "-"
    sign, value = ("-" if value < 0 else ""), abs(value)
    for suffix in ("", "k", "M", "G", "T"):
        # 999.5 rounds up to 1000, which is the next suffix's 1.
        if value < 999.5 or suffix == "T":
            break
        value /= 1000
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    text = f"{value:.{digits}f}"
    return sign + (text.rstrip("0").rstrip(".") if "." in text else text) + suffix


def plain(value: float) -> str:
    """A count with every digit: 12,345."""
    return f"{value:,.0f}" if math.isfinite(value) else "-"


def duration(seconds: float) -> str:
    """0.4 s, 12 s, 3 min 20 s, 1 h 2 min."""
    if not math.isfinite(seconds) or seconds < 0:
        return "-"
    if seconds == 0:
        return "0 s"
    if seconds < 0.05:
        return "< 0.1 s"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes % 60 else f"{minutes // 60} h"


def percent(part: float, whole: float) -> float:
    return 100 * part / whole if whole > 0 else 0.0


def percent_text(value: float) -> str:
    """One decimal, and neither 0 nor 100 for what is only nearly so: a share of 0.0 % would read as never."""
    if not math.isfinite(value):
        return "-"
    if 0 < value < 0.1:
        return "< 0.1 %"
    if 99.9 < value < 100:
        return "> 99.9 %"
    return f"{value:.1f} %" if value % 1 else f"{value:.0f} %"


def bytes_text(count: int) -> str:
    if count < 1024:
        return f"{count} B"
    return f"{count / 1024:.0f} KiB" if count < 1 << 20 else f"{count / (1 << 20):.1f} MiB"


def counted(count: int, singular: str, plural: str = "") -> str:
    return f"{plain(count)} {singular if count == 1 else plural or singular + 's'}"



def moment(stamp: str) -> datetime | None:
    try:
        # Python 3.10 does not know the Z.
        return datetime.fromisoformat(stamp.strip().replace("Z", "+00:00"))
    except ValueError:
        return None


def elapsed(began: str, ended: str) -> float | None:
    first, last = moment(began), moment(ended)
    if first is None or last is None or (first.tzinfo is None) != (last.tzinfo is None) or last < first:
        return None
    return (last - first).total_seconds()


def short_commit(commit: str) -> str:
    return (commit[:10] + ("+" if commit.endswith("+") and len(commit) > 10 else "")) or "unknown commit"


def faults_in_order(report: Report) -> list[Finding]:
    """The fastest to fail first, whatever order they came in."""
    return sorted(report.faults, key=lambda finding: finding.seconds_to_fail)


def canaries(report: Report) -> list[Finding]:
    return [finding for finding in report.findings if finding.is_canary]


def key_of(finding: Finding) -> str:
    return f"{finding.id}-{finding.hash}" if finding.hash else finding.id


def repeats(finding: Finding) -> str:
    """How often it failed when it was run again."""
    if finding.tries <= 0:
        return "not run again"
    return f"{finding.repeated} of {finding.tries}"


def run_again(finding: Finding) -> str:
    if finding.tries <= 0:
        return "not run again"
    return f"failed {repeats(finding)} times when run again" + (": flaky" if finding.is_flaky else "")


def earlier_median(nights: list[Night], field: str) -> float | None:
    """Of the campaigns before this one, which is the last; None where there are none."""
    earlier = [getattr(night, field) for night in nights[:-1]]
    return statistics.median(earlier) if earlier else None


def change_text(value: float, before: float | None) -> str:
    """+1.2 % against a median; empty where there is nothing to compare with."""
    if before is None or before <= 0:
        return ""
    change = 100 * (value - before) / before
    return "as before" if abs(change) < 0.05 else f"{change:+.1f} %".replace("-", "\u2212")


def doubts(report: Report) -> list[str]:
    """Why a campaign that found nothing may mean nothing: its own alarms, and what follows from the data."""
    sentences = [one_line(alarm) for alarm in report.alarms]
    told = "\n".join(sentences).lower()
    if not canaries(report) and "canary" not in told:
        sentences.append("The canary, a fault planted on purpose, was not found: findings may have been missed.")
    if not report.targets:
        sentences.append("No target was run.")
    for target in report.targets:
        if target.result in ("error", "not run") and target.name.lower() not in told:
            sentences.append(f"{one_line(target.name)} {_why_not(target)}")
    return sentences


def _why_not(target: Target) -> str:
    error = one_line(target.error)
    words = "was not run" if target.result == "not run" else "ended with an error"
    return f"{words}: {error}" if error else f"{words}."


@dataclass
class Verdict:
    """The campaign in a line."""

    level: str  # bad: findings; doubt: none, but that may mean nothing; good
    headline: str


def verdict(report: Report) -> Verdict:
    faults = report.faults
    doubtful = doubts(report)
    if faults:
        new = sum(finding.is_new for finding in faults)
        flaky = sum(finding.is_flaky for finding in faults)
        if len(faults) == 1:
            return Verdict("bad", f"1 finding, {'new' if new else 'seen before'}{', flaky' if flaky else ''}")
        words = f"{new or 'none'} new" + (f", {flaky} flaky" if flaky else "")
        return Verdict("bad", f"{counted(len(faults), 'finding')}: {words}")
    if doubtful:
        return Verdict("doubt", f"No finding, but {counted(len(doubtful), 'reason')} to doubt it")
    if report.state != "finished":
        return Verdict("doubt", f"No finding, but the campaign was {one_line(report.state)}")
    return Verdict("good", "No finding")
