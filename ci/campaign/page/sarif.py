"""The findings as SARIF 2.1.0, what code scanning reads."""

from __future__ import annotations

import json
import re
import urllib.parse
from typing import Any

from campaign.model import Finding, Report
from campaign.page.text import (
    canaries,
    clipped,
    counted,
    doubts,
    duration,
    faults_in_order,
    key_of,
    moment,
    one_line,
    printable,
    run_again,
    short_commit,
)

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_FILE = r"(?P<file>[^\s:()]+\.(?:cpp|hpp|cc|h|cu|hip|inl))"
_PLACE = re.compile(_FILE + r":(?P<line>[1-9]\d{0,8})(?::(?P<column>[1-9]\d{0,8}))?")
_MOST_CHARACTERS = 3000  # of a message's difference


def sarif_of(report: Report) -> str:
    """The canary is no result: nobody has to look at it."""
    faults = faults_in_order(report)
    rules = _rules(faults)
    index = {rule["id"]: i for i, rule in enumerate(rules)}
    run = {
        "tool": {"driver": {"name": "attnfuzz", "version": short_commit(one_line(report.commit)), "rules": rules}},
        "automationDetails": {"id": f"attnfuzz/{one_line(report.campaign)}"},
        "columnKind": "unicodeCodePoints",
        "invocations": [_invocation(report)],
        "results": [_result(finding, index[_rule_id(finding)]) for finding in faults],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, ensure_ascii=False, indent=2) + "\n"


def _rule_id(finding: Finding) -> str:
    return one_line(finding.id) or "unknown"


def _rules(faults: list[Finding]) -> list[dict[str, Any]]:
    rules: dict[str, dict[str, Any]] = {}
    for finding in faults:
        claim = one_line(finding.claim) or _rule_id(finding)
        rule: dict[str, Any] = {
            "id": _rule_id(finding),
            "name": one_line(finding.kind) or "finding",
            "shortDescription": {"text": claim[:1000]},
            "defaultConfiguration": {"level": "error"},
        }
        rules.setdefault(rule["id"], rule)
    return list(rules.values())


def _result(finding: Finding, rule_index: int) -> dict[str, Any]:
    places = _places(finding)
    result = {
        "ruleId": _rule_id(finding),
        "ruleIndex": rule_index,
        "level": "warning" if finding.is_flaky else "error",
        "message": {"text": _message(finding)},
        "locations": [{"physicalLocation": places[0]}],
        "partialFingerprints": {"attnfuzzFinding/v1": one_line(key_of(finding))},
        "occurrenceCount": max(1, finding.count),
        "properties": {"kind": one_line(finding.kind), "isNew": finding.is_new, "isFlaky": finding.is_flaky},
    }
    if len(places) > 1:
        related = [{"id": i, "physicalLocation": place} for i, place in enumerate(places[1:], start=1)]
        result["relatedLocations"] = related
    return result


def _message(finding: Finding) -> str:
    difference, left_out = clipped(printable(finding.difference), _MOST_CHARACTERS)
    lines = [
        clipped(printable(finding.claim), _MOST_CHARACTERS)[0],
        f"Where: {printable(finding.where)}" if finding.where else "",
        f"Differs: {difference}" + (" ..." if left_out else "") if difference else "",
        f"Found by {', '.join(map(one_line, finding.targets)) or 'no target named'} after "
        f"{duration(finding.seconds_to_fail)} of core time; {run_again(finding)}.",
        f"Repeat: {printable(finding.command)}" if finding.command else "",
    ]
    return "\n".join(line for line in lines if line)


def _places(finding: Finding) -> list[dict[str, Any]]:
    """The frames' files and lines; the target's own file where there are none, since code scanning wants a place."""
    places = []
    for frame in finding.frames:
        match = _PLACE.search(printable(frame))
        if match:
            region = {"startLine": int(match["line"])}
            if match["column"]:
                region["startColumn"] = int(match["column"])
            places.append({"artifactLocation": {"uri": _uri(match["file"])}, "region": region})
    return places or [{"artifactLocation": {"uri": _uri(_file_of(finding))}, "region": {"startLine": 1}}]


def _file_of(finding: Finding) -> str:
    name = one_line(finding.targets[0]).split("/")[-1] if finding.targets else ""
    if not re.fullmatch(r"\w+", name):
        return "properties/check.cpp"
    return f"properties/suites/{name}.cpp" if name.endswith("_test") else f"fuzz/{name}.cpp"


def _uri(file: str) -> str:
    return urllib.parse.quote(file.removeprefix("./").lstrip("/"))


def _invocation(report: Report) -> dict[str, Any]:
    notes = [{"level": "error", "message": {"text": alarm}} for alarm in doubts(report)]
    broken = any(target.result == "error" for target in report.targets)
    invocation = {
        "executionSuccessful": not notes and not broken and bool(canaries(report)),
        "toolExecutionNotifications": notes,
        "properties": {
            "commit": one_line(report.commit),
            "state": one_line(report.state),
            "seed": report.seed,
            "cores": counted(report.jobs, "core"),
            "planted": [one_line(fault) for fault in report.planted],
        },
    }
    if report.command:
        invocation["commandLine"] = printable(report.command)
    for key, stamp in (("startTimeUtc", report.began), ("endTimeUtc", report.ended)):
        time = moment(stamp)
        if time:
            invocation[key] = f"{time:%Y-%m-%dT%H:%M:%SZ}"
    return invocation
