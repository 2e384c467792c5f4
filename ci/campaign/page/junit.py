"""The campaign as JUnit XML: a case for every target, property, alarm and canary."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterable

from campaign.model import Finding, Report
from campaign.page.text import (
    canaries,
    clipped,
    counted,
    duration,
    faults_in_order,
    key_of,
    one_line,
    printable,
    run_again,
)

_MOST_CHARACTERS = 2000  # of a claim and of a difference; the page and the finding's folder have more


def junit_of(report: Report) -> str:
    """Valid XML whatever bytes the data hold."""
    root = ET.Element("testsuites", name=f"attnfuzz campaign {one_line(report.campaign)}")
    faults = faults_in_order(report)
    told = _targets(root, report, faults)
    told |= _properties(root, report, faults)
    _others(root, [finding for finding in faults if id(finding) not in told])
    _campaign(root, report)
    for suite in root:
        _count(suite, list(suite))
    _count(root, [case for suite in root for case in suite])
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _case(suite: ET.Element, name: str, seconds: float) -> ET.Element:
    classname = f"attnfuzz.{suite.get('name')}"
    return ET.SubElement(suite, "testcase", name=one_line(name), classname=classname, time=f"{seconds:.3f}")


def _fail(case: ET.Element, tag: str, kind: str, message: str, text: str) -> None:
    node = ET.SubElement(case, tag, message=one_line(message), type=one_line(kind))
    node.text = printable(text)


def _fail_by(case: ET.Element, findings: list[Finding]) -> None:
    """One failure with all findings: many readers show a case's first failure alone."""
    ids = ", ".join(dict.fromkeys(key_of(finding) for finding in findings))
    text = "\n\n".join(_words(finding) for finding in findings)
    _fail(case, "failure", findings[0].kind, f"{counted(len(findings), 'finding')}: {ids}", text)


def _words(finding: Finding) -> str:
    difference, left_out = clipped(printable(finding.difference), _MOST_CHARACTERS)
    claim, _ = clipped(printable(finding.claim), _MOST_CHARACTERS)
    lines = [
        f"FINDING {key_of(finding)}: {claim}",
        f"where:   {finding.where}" if finding.where else "",
        f"differs: {difference}" + (f" ... {left_out} characters left out" if left_out else ""),
        f"after:   {duration(finding.seconds_to_fail)} of core time; {run_again(finding)}",
        f"repeat:  {finding.command or 'there is no command that repeats it'}",
        f"folder:  {finding.folder}" if finding.folder else "",
    ]
    return "\n".join(line for line in lines if line)


def _targets(root: ET.Element, report: Report, faults: list[Finding]) -> set[int]:
    suite = ET.SubElement(root, "testsuite", name="targets")
    told: set[int] = set()
    for target in report.targets:
        case = _case(suite, target.name, target.core_s)
        found = [finding for finding in faults if target.name in finding.targets]
        told |= {id(finding) for finding in found}
        if found:
            _fail_by(case, found)
        elif target.result == "finding":
            _fail(case, "failure", "finding", "a finding that the report does not hold", target.error)
        elif target.result == "not run":
            ET.SubElement(case, "skipped", message=one_line(target.error or "not run"))
        if target.result == "error":
            _fail(case, "error", "error", target.error or "the target ended with an error", target.error)
    return told


def _properties(root: ET.Element, report: Report, faults: list[Finding]) -> set[int]:
    """Findings do not say which property they are of, so that each stands at those properties that failed."""
    suite = ET.SubElement(root, "testsuite", name="properties")
    suites = {tested.suite for tested in report.properties}
    found = [f for f in faults if f.kind == "property" or suites & set(f.targets)]
    told: set[int] = set()
    for tested in report.properties:
        case = _case(suite, f"{tested.suite}.{tested.name}", tested.seconds)
        facts = f"{counted(tested.cases, 'case')}, seed {tested.seed}"
        if tested.result == "finding" and found:
            told |= {id(finding) for finding in found}
            _fail_by(case, found)
        elif tested.result == "finding":
            _fail(case, "failure", "property", "the property does not hold", facts)
        elif tested.result != "ok":
            _fail(case, "error", "error", f"the property ended with: {tested.result}", facts)
    return told


def _others(root: ET.Element, findings: Iterable[Finding]) -> None:
    """Those of no target and no property in the report: races, replays, tests."""
    suite = ET.SubElement(root, "testsuite", name="other findings")
    for finding in findings:
        _fail_by(_case(suite, key_of(finding), finding.seconds_to_fail), [finding])


def _campaign(root: ET.Element, report: Report) -> None:
    suite = ET.SubElement(root, "testsuite", name="campaign")
    found = canaries(report)
    canary = _case(suite, "the canary is found", min((f.seconds_to_fail for f in found), default=0))
    if not found:
        why = "The canary was not found: the campaign may have missed findings."
        _fail(canary, "failure", "canary", why, why)
    alarms = report.alarms  # a target's error, and a canary not found, have cases of their own
    for i, alarm in enumerate(alarms):
        _fail(_case(suite, f"alarm {i + 1}", 0), "failure", "alarm", alarm, alarm)
    if not alarms:
        _case(suite, "there is no alarm", 0)


def _count(node: ET.Element, cases: list[ET.Element]) -> None:
    node.set("tests", str(len(cases)))
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        node.set(name, str(sum(case.find(tag) is not None for case in cases)))
    node.set("time", f"{sum(float(case.get('time', 0)) for case in cases):.3f}")
