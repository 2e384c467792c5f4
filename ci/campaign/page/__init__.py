"""A campaign's report as files: index.html for people, junit.xml, findings.sarif and summary.md for programs."""

from __future__ import annotations

from pathlib import Path

from campaign.files import write_whole
from campaign.model import Report
from campaign.page.html import html_of
from campaign.page.junit import junit_of
from campaign.page.markdown import markdown_of
from campaign.page.sarif import sarif_of


def write_page(report: Report, out: Path) -> None:
    """Writes the four files into a folder, each whole or not at all: a reader never sees half of one."""
    write_whole(out / "index.html", html_of(report))
    write_whole(out / "junit.xml", junit_of(report))
    write_whole(out / "findings.sarif", sarif_of(report))
    write_whole(out / "summary.md", markdown_of(report))
