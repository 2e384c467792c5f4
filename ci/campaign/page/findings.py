"""The findings of the page: fastest to fail first, each with what differs, how to repeat it, and the batch."""

from __future__ import annotations

import base64
import html
from dataclasses import dataclass

from campaign.model import Finding, Report
from campaign.page.markup import Html, absent, element, joined, relative
from campaign.page.text import (
    canaries,
    clipped,
    counted,
    duration,
    faults_in_order,
    key_of,
    one_line,
    plain,
    printable,
    repeats,
    run_again,
    verdict,
)

OPEN_AT_FIRST = 3  # a fault often shows as several findings; the fastest few say most
IN_FULL = 50  # findings with picture and texts; whoever has more has one fault, or reads the folder
LISTED = 500  # beyond those, one line each
FULL_TEXTS = 20  # findings that may use the whole length below; with more, each gets a smaller part

# Bytes of each text at most, so that the page opens on a phone. The folder has the whole.
LOG_BYTES, TABLE_BYTES, REGRESSION_BYTES, CASE_BYTES, DIFFERENCE_BYTES = 6000, 5000, 5000, 3000, 1500
PICTURE_BYTES, PICTURES_BYTES = 120_000, 650_000  # of one, and of all on the page before they become base64


@dataclass
class Budget:
    """What is left of the page's size, shared by its findings."""

    scale: float
    picture_bytes: int = PICTURES_BYTES

    def text(self, text: str, limit: int, keep_end: bool = False) -> tuple[str, int]:
        """A text cut so that its markup stays below the limit, and how many characters were left out."""
        text = printable(text).strip("\n")
        limit = max(200, int(limit * self.scale))
        written = len(html.escape(text).encode())
        if written <= limit:
            return text, 0
        return clipped(text, max(1, limit * len(text) // written), keep_end)


def findings_section(report: Report) -> Html:
    faults = faults_in_order(report)
    heading = element("h2", "Findings", " ", element("small", "fastest to fail first") if len(faults) > 1 else None)
    if not faults:
        doubtful = verdict(report).level != "good"
        words = "No finding, but see what makes this campaign doubtful, above." if doubtful else "No finding."
        body: list[Html] = [element("p", words, class_="none doubt" if doubtful else "none")]
    else:
        budget = Budget(min(1.0, FULL_TEXTS / len(faults)))
        body = [_overview(faults)] if len(faults) > 1 else []
        body += [_finding(i + 1, finding, budget) for i, finding in enumerate(faults[:IN_FULL])]
        body += _rest(faults[IN_FULL:])
    return element("section", heading, *body, *map(_canary, canaries(report)), id="findings")


def _overview(faults: list[Finding]) -> Html:
    """All findings on one screen, before each takes one of its own."""
    rows = [
        element(
            "li",
            element("a", finding.id, href=f"#finding-{i + 1}", class_="id"),
            element("span", clipped(one_line(finding.claim), 120)[0], class_="claim"),
            _chips(finding, targets=False),
        )
        for i, finding in enumerate(faults[:IN_FULL])
    ]
    return element("ol", *rows, class_="overview")


def _finding(number: int, finding: Finding, budget: Budget) -> Html:
    body = element(
        "div",
        _facts(finding, budget),
        _command(finding),
        _picture(finding, budget),
        _text_block(
            "The reduced batch" if finding.requests_reduced else "The batch",
            finding.table,
            TABLE_BYTES,
            finding,
            budget,
            is_open=True,
            missing="There is no table of this batch.",
        ),
        _frames(finding),
        _text_block("Regression, a draft to paste", finding.regression, REGRESSION_BYTES, finding, budget),
        _text_block("The reduced case", finding.reduced, CASE_BYTES, finding, budget),
        _text_block("The case as it was found", finding.unshrunk, CASE_BYTES, finding, budget),
        _text_block("The end of the log", finding.log, LOG_BYTES, finding, budget, keep_end=True),
        _folder(finding),
        class_="body",
    )
    is_open = number <= OPEN_AT_FIRST
    details = element("details", _summary(finding), body, open=is_open)
    return element("article", details, class_="finding", id=f"finding-{number}")


def _summary(finding: Finding) -> Html:
    claim, left_out = clipped(printable(finding.claim), 400)
    return element(
        "summary",
        element("span", finding.id, class_="id"),
        element("span", claim + (" ..." if left_out else ""), class_="claim"),
        _chips(finding, targets=True),
    )


def _chips(finding: Finding, targets: bool) -> Html:
    named = finding.targets[:3] if targets else []
    more = len(finding.targets) - len(named) if targets else 0
    chips = [
        element("span", "new", class_="chip bad") if finding.is_new else element("span", "seen before", class_="chip"),
        element("span", f"flaky, {repeats(finding)}", class_="chip doubt") if finding.is_flaky else None,
        element("span", f"after {duration(finding.seconds_to_fail)}", class_="chip"),
        *(element("span", target, class_="chip mono") for target in named),
        element("span", f"and {more} more", class_="chip") if more else None,
    ]
    return element("span", *chips, class_="chips")


def _facts(finding: Finding, budget: Budget) -> Html:
    difference, left_out = budget.text(finding.difference, DIFFERENCE_BYTES)
    where, _ = clipped(printable(finding.where), 400)
    rows: list[tuple[str, object]] = [
        ("differs", joined(element("strong", difference), _left_out(left_out, finding)) if difference else ""),
        ("where", where),
        ("found by", _found_by(finding)),
        ("again", run_again(finding)),
        ("shrunk", _shrunk(finding)),
    ]
    cells = [joined(element("dt", name), element("dd", value)) for name, value in rows if value]
    return element("dl", *cells, class_="facts")


def _found_by(finding: Finding) -> str:
    targets = ", ".join(finding.targets) or "no target named"
    variants = f" ({', '.join(finding.variants)})" if finding.variants else ""
    return f"{targets}{variants}, {counted(finding.count, 'input')}, first after {duration(finding.seconds_to_fail)}"


def _shrunk(finding: Finding) -> str:
    if finding.requests_reduced:
        words = f"{plain(finding.requests_unshrunk)} to {counted(finding.requests_reduced, 'request')}"
        # The sentence mostly has these numbers already.
        if str(finding.requests_unshrunk) in finding.shrinking:
            return finding.shrinking
        return f"{words}. {finding.shrinking}" if finding.shrinking else words
    return finding.shrinking or "not reduced"


def _command(finding: Finding) -> Html:
    if not finding.command:
        return absent("There is no command that repeats it.")
    # Hidden until the script that it needs has run.
    button = element("button", "copy", type="button", class_="copy", hidden=True)
    label = element("span", "repeat", class_="label")
    return element("div", label, element("code", finding.command), button, class_="command")


def _picture(finding: Finding, budget: Budget) -> Html:
    if not finding.svg:
        return absent("There is no picture of this finding.")
    data = printable(finding.svg).encode()
    if len(data) > min(PICTURE_BYTES, budget.picture_bytes):
        return element("p", "The picture is left out, to keep this page small.", _where_whole(finding), class_="note")
    budget.picture_bytes -= len(data)
    # As an image a picture cannot run scripts, whatever it holds.
    source = "data:image/svg+xml;base64," + base64.b64encode(data).decode()
    words = f"{key_of(finding)}: the batch and its metadata, drawn to scale; the table below has its numbers"
    return element("div", element("img", src=source, alt=words), class_="picture", tabindex="0")


def _text_block(
    title: str,
    text: str,
    limit: int,
    finding: Finding,
    budget: Budget,
    is_open: bool = False,
    keep_end: bool = False,
    missing: str = "",
) -> Html:
    if not text.strip():
        return absent(missing) if missing else Html("")
    shown, left_out = budget.text(text, limit, keep_end)
    note = _left_out(left_out, finding)
    block = element("pre", shown, tabindex="0")
    parts = [note, block] if keep_end else [block, note]
    return element("details", element("summary", title), *parts, class_="text", open=is_open)


def _left_out(characters: int, finding: Finding) -> Html | None:
    if characters == 0:
        return None
    words = f"{counted(characters, 'character')} left out here."
    return element("span", " ", words, _where_whole(finding), class_="note")


def _where_whole(finding: Finding) -> Html | None:
    if not finding.folder:
        return None
    link = element("a", finding.folder, href=relative(finding.folder + "/"))
    return joined(" The whole is in ", link, ".")


def _frames(finding: Finding) -> Html:
    if not finding.frames:
        return Html("")
    frames = [element("li", element("code", frame)) for frame in finding.frames]
    return joined(element("h4", "Where in the library"), element("ol", *frames, class_="frames"))


def _folder(finding: Finding) -> Html:
    if not finding.folder:
        return Html("")
    link = element("a", finding.folder, href=relative(finding.folder + "/"))
    return element("p", "Everything about it: ", link, class_="note")


def _rest(faults: list[Finding]) -> list[Html]:
    """One line each for what would make the page too large."""
    if not faults:
        return []
    rows = [
        element(
            "tr",
            element("td", element("code", key_of(finding))),
            element("td", ", ".join(finding.targets)),
            element("td", duration(finding.seconds_to_fail)),
            element("td", element("code", finding.command)),
        )
        for finding in faults[:LISTED]
    ]
    head = element("tr", *(element("th", name) for name in ("finding", "target", "after", "repeat")))
    more = len(faults) - len(rows)
    note = f"{counted(more, 'finding')} more in the folder findings/." if more > 0 else ""
    table = element("table", element("thead", head), element("tbody", *rows))
    return [
        element("h3", f"{counted(len(faults), 'more finding')}, a line each"),
        element("div", table, class_="scroll", tabindex="0"),
        element("p", note, class_="note"),
    ]


def _canary(finding: Finding) -> Html:
    """Small, but there: a campaign that misses it has not looked."""
    found = f"found after {duration(finding.seconds_to_fail)}, as it has to be"
    line = element("summary", element("strong", "Canary"), f": {found}")
    targets = ", ".join(finding.targets) or "no target named"
    facts = f"A fault planted on purpose: {finding.id}, {finding.claim}; {targets}."
    text, _ = clipped(printable(finding.difference), 300)
    body = [element("p", facts), element("p", text) if text else None, _command(finding) if finding.command else None]
    return element("details", line, *body, class_="canary")
