#!/usr/bin/env python3
"""From failures to findings, with programs that stand in for attnfuzz and the targets."""
import json
import pathlib
import shutil
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent), str(HERE)]

from campaign_test import make_bench  # noqa: E402

from campaign.state import Failure  # noqa: E402
from campaign.triage import TRIES, Triage  # noqa: E402


class Findings(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="triage-test-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.bench = make_bench(self.folder, ["fuzz_one", "fuzz_device"], 5)
        for name in ("attnfuzz", "canary_attnfuzz"):
            for variant in ("asan", "ubsan"):
                shutil.copy(HERE / "fake_attnfuzz.py", self.bench.folder / "bin" / variant / name)
        self.count = 0

    def fail(self, said: str, text: str, target: str = "fuzz_one", phase: str = "fuzz", at: float = 1) -> None:
        """An input of that text, of which the target said FINDING `said`."""
        self.count += 1
        job = self.bench.folder / "jobs" / f"{self.count:05}"
        job.mkdir(parents=True)
        (job / "crash-1").write_text(text)
        (job / "log").write_text(f"FINDING {said}: a claim\nTest unit written to artifacts/crash-1\n")
        self.bench.state.failures.append(
            Failure(phase, target, "asan", f"jobs/{self.count:05}/log", f"jobs/{self.count:05}/crash-1", at, "crash-1"))

    def found(self):
        return Triage(self.bench, self.folder / "findings", lambda text: None).findings_of_campaign()

    def test_what_breaks_first_when_all_is_held_names_the_group(self):
        self.fail("C1", "C1 fails", at=5)
        self.fail("D1", "D1 C1 fails", target="fuzz_device", at=2)  # a fault of the CPU path, seen by the device's target
        self.fail("D6", "D1 D6 fails", target="fuzz_device", at=3)  # the device's alone
        self.fail("C1", "C1 fails", target="fuzz_canary", phase="canary", at=0)
        found = self.found()
        self.assertEqual([(f.id, f.count, f.is_canary) for f in found], [("C1", 2, False), ("D1", 1, False), ("C1", 1, True)])
        self.assertEqual((found[0].targets, found[0].seconds_to_fail), (["fuzz_device", "fuzz_one"], 2))

    def test_a_folder_has_all_of_it(self):
        self.fail("C1", "C1 stays fails")
        finding, = self.found()
        folder = self.folder / "findings" / finding.folder
        names = {"unshrunk.batch", "reduced.batch", "log", "picture.svg", "command", "regression.txt", "finding.json"}
        self.assertEqual({path.name for path in folder.iterdir()}, names)
        self.assertEqual((folder / "unshrunk.batch").read_text(), "C1 stays fails")
        self.assertEqual((finding.requests_reduced, finding.table, finding.regression), (1, "  a table\n", "a draft\n"))
        self.assertNotIn("somewhere", finding.shrinking)
        self.assertEqual((folder / "command").read_text().strip(), finding.command)

    def test_the_target_repeats_it_where_it_can_and_attnfuzz_elsewhere(self):
        for text, program in (("C1 stays fails", "build/fuzz/fuzz/fuzz_one"), ("C1 fails", "attnfuzz check")):
            self.bench.state.failures.clear()
            self.fail("C1", text)
            finding, = self.found()
            self.assertIn(program, finding.command)
            self.assertEqual((finding.tries, finding.repeated), (TRIES, TRIES))

    def test_an_input_that_makes_no_sense_does_not_fail(self):
        # Of a property: it is attnfuzz that runs it again, and refuses it.
        self.fail("C1", "nonsense", target="property_test", phase="properties")
        finding, = self.found()
        self.assertEqual((finding.tries, finding.repeated, finding.is_flaky), (TRIES, 0, True))
        self.assertIn("run alone, this input passes", finding.shrinking)

    def test_the_empty_input_is_an_input(self):
        self.fail("C1", "")
        finding, = self.found()
        self.assertEqual((self.folder / "findings" / finding.folder / "unshrunk.batch").read_bytes(), b"")
        self.assertEqual(finding.repeated, 0)

    def test_the_next_night_s_is_the_same_finding_and_not_new(self):
        self.fail("C1", "C1 fails")
        first, = self.found()
        self.bench.state.campaign = "another"
        (self.bench.folder / "jobs/00001/crash-1").write_text("C1 fails again")
        second, = self.found()
        self.assertEqual((first.is_new, second.is_new, first.folder), (True, False, second.folder))
        kept = self.folder / "findings" / second.folder
        self.assertEqual((kept / "unshrunk.batch").read_text(), "C1 fails again", "what the page shows is what lies there")
        self.assertEqual(json.loads((kept / "finding.json").read_text())["campaign"], "test-0of1")


if __name__ == "__main__":
    unittest.main()
