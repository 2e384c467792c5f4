#!/usr/bin/env python3
"""What is read out of logs, and what is made of it: groups, records, nights, merged reports."""
import os
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from campaign import corpus, libfuzzer, merge, suites  # noqa: E402
from campaign.blame import blame  # noqa: E402
from campaign.files import Failed, Lock, append_record, make_writable, read_records, sha1, write_whole  # noqa: E402
from campaign.model import Finding, PlanItem, Property, Record, Report, Target  # noqa: E402
from campaign.report import claims, nights_of  # noqa: E402
from campaign.triage import count_requests, in_order  # noqa: E402

ROOT = "/home/somebody/attnfuzz"

OVERFLOW = f"""\
{ROOT}/properties/metamorphic.cpp:26:56: runtime error: signed integer overflow: 2147483645 + 2147483646 cannot be represented in type 'int'
    #0 0x55cf75ecd62d in properties::(anonymous namespace)::Rebuilt::Rebuilt(attn::Batch const&, int) {ROOT}/properties/metamorphic.cpp:26:56
    #1 0x55cf75ece821 in properties::a_cut_batch(properties::Built const&) {ROOT}/properties/metamorphic.cpp:229:17
    #2 0x55cf75eba17f in properties::check_built(properties::Built const&) {ROOT}/properties/check.cpp:84:26 (prog+0x1) (BuildId: 12)
    #3 0x55cf75eb98e3 in properties::check_case() {ROOT}/properties/check.cpp:105:26
SUMMARY: UndefinedBehaviorSanitizer: undefined-behavior
"""
ADDRESS = f"""\
==1==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x602000000014 at pc 0x5601 bp 0x7ffd sp 0x7ffd
READ of size 4 at 0x602000000014 thread T0
    #0 0x56 in __interceptor_memcpy (fuzz_split+0x1)
    #1 0x56 in std::vector<int>::operator[](unsigned long) /usr/include/c++/12/bits/stl_vector.h:1123:9
    #2 0x56 in attn::split(attn::Batch const&) {ROOT}/build/planted-fuzz/planted/all/src/attn/split.cpp:41:7
    #3 0x56 in attn::MetadataBuilder::build(attn::Batch const&) {ROOT}/src/attn/metadata.cpp:77:3
    #4 0x56 in fuzz::run_case(batchtext::Case const&) {ROOT}/fuzz/fuzz_split.cpp:9:11
    #5 0x56 in LLVMFuzzerTestOneInput {ROOT}/fuzz/target.cpp:60:3
"""
RACE = f"""\
WARNING: ThreadSanitizer: data race (pid=12)
  Write of size 4 at 0x7b04 by fiber T3:
    #0 attn::device::scan(int*) {ROOT}/src/attn/device/scan.hpp:88 (device_test+0x1)
"""
REPORT = """\
#12\tNEW    cov: 1 ft: 2 corp: 1/1b exec/s: 0 rss: 30Mb
FINDING C1: every context token is gathered exactly once, in order
where:   extend 0, tokens gathered
differs: 63, expected 64
batch:
  decode_threshold 1
==9== ERROR: libFuzzer: deadly signal
    #0 0x56 in fuzz::die() /home/somebody/attnfuzz/fuzz/target.cpp:23:3
"""


class Blaming(unittest.TestCase):
    def test_an_invariant_is_told_by_its_id(self):
        told = blame(REPORT, ROOT, "crash-1")
        self.assertEqual((told.kind, told.id, told.key), ("invariant", "C1", "C1"))
        self.assertEqual((told.where, told.difference), ("extend 0, tokens gathered", "63, expected 64"))

    def test_a_target_of_its_own_claims_is_told_by_its_name(self):
        self.assertEqual(blame("FINDING fuzz_batchtext: a case prints to a text that parses to it\n", ROOT).id, "batchtext")

    def test_a_sanitizer_is_told_by_its_kind_and_the_top_three_frames_of_the_project(self):
        told = blame(ADDRESS, ROOT, "crash-1")
        self.assertEqual((told.kind, told.id), ("sanitizer", "heap-buffer-overflow"))
        self.assertEqual(told.frames, ["attn::split src/attn/split.cpp:41", "attn::MetadataBuilder::build src/attn/metadata.cpp:77",
                                       "fuzz::run_case fuzz/fuzz_split.cpp:9"])

    def test_lines_above_do_not_change_a_group_and_functions_do(self):
        moved = ADDRESS.replace("split.cpp:41:7", "split.cpp:43:7").replace("0x602000000014", "0x602000000abc")
        other = ADDRESS.replace("attn::split(", "attn::reorder(")
        self.assertEqual(blame(ADDRESS, ROOT, "crash-1").key, blame(moved, ROOT, "crash-2").key)
        self.assertNotEqual(blame(ADDRESS, ROOT, "crash-1").key, blame(other, ROOT, "crash-1").key)

    def test_undefined_behaviour_is_told_without_its_numbers(self):
        told = blame(OVERFLOW, ROOT, "crash-1")
        self.assertEqual((told.kind, told.id), ("sanitizer", "undefined-behaviour"))
        self.assertEqual(told.claim, "signed integer overflow: N + N cannot be represented in type 'int'")
        self.assertEqual(len(told.frames), 3)
        self.assertEqual(told.key, blame(OVERFLOW.replace("2147483645", "2147483600"), ROOT, "crash-1").key)

    def test_what_dies_inside_attnfuzz_is_told_by_the_sanitizer_there(self):
        inside = "a.batch: FINDING crash: the case is checked to its end\nwhere:   S5\n" + OVERFLOW
        self.assertEqual(blame(inside, ROOT).key, blame(OVERFLOW, ROOT, "crash-1").key)
        self.assertEqual(blame("a.batch: FINDING crash: the case is checked to its end\nwhere:   S5\n", ROOT).frames, ["S5"])

    def test_every_other_way_to_fail_has_a_kind(self):
        for artifact, text, kind in (("timeout-1", "ALARM: working on the last Unit for 11 seconds", "timeout"),
                                     ("oom-1", "ERROR: libFuzzer: out-of-memory (used: 2050Mb; limit: 2048Mb)", "memory"),
                                     ("slow-unit-1", "Slowest unit: 3 s:", "slow"),
                                     ("", RACE, "race"),
                                     ("crash-1", "==1== ERROR: libFuzzer: deadly signal", "crash"),
                                     ("", "[  FAILED  ] Device.builds_hold (3 ms)", "property"),
                                     ("", "", "crash")):
            self.assertEqual(blame(text, ROOT, artifact).kind, kind, artifact or text)


class LibFuzzer(unittest.TestCase):
    def setUp(self):
        self.log = pathlib.Path(tempfile.mkstemp()[1])
        self.addCleanup(self.log.unlink)

    def test_the_latest_status_line_counts(self):
        self.log.write_bytes(b"INFO: seed corpus: files: 3\n#4\tINITED cov: 57 ft: 101 corp: 12/345b exec/s: 0 rss: 60Mb\n"
                             b"#2048\tREDUCE cov: 58 ft: 102 corp: 13/4Kb lim: 4096 exec/s: 1024 rss: 61Mb L: 9/90 MS: 1 Custom-\n"
                             b"#4096\tpul")
        status = libfuzzer.read_status(self.log)
        self.assertEqual(vars(status), {"executions": 2048, "rate": 1024, "features": 102, "edges": 58, "corpus": 13})

    def test_a_log_without_one_has_no_status(self):
        self.assertIsNone(libfuzzer.read_status(self.log))
        self.assertIsNone(libfuzzer.read_status(self.log.with_suffix(".gone")))

    def test_every_kind_of_artifact_is_read(self):
        names = [f"artifacts/{kind}-0123456789abcdef" for kind in ("crash", "leak", "timeout", "oom", "slow-unit")]
        self.log.write_text("".join(f"artifact_prefix='artifacts/'; Test unit written to {name}\nBase64: x\n" for name in names))
        self.assertEqual(libfuzzer.artifacts(libfuzzer.read_log(self.log)), names)

    def test_a_log_of_several_failures_is_told_apart(self):
        names = [f"crash-{digit * 40}" for digit in "abc"]
        text = "#1\tINITED\n" + "".join(f"FINDING {i}1: x\nartifact_prefix='artifacts/'; Test unit written to artifacts/{name}\nBase64: {i}\n"
                                       for i, name in zip("CWD", names))
        ids = [blame(libfuzzer.part_of(text, name), ROOT, name).id for name in names]
        self.assertEqual(ids, ["C1", "W1", "D1"])
        self.assertEqual(libfuzzer.part_of(text, ""), text)

    def test_the_report_is_what_is_left_of_a_log(self):
        shown = libfuzzer.log_without_noise(REPORT + "0x61,0x74,\nat\nSUMMARY: libFuzzer: deadly signal\n")
        self.assertTrue(shown.startswith("FINDING C1"), shown)
        self.assertNotIn("0x61", shown)
        self.assertIn("SUMMARY", shown)


class Suites(unittest.TestCase):
    TEXT = """\
[ RUN      ] Property.splits_hold
Using configuration: max_success=50 seed=5

- splits hold
OK, passed 50 tests
28.00% - "no extend"
 8.00% - "zero chunks"

[       OK ] Property.splits_hold (11 ms)
[ RUN      ] Drawn.other (1 ms)
[ RUN      ] Property.windows_hold

- windows hold
Falsifiable after 7 tests and 3 shrinks

[  FAILED  ] Property.windows_hold (20 ms)
[ RUN      ] Property.dies
"""

    def test_properties_have_their_cases_and_shares(self):
        first, second = suites.properties_of(self.TEXT, "property_test", 5)
        self.assertEqual((first.name, first.cases, first.result, first.seconds), ("splits hold", 50, "ok", 0.011))
        self.assertEqual([(s.label, s.percent) for s in first.shares], [("no extend", 28.0), ("zero chunks", 8.0)])
        self.assertEqual((second.name, second.cases, second.result), ("windows hold", 7, "finding"))

    def test_failed_tests_are_told_and_the_one_that_died(self):
        self.assertEqual(suites.failed_tests(self.TEXT), ["Property.windows_hold", "Property.dies"])

    def test_the_case_kept_before_shrinking_is_found_with_its_report(self):
        names = ("unshrunk-D1.batch", "unshrunk-windows hold-W1.batch")
        text = "".join(f"before shrinking, kept in {name}:\nFINDING\n" for name in names)
        self.assertEqual(suites.kept_cases(text), [(name, "\nFINDING\n") for name in names])

    def test_requests_are_counted_in_all_steps(self):
        self.assertEqual(count_requests("attnfuzz 1\nbatch 8q1s1k_q16s4k_2q2k\nthen\nbatch q3\n"), 12)
        self.assertEqual(count_requests("attnfuzz 1\nseq_lens 3\n"), 0)


def record(**changes) -> Record:
    return Record(**{**vars(Record("c1", "2026-01-01T00:00:00Z", "c0ffee", "fuzz", "fuzz_split", "asan", 1, 10.0, 1000, 50, 20, 7, "ok")),
                     **changes})


class Files(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())

    def test_a_line_that_a_kill_cut_short_is_lost_alone(self):
        path = self.folder / "records.jsonl"
        append_record(path, record(seed=1))
        with open(path, "a") as file:
            file.write('{"campaign": "c1", "beg')
        append_record(path, record(seed=2))
        self.assertEqual([r.seed for r in read_records(path)], [1, 2])

    def test_a_write_that_fails_leaves_the_old_content_and_no_rest(self):
        path = self.folder / "file"
        write_whole(path, "old")
        os.mkdir(self.folder / "other")
        with self.assertRaises(OSError):
            write_whole(self.folder / "other", "a folder is in the way")
        self.assertEqual(path.read_text(), "old")
        self.assertEqual(sorted(os.listdir(self.folder)), ["file", "other"])

    def test_a_lock_names_its_owner_and_is_free_afterwards(self):
        first, second = Lock(self.folder / ".lock"), Lock(self.folder / ".lock")
        self.assertTrue(first.try_take())
        self.assertFalse(second.try_take())
        self.assertIn(f"pid {os.getpid()} on ", second.owner())
        first.release()
        self.assertTrue(second.try_take())
        second.release()

    def test_a_folder_that_cannot_be_written_is_refused_by_name(self):
        (self.folder / "file").write_text("")
        with self.assertRaisesRegex(Failed, "cannot write in .*file/below"):
            make_writable(self.folder / "file" / "below")

    def test_what_failed_in_this_campaign_is_not_worked_on_again(self):
        kept = self.folder / "kept"
        kept.mkdir()
        for data in (b"sound", b"failed"):
            (kept / sha1(data)).write_bytes(data)
        corpus.start_working(self.folder / "work", kept, [], {sha1(b"failed")})
        self.assertEqual([p.read_bytes() for p in corpus.plain_files(self.folder / "work")], [b"sound"])

    def test_a_cover_is_added_before_anything_is_dropped_and_strangers_stay(self):
        kept, cover = self.folder / "kept", self.folder / "cover"
        for folder, inputs in ((kept, (b"a", b"b", b"late")), (cover, (b"b", b"c"))):
            folder.mkdir()
            for data in inputs:
                (folder / sha1(data)).write_bytes(data)
        considered = {sha1(b"a"), sha1(b"b")}
        self.assertEqual(corpus.replace(kept, cover, 2, considered, may_drop=True), (1, 1))
        self.assertEqual({p.read_bytes() for p in corpus.plain_files(kept)}, {b"b", b"c", b"late"})

    def test_a_cover_that_is_not_whole_drops_nothing(self):
        kept, cover = self.folder / "kept", self.folder / "cover"
        kept.mkdir()
        cover.mkdir()
        (kept / sha1(b"a")).write_bytes(b"a")
        self.assertEqual(corpus.replace(kept, cover, 0, {sha1(b"a")}, may_drop=True), (0, 0))
        with self.assertRaisesRegex(Failed, "promised 1 files and left 0"):
            corpus.replace(kept, cover, 1, {sha1(b"a")}, may_drop=True)
        # As libFuzzer leaves it on a full disk.
        (cover / sha1(b"b")).write_bytes(b"")
        with self.assertRaisesRegex(Failed, "not whole"):
            corpus.replace(kept, cover, 1, {sha1(b"a")}, may_drop=True)
        self.assertEqual([p.read_bytes() for p in corpus.plain_files(kept)], [b"a"])

    def test_what_was_written_twice_by_a_kill_is_read_once(self):
        path = self.folder / "records.jsonl"
        for _ in range(2):
            append_record(path, record(seed=1))
        self.assertEqual(len(read_records(path)), 1)


class Claims(unittest.TestCase):
    def test_every_target_of_the_readme_has_its_claim(self):
        root = pathlib.Path(__file__).resolve().parents[3]
        found = claims(root)
        named = {line.split("`")[1] for line in (root / "README.md").read_text().splitlines() if line.startswith("| `fuzz_")}
        self.assertEqual(set(found), named)
        self.assertGreater(len(named), 8)
        self.assertTrue(all(claim for claim, _ in found.values()))


class Nights(unittest.TestCase):
    def test_a_night_adds_up_its_runs_and_takes_rates_from_one_variant(self):
        nights = nights_of([record(), record(variant="plain", executions=90000, features=900), record(executions=3000, features=60),
                            record(campaign="c2", began="2026-01-02T00:00:00Z", result="finding"), record(kind="replay")])
        first, second = nights["fuzz_split"]
        self.assertEqual((first.core_s, first.rate, first.features, first.findings), (30.0, 200, 60, 0))
        self.assertEqual((second.campaign, second.findings), ("c2", 1))


def report(shard: str, **changes) -> Report:
    return Report(**{**dict(campaign="c1", commit="c0ffee", subject="s", host="h", began="2026-01-01T00:00:00Z", ended="", minutes=1,
                            jobs=2, shard=shard, seed=1, command="", state="finished"), **changes})


class Merging(unittest.TestCase):
    def test_one_finding_of_several_shards_is_one_with_the_fastest_one_s_data(self):
        slow = Finding("C1", "aaaa", "invariant", "claim", targets=["fuzz_split"], seconds_to_fail=9, count=2)
        fast = Finding("C1", "bbbb", "invariant", "claim", targets=["fuzz_metadata"], seconds_to_fail=1, is_new=False)
        crash = [Finding("crash", "c", "crash", "died", frames=[f"f {i}"], seconds_to_fail=5) for i in (1, 2)]
        canary = Finding("C1", "d", "invariant", "claim", is_canary=True, seconds_to_fail=0.1)
        merged = merge.merged_findings([report("0/2", findings=[slow, crash[0], canary]), report("1/2", findings=[fast, crash[1]])])
        self.assertEqual([f.hash for f in merged], ["bbbb", "c", "c", "d"])
        self.assertEqual((merged[0].count, merged[0].is_new, merged[0].targets), (3, True, ["fuzz_metadata", "fuzz_split"]))

    def test_a_shard_without_a_report_is_an_alarm(self):
        self.assertEqual(merge.absent_shards([report("0/4"), report("2/4")]), ["no report of shard 1/4, 3/4"])
        self.assertEqual(merge.absent_shards([report("0/1")]), [])

    def test_a_report_of_last_night_is_not_tonight_s(self):
        tonight = report("1/2", began="2026-01-08T22:00:00Z", ended="2026-01-08T23:00:00Z")
        last_night = report("0/2", began="2026-01-07T22:00:00Z", ended="2026-01-07T23:00:00Z")
        queued = report("0/2", began="2026-01-08T14:00:00Z", ended="2026-01-08T21:00:00Z")
        self.assertEqual(merge.of_one_night([queued, tonight]), ([queued, tonight], []))
        kept, said = merge.of_one_night([last_night, tonight])
        self.assertEqual(kept, [tonight])
        self.assertIn("shard 0/2 left no report of this night", said[0])
        self.assertEqual(merge.absent_shards(kept), ["no report of shard 0/2"])
        self.assertIn("nothing was run", merge.of_one_night([])[1][0])

    def test_a_property_that_failed_anywhere_has_failed(self):
        held, failed = (Property("s", "splits hold", 1, 10, 1, result) for result in ("ok", "finding"))
        for order in ((held, failed), (failed, held)):
            merged = merge.merged_properties([report(f"{i}/2", properties=[p]) for i, p in enumerate(order)])
            self.assertEqual([p.result for p in merged], ["finding"])

    def test_targets_and_plans_add_up(self):
        targets = [Target("fuzz_split", "", "", "ok", core_s=s, executions=100, features=f) for s, f in ((5, 10), (7, 9))]
        progress, = merge.merged_progress([report("0/2", targets=[targets[0]]), report("1/2", targets=[targets[1]])])
        self.assertEqual((progress.core_s, progress.executions, progress.features), (12, 200, 10))
        items = merge.merged_plan([report("0/2", plan=[PlanItem("races", "", "tsan", 60)]),
                                   report("1/2", plan=[PlanItem("races", "", "tsan", 0, note="shard 0 has them")])])
        self.assertEqual([(i.core_s, i.note) for i in items], [(60, "")])

    def test_the_canary_is_last_and_the_fastest_first(self):
        order = in_order([Finding("a", "", "", "", seconds_to_fail=2), Finding("b", "", "", "", is_canary=True),
                          Finding("c", "", "", "", seconds_to_fail=1)])
        self.assertEqual([f.id for f in order], ["c", "a", "b"])


if __name__ == "__main__":
    unittest.main()
