"""The page: one HTML file that asks nobody for anything, the verdict and what failed first."""

from __future__ import annotations

import urllib.parse
from pathlib import Path

from campaign.model import Report
from campaign.page.findings import findings_section
from campaign.page.markup import Html, element, joined
from campaign.page.sections import (
    charts_section,
    coverage_section,
    not_reached_section,
    plan_section,
    properties_section,
    run_section,
    targets_section,
)
from campaign.page.text import (
    canaries,
    clipped,
    counted,
    doubts,
    duration,
    elapsed,
    moment,
    percent,
    percent_text,
    plain,
    printable,
    short_commit,
    si,
    verdict,
)

ALARMS_SHOWN = 50

# The page needs its own style and script, and pictures that are in it; nothing else, whatever its data say.
_POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'"
)
_MARKS = {"bad": "✕", "doubt": "!", "good": "✓"}
_ICON_COLOURS = {"bad": "#d55e00", "doubt": "#e69f00", "good": "#009e73"}
_SECTIONS = [
    ("findings", "Findings"),
    ("targets", "Targets"),
    ("charts", "Over time"),
    ("properties", "Properties"),
    ("coverage", "Lines run"),
    ("not-reached", "Not reached"),
    ("plan", "Plan"),
    ("run", "How it was run"),
]


def html_of(report: Report) -> str:
    here = Path(__file__).parent
    style, script = (Html((here / name).read_text(encoding="utf-8")) for name in ("page.css", "page.js"))
    head = [
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=Html(_POLICY)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{verdict(report).headline} · attnfuzz {report.campaign}"),
        joined(Html('<link rel="icon" href="'), _icon(verdict(report).level), Html('">')),
        element("style", style),
    ]
    links = [element("a", name, href=f"#{anchor}") for anchor, name in _SECTIONS]
    body = [
        _header(report),
        element("main", _planted(report), _doubts(report), _tiles(report), element("nav", *links), *_body(report)),
        element("script", script),
    ]
    page = element("html", "\n", element("head", *head), "\n", element("body", *body), "\n", lang="en")
    return "<!doctype html>\n" + page + "\n"


def _body(report: Report) -> list[Html]:
    writers = [
        findings_section,
        targets_section,
        charts_section,
        properties_section,
        coverage_section,
        not_reached_section,
        plan_section,
        run_section,
    ]
    return [joined("\n", writer(report)) for writer in writers]


def _icon(level: str) -> str:
    svg = (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'>"
        f"<circle cx='8' cy='8' r='7' fill='{_ICON_COLOURS[level]}'/></svg>"
    )
    return "data:image/svg+xml," + urllib.parse.quote(svg)


def _header(report: Report) -> Html:
    told = verdict(report)
    mark = element("span", _MARKS[told.level], class_="mark", aria_hidden="true")
    commit = [element("code", short_commit(report.commit)), f" {report.subject}" if report.subject else ""]
    return element(
        "header",
        element(
            "div",
            element("p", "attnfuzz campaign ", element("code", report.campaign), class_="eyebrow"),
            element("h1", mark, element("span", told.headline)),
            element("p", *commit),
            element("p", when(report)),
            element("p", _canary_words(report)),
            class_="wide",
        ),
        class_=told.level,
    )


def when(report: Report) -> str:
    """The campaign's day, length, cores and state, in a line."""
    began = moment(report.began)
    took = elapsed(report.began, report.ended)
    asked = f"{report.minutes:g} min asked for"
    parts = [
        f"{began:%a %d %b %Y, %H:%M} UTC" if began else "no time on record",
        f"{duration(took)} ({asked})" if took is not None else asked,
        counted(report.jobs, "core"),
        f"shard {report.shard}" if report.shard not in ("", "0/1") else "",
        report.state,
        f"resumed {counted(report.resumed, 'time')}" if report.resumed else "",
    ]
    return " · ".join(part for part in parts if part)


def _canary_words(report: Report) -> str:
    found = canaries(report)
    if not found:
        return "Canary: not found."
    return f"Canary: found after {duration(min(finding.seconds_to_fail for finding in found))}, as it has to be."


def _planted(report: Report) -> Html | None:
    if not report.planted:
        return None
    words = f"{counted(len(report.planted), 'fault is', 'faults are')} planted: "
    rest = ". Findings are expected; this campaign says nothing about the library as it is."
    return element(
        "aside", element("strong", words), element("code", ", ".join(report.planted)), rest, class_="banner planted"
    )


def _doubts(report: Report) -> Html | None:
    sentences = doubts(report)
    if not sentences:
        return None
    items = [element("li", clipped(printable(sentence), 600)[0]) for sentence in sentences[:ALARMS_SHOWN]]
    more = len(sentences) - ALARMS_SHOWN
    if more > 0:
        items.append(element("li", f"{counted(more, 'more alarm')}, in report.json"))
    title = f"{counted(len(sentences), 'alarm')}: what makes this campaign doubtful"
    return element("section", element("h2", title), element("ul", *items), class_="banner alarms", id="alarms")


def _tiles(report: Report) -> Html:
    targets = report.targets
    ran = sum(target.result != "not run" for target in targets)
    core_s, inputs = sum(t.core_s for t in targets), sum(t.executions for t in targets)
    growth = sum(target.corpus_after - target.corpus_before for target in targets)
    files = sum(target.corpus_after for target in targets)
    rooms = report.coverage.rooms if report.coverage else []
    lines, covered = sum(room.lines for room in rooms), sum(room.covered for room in rooms)
    tiles = [
        ("inputs run", si(inputs), f"in {duration(core_s)} of core time"),
        ("targets run", f"{ran} of {len(targets)}" if targets else "none", _errors(report)),
        ("corpus", f"{growth:+,d}".replace("-", "\u2212") if targets else "–", f"files, now {plain(files)}"),
        (
            "lines run",
            percent_text(percent(covered, lines)) if lines else "–",
            f"{plain(covered)} of {plain(lines)}" if lines else "not measured",
        ),
        (
            "properties",
            plain(len(report.properties)) if report.properties else "none",
            f"{si(sum(p.cases for p in report.properties))} cases" if report.properties else "run",
        ),
    ]
    cells = [
        element("div", element("dt", name), element("dd", element("b", value), " ", element("span", more)))
        for name, value, more in tiles
    ]
    return element("dl", *cells, class_="tiles")


def _errors(report: Report) -> str:
    errors = sum(target.result == "error" for target in report.targets)
    return counted(errors, "error") if errors else "no error"
