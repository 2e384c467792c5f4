"""The sections behind the findings: targets, charts, properties, coverage, what was not reached, the plan, the run."""

from __future__ import annotations

import math
from collections import defaultdict

from campaign.model import Coverage, Line, Night, PlanItem, Property, Report, Target
from campaign.page import charts
from campaign.page.markup import Html, absent, breakable, element, joined, relative
from campaign.page.text import (
    bytes_text,
    change_text,
    clipped,
    counted,
    duration,
    earlier_median,
    one_line,
    percent,
    percent_text,
    plain,
    printable,
    short_commit,
    si,
)

LINES_SHOWN = 400  # of those never run; llvm-cov's pages have all
NIGHTS_SHOWN = 30  # rows of a target's table
SENTENCES_SHOWN = 200  # of what was not reached

_MARKS = {"ok": ("good", "✓"), "finding": ("bad", "✕"), "error": ("bad", "!"), "not run": ("doubt", "–")}


def section(anchor: str, title: str, *body: object, aside: str = "") -> Html:
    heading = element("h2", title, joined(" ", element("small", aside)) if aside else None)
    return element("section", heading, *body, id=anchor)


def result_chip(result: str) -> Html:
    """A word and a mark: nobody has to tell it by its colour."""
    level, mark = _MARKS.get(result, ("doubt", "?"))
    return element("span", element("span", mark, aria_hidden="true"), " ", result or "unknown", class_=f"chip {level}")


def bar(share: float, words: str = "") -> Html:
    """A share in percent as a bar; what is beyond 100 is drawn full, its number stands beside it."""
    share = share if math.isfinite(share) else 0
    fill = element("span", style=f"width:{min(max(share, 0), 100):.2f}%", class_="fill")
    return element("span", fill, class_="bar", aria_hidden="true", title=words or None)


def table(names: list[str], rows: list[Html], class_: str = "") -> Html:
    head = element("thead", element("tr", *(element("th", name, scope="col") for name in names)))
    return element("div", element("table", head, element("tbody", *rows), class_=class_), class_="scroll", tabindex="0")


def row(names: list[str], cells: list[object], class_: str = "") -> Html:
    """The names stand before the cells where the screen is too narrow for columns."""
    first = element("th", cells[0], scope="row", data_label=names[0])
    rest = [element("td", cell, data_label=name) for name, cell in zip(names[1:], cells[1:])]
    return element("tr", first, *rest, class_=class_ or None)


# --- targets


_TARGET_COLUMNS = ["target", "result", "core time", "inputs", "inputs/s", "features", "edges", "corpus, files"]


def targets_section(report: Report) -> Html:
    if not report.targets:
        return section("targets", "Targets", absent("No target was run."))
    rows = [_target_row(i + 1, target) for i, target in enumerate(report.targets)]
    key = "Lines: over this campaign. Small numbers: against the median of the earlier campaigns."
    return section("targets", "Targets", table(_TARGET_COLUMNS, rows, "cards"), element("p", key, class_="note"))


def _target_row(number: int, target: Target) -> Html:
    name = joined(element("a", target.name, href=f"#target-{number}"), element("span", target.claim, class_="sub"))
    error, _ = clipped(one_line(target.error), 300)
    result = joined(result_chip(target.result), element("span", error, class_="sub") if error else None)
    cells: list[object] = [
        name,
        result,
        duration(target.core_s),
        si(target.executions),
        _measure(target, "rate", "orange"),
        _measure(target, "features", "blue"),
        plain(target.edges),
        _measure(target, "corpus", "green"),
    ]
    return row(_TARGET_COLUMNS, cells)


def _measure(target: Target, field: str, colour: str) -> Html:
    value = target.corpus_after if field == "corpus" else getattr(target, field)
    series = [getattr(sample, field) for sample in target.samples]
    words = f"{field} of {target.name}, from {plain(series[0])} to {plain(series[-1])}" if series else ""
    if field == "corpus":
        change = _growth(target)
    else:
        change = change_text(value, earlier_median(target.nights, field))
    shown = plain(value) if value < 10_000 else si(value)
    number = element("span", shown, element("small", change) if change else None, class_="number")
    return element("span", number, charts.sparkline(series, colour, words), class_="measure")


def _growth(target: Target) -> str:
    return f"{target.corpus_after - target.corpus_before:+,d}".replace("-", "\u2212")


# --- charts


def charts_section(report: Report) -> Html:
    if not report.targets:
        return section("charts", "Over time", absent("No target was run, so there is nothing to draw."))
    telling = [target.result in ("finding", "error") for target in report.targets]
    shown = telling if any(telling) else [i == 0 for i in range(len(telling))]
    blocks = [_target_charts(i + 1, target, shown[i]) for i, target in enumerate(report.targets)]
    button = element("button", "open all", type="button", class_="open-all", hidden=True)
    heading = element("h2", "Over time ", element("small", "this campaign, and against earlier ones"), " ", button)
    return element("section", heading, *blocks, id="charts")


def _target_charts(number: int, target: Target, is_open: bool) -> Html:
    words = f"{si(target.features)} features, {si(target.rate)} inputs/s, {counted(target.corpus_after, 'corpus file')}"
    result = None if target.result == "ok" else result_chip(target.result)
    summary = element(
        "summary", element("span", target.name, class_="name"), element("span", words, class_="sub"), result
    )
    claim = element("p", target.claim, f" ({target.invariants})" if target.invariants else "", class_="claim")
    body = [claim, _campaign_charts(target), _night_charts(target), _nights_table(target.nights)]
    return element("details", summary, element("div", *body, id=f"target-{number}"), class_="target", open=is_open)


def _figure(title: str, caption: str, chart: Html) -> Html:
    return element("figure", element("figcaption", element("strong", title), " ", element("span", caption)), chart)


def _campaign_charts(target: Target) -> Html:
    if not target.samples:
        return absent(f"No sample was taken in this campaign: the result is “{target.result or 'unknown'}”.")
    corpus = f"{_growth(target)} files to {plain(target.corpus_after)}, {bytes_text(target.corpus_bytes)}"
    edges = f"{plain(target.features)}, and {counted(target.edges, 'edge')}"
    rate = f"{si(target.executions)} inputs in {duration(target.core_s)}"
    figures = [
        _figure("Coverage", edges, charts.over_time(target.samples, "features", "features", "blue")),
        _figure("Speed", rate, charts.over_time(target.samples, "rate", "inputs/s", "orange", from_zero=True)),
        _figure("Corpus", corpus, charts.over_time(target.samples, "corpus", "files", "green")),
    ]
    return joined(element("h4", "This campaign"), element("div", *figures, class_="charts"))


def _night_charts(target: Target) -> Html:
    if not target.nights:
        return absent("No campaign is on record to compare with.")
    if len(target.nights) == 1:
        return absent("No earlier campaign is on record: this is the first.")
    figures = []
    labels = {
        "features": ("Coverage", "features", "blue"),
        "rate": ("Speed", "inputs/s", "orange"),
        "corpus": ("Corpus", "files", "green"),
    }
    for field, (title, label, colour) in labels.items():
        median = earlier_median(target.nights, field)
        change = change_text(getattr(target.nights[-1], field), median)
        caption = f"{change} against {si(median)}" if change and median is not None else ""
        figures.append(_figure(title, caption, charts.over_nights(target.nights, field, label, colour, median)))
    note = f"{counted(len(target.nights) - 1, 'campaign')} before this one; dashed: their median"
    return joined(
        element("h4", "Against earlier campaigns ", element("small", note)), element("div", *figures, class_="charts")
    )


def _nights_table(nights: list[Night]) -> Html:
    if len(nights) < 2:
        return Html("")
    names = ["campaign", "commit", "core time", "inputs/s", "features", "edges", "corpus, files", "findings"]
    rows = [
        row(
            names,
            [
                night.campaign,
                element("code", short_commit(night.commit)),
                duration(night.core_s),
                plain(night.rate),
                plain(night.features),
                plain(night.edges),
                plain(night.corpus),
                plain(night.findings),
            ],
        )
        for night in reversed(nights[-NIGHTS_SHOWN:])
    ]
    title = "The numbers" if len(nights) <= NIGHTS_SHOWN else f"The numbers of the last {NIGHTS_SHOWN} campaigns"
    return element("details", element("summary", title), table(names, rows, "numbers"), class_="text")


# --- properties


def properties_section(report: Report) -> Html:
    title, aside = "Properties", "and the shares of their cases' classes"
    if not report.properties:
        return section("properties", title, absent("No property was run in this campaign."))
    cards = [_property(p) for p in report.properties]
    return section("properties", title, element("div", *cards, class_="properties"), aside=aside)


def _property(tested: Property) -> Html:
    heading = element("h3", element("span", breakable(tested.name), class_="name"), " ", result_chip(tested.result))
    facts = f"{tested.suite}, {counted(tested.cases, 'case')} in {duration(tested.seconds)}, seed {tested.seed}"
    shares = [
        element(
            "li",
            element("span", share.label, class_="label"),
            bar(share.percent),
            element("span", percent_text(share.percent), class_="percent"),
        )
        for share in tested.shares
    ]
    body = element("ul", *shares, class_="shares") if shares else absent("It does not class its cases.")
    return element("article", heading, element("p", facts, class_="sub"), body, class_="property")


# --- coverage


def coverage_section(report: Report) -> Html:
    coverage = report.coverage
    if coverage is None or not coverage.rooms:
        why = "Line coverage was not measured in this campaign." if coverage is None else "No room was measured."
        return section("coverage", "Lines run", absent(why))
    lines, covered = sum(room.lines for room in coverage.rooms), sum(room.covered for room in coverage.rooms)
    if lines == 0:
        return section("coverage", "Lines run", absent("The rooms that were measured have no lines."))
    share = percent_text(percent(covered, lines))
    total = f"The kept corpus runs {share} of the library's lines, {plain(covered)} of {plain(lines)}."
    link = joined(" ", element("a", "Every line, in llvm-cov's pages", href=relative(coverage.link)), ".")
    rooms = [_room(room.name, room.covered, room.lines, room.link) for room in coverage.rooms]
    return section(
        "coverage",
        "Lines run",
        element("p", total, link if coverage.link else None),
        element("ul", *rooms, class_="shares rooms"),
        _lines_never_run(coverage),
    )


def _room(name: str, covered: int, lines: int, link: str) -> Html:
    label = element("a", name, href=relative(link)) if link else name
    share = percent(covered, lines)
    words = joined(
        percent_text(share) if lines else "no lines", element("small", f"{plain(covered)} of {plain(lines)}")
    )
    return element("li", element("span", label, class_="label"), bar(share), element("span", words, class_="percent"))


def _lines_never_run(coverage: Coverage) -> Html:
    if not coverage.not_covered:
        return element("p", "No line of these rooms is listed as never run.", class_="note")
    by_file: dict[str, list[Line]] = defaultdict(list)
    for line in coverage.not_covered[:LINES_SHOWN]:
        by_file[line.file].append(line)
    parts: list[Html] = []
    for file, lines in by_file.items():
        text = "\n".join(f"{line.line:>5}  {printable(line.text).rstrip()[:160]}" for line in lines)
        parts += [element("h4", file), element("pre", text, tabindex="0")]
    more = len(coverage.not_covered) - LINES_SHOWN
    if more > 0:
        parts.append(element("p", f"{counted(more, 'line')} more, in llvm-cov's pages.", class_="note"))
    title = f"{counted(len(coverage.not_covered), 'line')} never run"
    return element("details", element("summary", title), *parts, class_="text")


# --- what was not reached, the plan, the run


def not_reached_section(report: Report) -> Html:
    if not report.not_reached:
        return section("not-reached", "Not reached", absent("Nothing that the campaign knows of."))
    items = [element("li", clipped(printable(sentence), 500)[0]) for sentence in report.not_reached[:SENTENCES_SHOWN]]
    more = len(report.not_reached) - SENTENCES_SHOWN
    note = element("p", f"{plain(more)} more, in report.json.", class_="note") if more > 0 else None
    return section("not-reached", "Not reached", element("ul", *items, class_="sentences"), note)


def plan_section(report: Report) -> Html:
    if not report.plan:
        return section("plan", "Plan", absent("The campaign had no plan on record."))
    phases: dict[str, list[PlanItem]] = defaultdict(list)
    for item in report.plan:
        phases[item.phase].append(item)
    lines = [_phase(name, items) for name, items in phases.items()]
    names = ["phase", "target", "variant", "planned", "spent", "note"]
    rows = [
        row(
            names,
            [
                item.phase,
                item.target or "all",
                item.variant or "–",
                duration(item.core_s),
                duration(item.spent_s),
                item.note,
            ],
        )
        for item in report.plan
    ]
    every = element(
        "details", element("summary", f"All {counted(len(rows), 'item')}"), table(names, rows, "words"), class_="text"
    )
    return section(
        "plan", "Plan", element("ul", *lines, class_="shares plan"), every, aside="core-time spent of planned"
    )


def _phase(name: str, items: list[PlanItem]) -> Html:
    planned, spent = sum(item.core_s for item in items), sum(item.spent_s for item in items)
    words = joined(f"{duration(spent)} of {duration(planned)}")
    share = percent(spent, planned)
    return element("li", element("span", name, class_="label"), bar(share), element("span", words, class_="percent"))


def run_section(report: Report) -> Html:
    commit = joined(element("code", report.commit or "unknown"), f" {report.subject}" if report.subject else "")
    rows: list[tuple[str, object]] = [
        ("command", element("code", report.command) if report.command else "not on record"),
        ("commit", commit),
        ("seed", element("code", str(report.seed))),
        ("host", report.host or "not on record"),
        ("cores", plain(report.jobs)),
        ("shard", report.shard or "not on record"),
        ("began", report.began or "not on record"),
        ("ended", report.ended or "not on record"),
        ("state", report.state),
        ("cut off and resumed", counted(report.resumed, "time") if report.resumed else "never"),
        ("planted faults", ", ".join(report.planted) or "none"),
    ]
    cells = [joined(element("dt", name), element("dd", value)) for name, value in rows]
    beside = [("junit.xml", "JUnit"), ("findings.sarif", "SARIF"), ("summary.md", "Markdown"), ("report.json", "JSON")]
    links = [
        joined(", " if i else "", element("a", name, href=relative(file))) for i, (file, name) in enumerate(beside)
    ]
    note = element("p", "The same as ", *links, ".", class_="note")
    return section("run", "How it was run", element("dl", *cells, class_="facts"), note)
