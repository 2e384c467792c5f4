#!/usr/bin/env python3
"""The page and what stands beside it: well-formed, safe from its data, readable in a browser.

Run it alone, or with `python3 -m unittest discover -s ci/campaign/tests -p '*_test.py'`.
"""

from __future__ import annotations

import html
import html.parser
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
import urllib.parse
import xml.etree.ElementTree as ET
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parent)]

import sample_reports as samples  # noqa: E402
from campaign.model import Finding, Report, report_of, to_json  # noqa: E402
from campaign.page import charts, text, write_page  # noqa: E402
from campaign.page.html import html_of  # noqa: E402
from campaign.page.junit import junit_of  # noqa: E402
from campaign.page.markdown import MOST_BYTES, fenced, inline, markdown_of  # noqa: E402
from campaign.page.sarif import sarif_of  # noqa: E402

HOSTILE = [
    "</script><script>alert(1)</script>",
    "\"'<>&",
    "a\x00b\x08",
    "\x1b[31mred\x1b[0m \x1b]0;title\x07",
    "lone \ud800 surrogate, \ufffe \uffff",
    "]]><![CDATA[ <!-- --> -->",
    "javascript:alert(1)",
    "//elsewhere.example/x",
    "\u202eright to left\u2066",
    "| `code` ``` | <b> [a](b) @name ![i](x) https://elsewhere.example",
    "x" * 5000,
]

BROWSER = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)


def every_sample() -> dict[str, Report]:
    made = {
        "findings": samples.with_findings(),
        "clean": samples.clean(),
        "doubtful": samples.doubtful(),
        "degenerate": samples.degenerate(),
        "sparse": samples.sparse(),
        "crowded": samples.crowded(),
    }
    made.update({f"hostile {i}": samples.hostile(words) for i, words in enumerate(HOSTILE)})
    return made


def parsed(markup: str) -> Parsed:
    page = Parsed()
    page.feed(markup)
    page.close()
    return page


class Parsed(html.parser.HTMLParser):
    """A page's elements, and what is wrong with their nesting."""

    VOID = {"br", "hr", "img", "link", "meta", "wbr"}

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if len({key for key, _ in attrs}) != len(attrs):
            self.wrong.append(f"<{tag}> names an attribute twice")
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}> closes something else")

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("script", "style"):
            self.words.append(data)

    def all(self, attribute: str) -> list[str]:
        return [attributes[attribute] or "" for _, attributes in self.elements if attribute in attributes]

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)


class Markup(unittest.TestCase):
    def test_every_page_is_well_formed_and_asks_nobody_for_anything(self) -> None:
        for name, report in every_sample().items():
            with self.subTest(name):
                page = parsed(html_of(report))
                self.assertEqual(page.wrong, [])
                self.assertEqual(page.open, [])
                ids = page.all("id")
                self.assertEqual(len(ids), len(set(ids)))
                for link in page.all("href"):
                    self.assertRegex(link, r"^(#|data:|\./(?!/))")
                    self.assertTrue(not link.startswith("#") or link[1:] in ids, link)
                for source in page.all("src"):
                    self.assertTrue(source.startswith("data:image/svg+xml;base64,"), source[:60])
                self.assertIn("default-src 'none'", page.all("content")[0])

    def test_no_text_becomes_markup(self) -> None:
        plain = parsed(html_of(samples.hostile("plain")))
        for words in HOSTILE:
            with self.subTest(words[:40]):
                page = parsed(html_of(samples.hostile(words)))
                for tag in ("script", "style", "b", "code", "details"):
                    self.assertEqual(page.count(tag), plain.count(tag), tag)
                self.assertFalse([key for _, attributes in page.elements for key in attributes if key.startswith("on")])
                shown = "".join(page.words)
                self.assertIn(text.printable(words)[:300], shown)
                self.assertIsNone(re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e]", shown))

    def test_what_cannot_be_seen_is_shown_and_terminal_colours_are_dropped(self) -> None:
        self.assertEqual(
            text.printable("\x1b[1;31ma\x1b[0m\r\n\x00\x1b\tb\ud800\u202e"), "a\n\u2400\u241b\tb\ufffd<U+202E>"
        )

    def test_the_fastest_to_fail_stands_first_and_every_command_is_there(self) -> None:
        page = html_of(samples.with_findings())
        places = [page.index(f'<span class="id">{name}<') for name in ("C1", "heap-buffer-overflow", "timeout")]
        self.assertEqual(places, sorted(places))
        words = "".join(parsed(page).words)
        for finding in samples.with_findings().findings:
            self.assertIn(finding.command, words)
        self.assertIn("3 findings: 2 new, 1 flaky", words)
        self.assertIn("flaky, 7 of 10", words)
        self.assertIn("Canary: found after 0.4 s, as it has to be", words)
        self.assertLess(page.index('id="findings"'), page.index('id="targets"'))

    def test_the_picture_is_an_image_and_a_finding_without_one_says_so(self) -> None:
        page = parsed(html_of(samples.with_findings()))
        self.assertEqual(page.count("img"), 2)
        self.assertIn("There is no picture of this finding.", page.words)
        self.assertIn("There is no table of this batch.", page.words)

    def test_a_clean_campaign_says_so_and_a_doubtful_one_does_not(self) -> None:
        self.assertEqual(text.verdict(samples.clean()), text.Verdict("good", "No finding"))
        doubtful = samples.doubtful()
        self.assertEqual(text.verdict(doubtful), text.Verdict("doubt", "No finding, but 4 reasons to doubt it"))
        words = "".join(parsed(html_of(doubtful)).words)
        for expected in (
            *doubtful.alarms,
            "chunk_starts_late",
            "Canary: not found.",
            "1 fault is planted",
            "fuzz_device_sequence ended with an error: exit code 77",
        ):
            self.assertIn(expected, words)
        unfinished = samples.clean()
        unfinished.state = "stopped"
        self.assertEqual(text.verdict(unfinished).level, "doubt")

    def test_what_is_absent_is_said(self) -> None:
        words = "".join(parsed(html_of(samples.degenerate())).words)
        for expected in (
            "No target was run",
            "Line coverage was not measured",
            "No property was run",
            "no plan on record",
        ):
            self.assertIn(expected, words)
        words = "".join(parsed(html_of(samples.sparse())).words)
        for expected in (
            "No sample was taken",
            "this is the first",
            "no command that repeats it",
            "does not class its cases",
        ):
            self.assertIn(expected, words)

    def test_many_findings_stay_below_two_megabytes_and_say_what_is_left_out(self) -> None:
        for number in (50, 400):
            page = html_of(samples.crowded(number))
            self.assertLess(len(page.encode()), 2_000_000)
            self.assertIn("characters left out here. The whole is in", page)
            self.assertIn("./findings/C1-1a2b3c4d/", page)
        self.assertIn("350 more findings, a line each", page)
        self.assertIn("4,600 lines more, in llvm-cov's pages", html.unescape(page))

    def test_a_report_read_back_from_its_json_makes_the_same_page(self) -> None:
        report = samples.with_findings()
        self.assertEqual(html_of(report_of(to_json(report))), html_of(report))


class Files(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = Path(folder.name) / "page"

    def test_four_files_and_nothing_else(self) -> None:
        for _ in range(2):
            write_page(samples.with_findings(), self.out)
            names = sorted(file.name for file in self.out.iterdir())
            self.assertEqual(names, ["findings.sarif", "index.html", "junit.xml", "summary.md"])

    def test_a_write_that_fails_leaves_the_old_file_whole_and_nothing_beside_it(self) -> None:
        write_page(samples.clean(), self.out)
        before = (self.out / "index.html").read_bytes()
        with unittest.mock.patch("os.replace", side_effect=OSError("disk full")), self.assertRaises(OSError):
            write_page(samples.with_findings(), self.out)
        self.assertEqual((self.out / "index.html").read_bytes(), before)
        self.assertEqual(len(os.listdir(self.out)), 4)

    def test_any_text_can_be_written(self) -> None:
        for words in HOSTILE:
            write_page(samples.hostile(words), self.out)
            for file in self.out.iterdir():
                file.read_text(encoding="utf-8")


class JUnit(unittest.TestCase):
    def test_it_is_xml_whatever_the_data_hold_and_its_counts_are_right(self) -> None:
        for name, report in every_sample().items():
            with self.subTest(name):
                root = ET.fromstring(junit_of(report).encode())
                self.assertEqual(root.tag, "testsuites")
                for node in [root, *root]:
                    cases = list(node.iter("testcase"))
                    self.assertEqual(int(node.attrib["tests"]), len(cases))
                    self.assertEqual(int(node.attrib["failures"]), sum(c.find("failure") is not None for c in cases))
                    self.assertEqual(int(node.attrib["errors"]), sum(c.find("error") is not None for c in cases))
                    self.assertTrue(all(len(case.findall("failure")) < 2 for case in cases))

    def test_a_failure_holds_id_claim_difference_and_command(self) -> None:
        root = ET.fromstring(junit_of(samples.with_findings()))
        failures = {
            case.get("name"): case.findtext("failure")
            for case in root.iter("testcase")
            if case.find("failure") is not None
        }
        self.assertEqual(set(failures), {"fuzz_metadata", "fuzz_sequence", "fuzz_device_faults"})
        for expected in (
            "C1-1a2b3c4d",
            "every context token is gathered exactly once",
            "starts at 8190",
            "attnfuzz check findings/C1-1a2b3c4d/reduced.batch",
            "heap-buffer-overflow-77e0d1c2",
        ):
            self.assertIn(expected, failures["fuzz_metadata"] or "")

    def test_no_finding_is_lost_whoever_found_it(self) -> None:
        report = samples.clean()
        report.findings += [
            Finding("race", "1", "race", "no data race", targets=["device_test"], command="repeat race"),
            Finding("property", "2", "property", "it holds", targets=["property_test"], command="repeat it"),
        ]
        for result in ("ok", "finding"):
            report.properties[0].result = result
            written = junit_of(report)
            self.assertEqual((written.count("repeat race"), written.count("repeat it")), (1, 1))

    def test_a_clean_campaign_passes_and_a_missing_canary_fails(self) -> None:
        root = ET.fromstring(junit_of(samples.clean()))
        self.assertEqual((root.get("failures"), root.get("errors")), ("0", "0"))
        report = samples.clean()
        report.findings = []
        failed = [case.get("name") for case in ET.fromstring(junit_of(report)).iter("testcase") if len(case)]
        self.assertEqual(failed, ["the canary is found"])

    def test_alarms_errors_and_targets_not_run_are_told_apart(self) -> None:
        root = ET.fromstring(junit_of(samples.doubtful()))
        tags = {case.get("name"): [child.tag for child in case] for case in root.iter("testcase") if len(case)}
        expected = {
            "the canary is found": ["failure"],
            "alarm 1": ["failure"],
            "fuzz_device_sequence": ["error"],
            "fuzz_batchtext": ["skipped"],
        }
        self.assertEqual(tags, expected)


class Sarif(unittest.TestCase):
    def run_of(self, report: Report) -> dict:
        log = json.loads(sarif_of(report).encode())
        self.assertEqual(log["version"], "2.1.0")
        self.assertEqual(len(log["runs"]), 1)
        return log["runs"][0]

    def test_required_fields_whatever_the_data_hold(self) -> None:
        for name, report in every_sample().items():
            with self.subTest(name):
                run = self.run_of(report)
                rules = run["tool"]["driver"]["rules"]
                self.assertEqual(len({rule["id"] for rule in rules}), len(rules))
                self.assertEqual(len(run["results"]), len(report.faults))
                for result in run["results"]:
                    self.assertEqual(rules[result["ruleIndex"]]["id"], result["ruleId"])
                    self.assertTrue(result["message"]["text"].strip())
                    self.assertTrue(result["partialFingerprints"]["attnfuzzFinding/v1"])
                    place = result["locations"][0]["physicalLocation"]
                    uri = urllib.parse.urlsplit(place["artifactLocation"]["uri"])
                    self.assertEqual((uri.scheme, uri.netloc, uri.path[:1] == "/"), ("", "", False))
                    self.assertGreaterEqual(place["region"]["startLine"], 1)

    def test_frames_are_places_and_the_target_is_one_where_there_are_none(self) -> None:
        results = {result["ruleId"]: result for result in self.run_of(samples.with_findings())["results"]}
        place = results["heap-buffer-overflow"]["locations"][0]["physicalLocation"]
        self.assertEqual(place["artifactLocation"]["uri"], "src/attn/chunked_context.cpp")
        self.assertEqual(place["region"], {"startLine": 118, "startColumn": 9})
        self.assertEqual(len(results["heap-buffer-overflow"]["relatedLocations"]), 2)
        place = results["C1"]["locations"][0]["physicalLocation"]
        self.assertEqual(place["artifactLocation"]["uri"], "fuzz/fuzz_metadata.cpp")
        self.assertIn("attnfuzz check findings/C1-1a2b3c4d/reduced.batch", results["C1"]["message"]["text"])
        report = samples.with_findings()
        report.findings[1].frames = ['f /src/attn/a"b%.hpp:7']
        place = self.run_of(report)["results"][0]["locations"][0]["physicalLocation"]
        self.assertEqual(place["artifactLocation"]["uri"], "src/attn/a%22b%25.hpp")
        self.assertEqual((results["C1"]["level"], results["timeout"]["level"]), ("error", "warning"))

    def test_the_canary_is_no_result_and_doubts_are_notes(self) -> None:
        run = self.run_of(samples.clean())
        self.assertEqual(run["results"], [])
        self.assertTrue(run["invocations"][0]["executionSuccessful"])
        run = self.run_of(samples.doubtful())
        self.assertFalse(run["invocations"][0]["executionSuccessful"])
        self.assertEqual(len(run["invocations"][0]["toolExecutionNotifications"]), 4)


class Markdown(unittest.TestCase):
    def test_it_stays_below_the_limit_and_its_tables_keep_their_columns(self) -> None:
        for name, report in every_sample().items():
            with self.subTest(name):
                written = markdown_of(report)
                self.assertLess(len(written.encode()), MOST_BYTES)
                columns = 0
                for line in written.splitlines():
                    bars = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
                    self.assertTrue(columns == 0 or bars in (0, columns), line[:200])
                    columns = bars

    def test_verdict_commands_and_what_does_not_fit(self) -> None:
        written = markdown_of(samples.with_findings())
        self.assertTrue(written.startswith("## ❌ attnfuzz: 3 findings: 2 new, 1 flaky"))
        for finding in samples.with_findings().faults:
            self.assertIn(f"```\n{finding.command}\n```", written)
        self.assertLess(written.index("C1-1a2b3c4d"), written.index("timeout-0badcafe"))
        self.assertIn("✅ attnfuzz: No finding", markdown_of(samples.clean()))
        self.assertIn("more findings, in index.html", markdown_of(samples.crowded(400)))

    def test_data_cannot_leave_their_cell_or_their_block(self) -> None:
        self.assertEqual(inline("a|b`c`\n<i>"), r"a\|b\`c\`" + " &lt;i&gt;")
        self.assertEqual(fenced("a\n````\nb"), ["`````", "a\n````\nb", "`````"])


class Numbers(unittest.TestCase):
    def test_numbers_read_as_people_say_them(self) -> None:
        said = {
            0: "0",
            999: "999",
            999.6: "1k",
            1234: "1.23k",
            12_000: "12k",
            999_600: "1M",
            4_500_000: "4.5M",
            -1500: "-1.5k",
        }
        self.assertEqual({value: text.si(value) for value in said}, said)
        said = {
            0: "0 s",
            0.01: "< 0.1 s",
            0.4: "0.4 s",
            9.97: "10 s",
            59.7: "1 min",
            200: "3 min 20 s",
            3599.9: "1 h",
            3720: "1 h 2 min",
        }
        self.assertEqual({value: text.duration(value) for value in said}, said)
        self.assertEqual(
            [text.percent_text(v) for v in (0, 0.01, 50, 99.96, 100)], ["0 %", "< 0.1 %", "50 %", "> 99.9 %", "100 %"]
        )

    def test_ticks_are_few_and_round_and_hold_the_data(self) -> None:
        for low, high in ((0, 1), (0, 7), (0, 0.3), (4000, 4210), (780, 812), (0, 38_100), (5, 6), (0, 9.99e9)):
            ticks = charts.nice_ticks(low, high)
            self.assertTrue(2 <= len(ticks) <= 6, ticks)
            self.assertTrue(ticks[0] <= low and ticks[-1] >= high, ticks)
            self.assertIn(f"{ticks[1] - ticks[0]:.0e}"[0], "125")


# What the browser measures, with everything opened: width, colours, contrast of every text, and texts of charts that
# overlap or leave their picture.
PROBE = """
<script>
addEventListener("load", () => {
  for (const block of document.querySelectorAll("details")) block.open = true;
  const parts = (colour) => (colour.match(/[\\d.]+/g) || []).map(Number);
  const light = (colour) => {
    const linear = (v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    const [r, g, b] = parts(colour).map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (node) => {
    for (; node; node = node.parentElement) {
      const colour = getComputedStyle(node).backgroundColor;
      if (parts(colour)[3] !== 0) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const faint = new Set();
  for (const node of document.querySelectorAll("body *")) {
    const words = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
    if (!words || node.closest("script, title, [hidden]")) continue;
    const style = getComputedStyle(node);
    const [a, b] = [light(node.closest("svg") ? style.fill : style.color), light(ground(node))].sort((x, y) => y - x);
    const contrast = (a + 0.05) / (b + 0.05);
    const name = node.className.baseVal ?? node.className;
    if (!(contrast >= 4.5)) faint.add(`${node.tagName} ${name}: ${contrast.toFixed(2)}`);
  }
  const charts = new Set();
  for (const svg of document.querySelectorAll("svg.chart")) {
    const edge = svg.getBoundingClientRect();
    const texts = [...svg.querySelectorAll("text")].map((t) => [t.textContent, t.getBoundingClientRect()]);
    texts.forEach(([words, box], i) => {
      if (box.left < edge.left - 1 || box.right > edge.right + 1 || box.bottom > edge.bottom + 1)
        charts.add(`${words} is cut off`);
      for (const [other, second] of texts.slice(i + 1))
        if (box.left < second.right && second.left < box.right &&
            box.top + 2 < second.bottom && second.top + 2 < box.bottom)
          charts.add(`${words} on ${other}`);
    });
  }
  parent.postMessage(JSON.stringify({
    width: innerWidth, scrolls: document.documentElement.scrollWidth, charts: [...charts], faint: [...faint],
    dark: matchMedia("(prefers-color-scheme: dark)").matches,
    ground: light(getComputedStyle(document.body).backgroundColor),
    pictures: [...document.images].map((image) => image.naturalWidth),
    buttons: document.querySelectorAll("button.copy:not([hidden])").length,
  }), "*");
});
</script></body>"""


@unittest.skipUnless(BROWSER, "no chromium-headless-shell, chromium or google-chrome on PATH")
class Browser(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = Path(folder.name)

    def load(self, file: Path, *flags: str) -> str:
        """The DOM once the page has settled; a line on the console fails the test."""
        command = [
            str(BROWSER),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--virtual-time-budget=2000",
            "--dump-dom",
            "--enable-logging=stderr",
            "--v=0",
            f"--user-data-dir={self.out / 'profile'}",
            *flags,
            file.as_uri(),
        ]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([line for line in done.stderr.splitlines() if "CONSOLE" in line], [])
        return done.stdout

    def measured(self, report: Report, width: int, dark: bool = False) -> dict:
        """In a frame of the width asked for: a browser's own window may have a larger least width."""
        write_page(report, self.out)
        page = (self.out / "index.html").read_text(encoding="utf-8")
        (self.out / "probed.html").write_text(page.replace("</body>", PROBE), encoding="utf-8")
        frame = self.out / "frame.html"
        style = f"border: 0; width: {width}px; height: 800px"
        frame.write_text(
            '<!doctype html><meta charset="utf-8"><meta name="color-scheme" content="light dark"><title></title>'
            f'<iframe src="probed.html" style="{style}"></iframe>'
            "<script>onmessage = (event) => { document.title = event.data; };</script>",
            encoding="utf-8",
        )
        dom = self.load(frame, f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--window-size=1400,900")
        title = re.search("<title>(.*?)</title>", dom, re.S)
        self.assertTrue(title and title[1], "the page said nothing")
        found = json.loads(html.unescape(title[1]))  # type: ignore[index]
        self.assertEqual((found["width"], found["dark"]), (width, dark))
        return found

    def test_findings_load_without_a_word_on_the_console_and_show_their_commands(self) -> None:
        report = samples.with_findings()
        write_page(report, self.out)
        dom = html.unescape(self.load(self.out / "index.html"))
        for finding in report.findings:
            self.assertIn(finding.command, dom)
        self.assertIn("3 findings: 2 new, 1 flaky", dom)

    def test_a_clean_campaign_loads_and_says_that_nothing_was_found(self) -> None:
        write_page(samples.clean(), self.out)
        dom = self.load(self.out / "index.html")
        self.assertRegex(dom, r"<h1>.*No finding</span></h1>")
        self.assertNotIn('class="finding"', dom)

    def test_hostile_text_runs_nothing(self) -> None:
        for words in HOSTILE:
            with self.subTest(words[:40]):
                write_page(samples.hostile(words), self.out)
                self.load(self.out / "index.html")

    def test_nothing_is_wider_than_a_phone(self) -> None:
        made = every_sample()
        for name in ("findings", "clean", "doubtful", "degenerate", "sparse", "hostile 0", "hostile 10"):
            with self.subTest(name):
                self.assertLessEqual(self.measured(made[name], 390)["scrolls"], 390)

    def test_charts_have_no_text_cut_off_or_on_another(self) -> None:
        many = samples.with_findings()
        for target in many.targets:
            target.nights = target.nights * 12
        for report in (samples.with_findings(), samples.sparse(), many):
            for width in (390, 1280):
                self.assertEqual(self.measured(report, width)["charts"], [])

    def test_every_text_stands_out_in_light_and_dark(self) -> None:
        for report in (samples.with_findings(), samples.doubtful()):
            for dark in (False, True):
                found = self.measured(report, 1280, dark)
                self.assertEqual(found["faint"], [])
                self.assertTrue(found["ground"] < 0.05 if dark else found["ground"] > 0.8, found["ground"])

    def test_pictures_load_and_every_command_can_be_copied(self) -> None:
        found = self.measured(samples.with_findings(), 1280)
        self.assertEqual(found["pictures"], [1060, 1060])
        self.assertEqual(found["buttons"], 4)


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    unittest.main()
