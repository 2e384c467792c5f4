#!/usr/bin/env python3
"""A campaign with programs that stand in for fuzz targets: what it keeps, finds, resumes and refuses."""
import contextlib
import io
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent))

from campaign import campaign as running  # noqa: E402
from campaign import corpus, jobs, plan, state as states  # noqa: E402
from campaign.files import read_records, sha1  # noqa: E402
from campaign.jobs import Bench  # noqa: E402
from campaign.model import PlanItem  # noqa: E402
from campaign.state import Progress, State  # noqa: E402
from campaign.terminal import Terminal  # noqa: E402

ROOT = HERE.parents[2]


def make_bench(folder: pathlib.Path, targets: list[str], seconds: float, cores: int = 2) -> Bench:
    state = State("test-0of1", "c0ffee", "subject", "host", "2026-01-01T00:00:00Z", seconds / 60, cores, "0/1", 7, "ci/nightly")
    state.targets = [Progress(target) for target in targets]
    state.plan = [PlanItem("canary", "fuzz_canary", "asan", 1), PlanItem("replay", "", "asan", 1),
                  PlanItem("properties", "", "test", 0)]
    state.plan += [PlanItem("fuzz", target, "asan", 2.5) for target in targets]
    state.plan += [PlanItem("growth", "", "asan", 2), PlanItem("closing", "", "", 0.2)]
    campaign_folder = folder / "run"
    for variant in ("asan", "plain", "ubsan"):
        (campaign_folder / "bin" / variant).mkdir(parents=True, exist_ok=True)
        for target in [*targets, "fuzz_canary"]:
            shutil.copy(HERE / "fake_fuzzer.py", campaign_folder / "bin" / variant / target)
            (campaign_folder / "bin" / variant / target).chmod(0o755)
    bench = Bench(ROOT, campaign_folder, folder / "corpus", folder / "records.jsonl", state, 4096, random.Random(7))
    bench.kept.mkdir(exist_ok=True)
    for target in targets:
        corpus.start_working(bench.work(target), corpus.folder_of(bench.kept, target), corpus.failed_before(folder / "findings"), set())
    return bench


def run_campaign(bench: Bench) -> running.Campaign:
    night = running.Campaign(bench, ["asan", "plain", "ubsan"], Terminal())
    with contextlib.redirect_stdout(io.StringIO()):
        night.run()
    return night


class Campaign(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="campaign-test-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def kept(self, target: str) -> set[str]:
        return {path.name for path in corpus.plain_files(self.folder / "corpus" / target)}

    def test_every_target_gets_its_floor_and_what_it_found_is_kept(self):
        bench = make_bench(self.folder, ["fuzz_one", "fuzz_two"], 15)
        run_campaign(bench)
        records = read_records(self.folder / "records.jsonl")
        for target in bench.state.targets:
            self.assertGreaterEqual(target.core_s, 2.5, target)
            mine = [r for r in records if r.target == target.name and r.kind == "fuzz"]
            self.assertEqual(target.executions, sum(r.executions for r in mine))
            self.assertIn("plain", {r.variant for r in mine})
            self.assertEqual(len(self.kept(target.name)), len(corpus.plain_files(bench.work(target.name))))
            self.assertGreater(len(self.kept(target.name)), 10)
        self.assertEqual(bench.state.flights, [])
        self.assertEqual([f.phase for f in bench.state.failures], ["canary"])
        replays = [r for r in records if r.kind == "replay"]
        self.assertEqual(len(replays), 4, replays)
        self.assertEqual([r.result for r in replays], ["ok"] * 4)

    def test_an_input_that_fails_leaves_the_working_corpus_and_the_rest_is_run(self):
        kept = self.folder / "corpus" / "fuzz_one"
        kept.mkdir(parents=True)
        for data in (b"this fails", b"this is sound", b"this fails too"):
            (kept / sha1(data)).write_bytes(data)
        bench = make_bench(self.folder, ["fuzz_one"], 5)
        run_campaign(bench)
        failed = {(bench.folder / f.input).read_bytes() for f in bench.state.failures if f.phase != "canary"}
        self.assertEqual(failed, {b"this fails", b"this fails too"})
        self.assertIn("fuzz_one 2", bench.state.replays, "the rest was run, twice")
        self.assertGreater(bench.state.of("fuzz_one").executions, 0)
        # A regression's input is worth more than any other: it stays.
        self.assertLessEqual({sha1(b"this fails"), sha1(b"this fails too"), sha1(b"this is sound")}, self.kept("fuzz_one"))

    def test_what_failed_last_night_is_tried_first(self):
        for name in ("C1-12345678", "canary-C1-12345678"):
            (self.folder / "findings" / name).mkdir(parents=True)
            (self.folder / "findings" / name / "reduced.batch").write_bytes(name.encode() + b" fails")
        bench = make_bench(self.folder, ["fuzz_one"], 3)
        run_campaign(bench)
        failed = [(bench.folder / f.input).read_bytes() for f in bench.state.failures if f.phase == "replay"]
        self.assertEqual(failed, [b"C1-12345678 fails"])

    def test_what_the_cover_does_not_need_is_dropped(self):
        kept = self.folder / "corpus" / "fuzz_one"
        kept.mkdir(parents=True)
        for data in (b"superfluous", b"needed"):
            (kept / sha1(data)).write_bytes(data)
        (kept / ".somebody-elses").write_bytes(b"not an input")
        bench = make_bench(self.folder, ["fuzz_one"], 3)
        run_campaign(bench)
        self.assertNotIn(sha1(b"superfluous"), self.kept("fuzz_one"))
        self.assertIn(sha1(b"needed"), self.kept("fuzz_one"))
        self.assertTrue((kept / ".somebody-elses").exists())

    def test_a_merge_that_breaks_loses_nothing(self):
        kept = self.folder / "corpus" / "fuzz_merge_breaks"
        kept.mkdir(parents=True)
        (kept / sha1(b"superfluous")).write_bytes(b"superfluous")
        bench = make_bench(self.folder, ["fuzz_merge_breaks"], 3)
        run_campaign(bench)
        self.assertIn(sha1(b"superfluous"), self.kept("fuzz_merge_breaks"))
        self.assertGreater(len(self.kept("fuzz_merge_breaks")), 5)
        self.assertTrue(any("merging ended with 1; everything is kept" in alarm for alarm in bench.state.alarms))

    def test_a_merge_that_writes_empty_files_loses_nothing(self):
        # As libFuzzer does, in silence, when the disk is full.
        kept = self.folder / "corpus" / "fuzz_full_disk"
        kept.mkdir(parents=True)
        (kept / sha1(b"needed")).write_bytes(b"needed")
        bench = make_bench(self.folder, ["fuzz_full_disk"], 3)
        run_campaign(bench)
        self.assertLessEqual({sha1(b"needed"), *(p.name for p in corpus.plain_files(bench.work("fuzz_full_disk")))},
                             self.kept("fuzz_full_disk"))
        self.assertTrue(any("not whole; everything is kept" in alarm for alarm in bench.state.alarms))

    def test_a_replay_that_reaches_something_else_is_a_finding(self):
        bench = make_bench(self.folder, ["fuzz_wavers"], 3)
        run_campaign(bench)
        self.assertTrue(any("run again" in f.note for f in bench.state.failures), bench.state.failures)

    def test_a_target_that_keeps_crashing_is_left_alone_and_its_time_goes_to_others(self):
        bench = make_bench(self.folder, ["fuzz_crashes", "fuzz_one"], 8)
        with mock.patch.object(jobs, "MOST_USELESS", 3):
            run_campaign(bench)
        crashes = bench.state.of("fuzz_crashes")
        self.assertIn("left alone after", crashes.error)
        self.assertEqual(crashes.failures, 3)
        self.assertGreater(bench.state.of("fuzz_one").core_s, 5)

    def test_an_invariant_that_failed_often_enough_is_muted_and_the_target_goes_on(self):
        bench = make_bench(self.folder, ["fuzz_finds"], 8)
        run_campaign(bench)
        finds = bench.state.of("fuzz_finds")
        self.assertEqual((finds.muted, finds.error), (["C1"], ""))
        # One more may have been under way.
        self.assertIn(len([f for f in bench.state.failures if f.target == "fuzz_finds"]), (jobs.ENOUGH, jobs.ENOUGH + 1))
        self.assertGreater(finds.core_s, 5)

    def test_a_target_that_dies_is_an_alarm_and_the_others_go_on(self):
        bench = make_bench(self.folder, ["fuzz_dies", "fuzz_one"], 5)
        run_campaign(bench)
        self.assertIn("left alone after 3 runs", bench.state.of("fuzz_dies").error)
        self.assertTrue(any("fuzz_dies (asan): ended with status 3" in alarm for alarm in bench.state.alarms))
        self.assertGreater(bench.state.of("fuzz_one").executions, 0)

    def test_killed_halfway_and_resumed_nothing_is_lost(self):
        make_bench(self.folder, ["fuzz_one", "fuzz_two"], 12).state.save(self.folder / "run")
        program = ("import sys; sys.path.insert(0, sys.argv[1]); import pathlib, campaign_test as t; from campaign import state;"
                   "f = pathlib.Path(sys.argv[2]); b = t.make_bench(f, ['fuzz_one', 'fuzz_two'], 12); t.run_campaign(b)")
        victim = subprocess.Popen([sys.executable, "-c", program, str(HERE), str(self.folder)], start_new_session=True)
        time.sleep(6)
        victim.kill()
        victim.wait()
        bench = make_bench(self.folder, ["fuzz_one", "fuzz_two"], 12)
        bench.state = states.load(bench.folder)
        under_way = [flight for flight in bench.state.flights if flight.phase == "fuzz"]
        self.assertTrue(under_way, "killed between two runs: nothing is shown")
        self.assertGreater(bench.state.elapsed_s, 0)
        time.sleep(0.5)
        orphans = subprocess.run(["pgrep", "-f", str(self.folder)], capture_output=True, text=True).stdout.split()
        self.assertEqual(orphans, [], "what the campaign started has to end with it")
        found = [*bench.folder.glob("work/*/*"), *bench.folder.glob("jobs/*-fuzz-*/found/*")]
        # By content: the kill may have cut one short while it was written.
        on_disk = {sha1(path.read_bytes()) for path in found if len(path.name) == 40}
        before = bench.state.of("fuzz_one").executions + bench.state.of("fuzz_two").executions

        bench.state.resumed += 1
        booked = running.account_for_flights(bench)
        self.assertGreaterEqual(booked, len(under_way))
        resumed = running.Campaign(bench, ["asan", "plain", "ubsan"], Terminal())
        self.assertGreaterEqual(resumed.elapsed_s, bench.state.elapsed_s, "the time before the kill counts")
        run_campaign(bench)
        self.assertEqual(on_disk - self.kept("fuzz_one") - self.kept("fuzz_two"), set())
        records = [r for r in read_records(self.folder / "records.jsonl") if r.kind == "fuzz"]
        after = bench.state.of("fuzz_one").executions + bench.state.of("fuzz_two").executions
        self.assertEqual(after, sum(r.executions for r in records))
        self.assertGreater(after, before)
        self.assertIn("stopped", {r.result for r in records})

    def test_ctrl_c_keeps_what_was_found(self):
        bench = make_bench(self.folder, ["fuzz_one"], 60)
        night = running.Campaign(bench, ["asan"], Terminal())
        signal.signal(signal.SIGALRM, lambda number, frame: os.kill(os.getpid(), signal.SIGINT))
        signal.setitimer(signal.ITIMER_REAL, 3)
        with contextlib.redirect_stdout(io.StringIO()):
            night.run()
        self.assertTrue(night.interrupted)
        self.assertGreater(len(self.kept("fuzz_one")), 5)
        self.assertEqual(bench.state.flights, [])


    def test_a_campaign_cut_off_in_its_closing_goes_on_there(self):
        bench = make_bench(self.folder, ["fuzz_one"], 60)
        (bench.work("fuzz_one") / sha1(b"found")).write_bytes(b"found")
        bench.state.closing = True
        run_campaign(bench)
        self.assertEqual([r for r in read_records(self.folder / "records.jsonl") if r.kind == "fuzz"], [])
        self.assertIn(sha1(b"found"), self.kept("fuzz_one"))

    def test_what_no_merge_has_come_to_is_kept_all_the_same(self):
        bench = make_bench(self.folder, ["fuzz_one"], 60)
        (bench.work("fuzz_one") / sha1(b"found")).write_bytes(b"found")
        beside = bench.folder / "jobs" / "00007-fuzz-one-plain" / "found"
        beside.mkdir(parents=True)
        (beside / sha1(b"beside")).write_bytes(b"beside")
        running.rescue(bench)
        self.assertEqual(self.kept("fuzz_one"), {sha1(b"found"), sha1(b"beside")})

    def test_names_that_a_shell_would_take_apart_are_names(self):
        self.folder = self.folder / "with a space; and more"
        self.folder.mkdir()
        bench = make_bench(self.folder, ["fuzz_one"], 3)
        run_campaign(bench)
        self.assertGreater(len(self.kept("fuzz_one")), 5)
        # What libFuzzer hands to a shell is the command of its merges, as it is.
        merges = [job for job in (bench.folder / "jobs").glob("*-merge-*")]
        self.assertTrue(merges)
        for job in merges:
            self.assertNotIn(" ", (job / "command").read_text().replace("\n", ""))

    def test_growth_is_that_of_all_the_time_since_it_was_judged(self):
        bench = make_bench(self.folder, ["fuzz_one"], 9)
        run_campaign(bench)
        target = bench.state.of("fuzz_one")
        # The stand-in finds 40 features a second, whatever else its runs do.
        self.assertGreater(target.growth, 3)


class Plan(unittest.TestCase):
    def test_the_plan_spends_the_time_there_is(self):
        for minutes, cores, count in ((60, 2, 9), (480, 32, 9), (10, 1, 3), (2, 2, 9)):
            items = plan.make_plan(minutes, cores, [f"fuzz_{i}" for i in range(count)], 0, 1)
            self.assertAlmostEqual(sum(item.core_s for item in items), minutes * 60 * cores, delta=1)
            self.assertTrue(all(item.core_s >= 0 for item in items))

    def test_too_little_time_is_refused_with_what_would_do(self):
        with self.assertRaisesRegex(Exception, r"too short; take at least [\d.]+ min"):
            plan.make_plan(0.1, 1, [f"fuzz_{i}" for i in range(9)], 0, 1)

    def test_shards_have_all_targets_between_them(self):
        targets = [f"fuzz_{i}" for i in range(9)]
        for shards in (1, 2, 4, 9, 10, 100):
            parts = [plan.shard_targets(targets, i, shards) for i in range(shards)]
            self.assertEqual({t for part in parts for t in part}, set(targets))
            self.assertTrue(all(parts))
            if shards <= 9:
                self.assertEqual(sum(map(len, parts)), 9)

    def test_time_above_the_floors_goes_where_features_grow(self):
        with tempfile.TemporaryDirectory() as folder:
            state = make_bench(pathlib.Path(folder), ["fuzz_flat", "fuzz_grows"], 60).state
        flat, grows = state.targets
        flat.core_s = grows.core_s = 100
        flat.growth, grows.growth = 0.0, 0.5
        self.assertIs(plan.choose_target(state, set(), plan.Counter()), grows)
        self.assertIs(plan.choose_target(state, {"fuzz_grows"}, plan.Counter()), flat)
        grows.error = "left alone"
        self.assertIs(plan.choose_target(state, set(), plan.Counter()), flat)
        flat.core_s, grows.error = 1, ""
        self.assertIs(plan.choose_target(state, set(), plan.Counter()), flat, "below its floor")


if __name__ == "__main__":
    unittest.main()
