"""Reports made in code, with a campaign's typical numbers: for the page's tests, and for whoever changes its looks."""

from __future__ import annotations

import math
import random

from campaign.model import (
    Coverage,
    Finding,
    Line,
    Night,
    PlanItem,
    Property,
    Report,
    Room,
    Sample,
    Share,
    Target,
)

SMALL_SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="1060" height="120" viewBox="0 0 1060 120">'
    '<rect width="100%" height="100%" fill="#fff"/><rect x="24" y="40" width="600" height="30" fill="#0072b2"/>'
    '<text x="24" y="28" font-size="14">q16s4k</text></svg>'
)

# Name, claim, invariants, features, inputs a second, corpus files: the README's table, and what a night counts.
_TARGETS = [
    (
        "fuzz_split",
        "every request lands in exactly one region, chunk, rank and virtual batch, by its own length",
        "S1-S8, L1, R1, E4",
        4210,
        21400,
        812,
    ),
    (
        "fuzz_metadata",
        "each context token is gathered once, and no chunk overruns the workspace",
        "C1-C6, W1, O1",
        5130,
        9800,
        1043,
    ),
    (
        "fuzz_metamorphic",
        "a permuted, cut or padded batch, or a larger workspace, changes the metadata in that way and no other",
        "M1-M4",
        4870,
        3100,
        690,
    ),
    (
        "fuzz_sequence",
        "what a builder has built before never shows in what it builds next",
        "M4, C1-C6, W1",
        5320,
        4200,
        914,
    ),
    (
        "fuzz_reject",
        "a malformed batch is refused with the rule it breaks and its numbers, and nothing else happens",
        "E1-E3",
        2980,
        26300,
        455,
    ),
    (
        "fuzz_device",
        "the kernels build what the CPU builds, copy nothing back, wait for nothing, allocate nothing, "
        "in any order of threads, blocks and streams",
        "D1-D3, D5",
        7640,
        310,
        388,
    ),
    (
        "fuzz_device_sequence",
        "nor does it show what a device builder has built before; a captured build replays on new data",
        "D1, D4",
        7910,
        190,
        301,
    ),
    (
        "fuzz_device_faults",
        "a HIP call that fails ends in an error, no leak, and a next build that is right",
        "D6",
        6480,
        240,
        264,
    ),
    (
        "fuzz_batchtext",
        "any bytes parse to a case, or to an error that points into them; a case prints to a text that parses to it",
        "",
        1870,
        38100,
        520,
    ),
]

_NIGHTS = [
    ("20261127T020004Z-0of1", "2026-11-27T02:00:04Z", "5d0c1e7a94b2", 0.955),
    ("20261128T020003Z-0of1", "2026-11-28T02:00:03Z", "8be42f10c7d3", 0.978),
    ("20261129T020005Z-0of1", "2026-11-29T02:00:05Z", "8be42f10c7d3", 0.991),
    ("20261130T190830Z-0of1", "2026-11-30T19:08:30Z", "c41f9a6be052", 1.0),
]


def _samples(core_s: float, features: int, rate: int, files: int) -> list[Sample]:
    """Features and files near their end from the start, since the corpus is kept; a rate that wobbles."""
    draw = random.Random(features)
    samples, executions, count = [], 0, 48
    for i in range(1, count + 1):
        grown = 1 - 0.05 * math.exp(-5 * i / count)
        now = round(rate * draw.uniform(0.86, 1.1))
        executions += round(now * core_s / count)
        samples.append(
            Sample(
                core_s * i / count,
                executions,
                now,
                round(features * grown),
                round(features * grown / 4),
                round(files * (1 - 0.04 * (1 - i / count))),
            )
        )
    return samples


def _nights(core_s: float, features: int, rate: int, files: int, findings: int) -> list[Night]:
    draw = random.Random(rate)
    return [
        Night(
            campaign,
            began,
            commit,
            core_s,
            round(rate * draw.uniform(0.93, 1.05)),
            round(features * share),
            round(features * share / 4),
            round(files * share**2),
            findings if i + 1 == len(_NIGHTS) else 0,
        )
        for i, (campaign, began, commit, share) in enumerate(_NIGHTS)
    ]


def _target(index: int, findings: int) -> Target:
    name, claim, invariants, features, rate, files = _TARGETS[index]
    core_s = 640.0
    samples = _samples(core_s, features, rate, files)
    before = samples[0].corpus
    return Target(
        name,
        claim,
        invariants,
        "finding" if findings else "ok",
        core_s=core_s,
        executions=samples[-1].executions,
        rate=rate,
        features=features,
        edges=features // 4,
        corpus_before=before,
        corpus_after=files,
        corpus_bytes=files * 97,
        findings=findings,
        variants=["asan", "ubsan", "plain"],
        samples=samples,
        nights=_nights(core_s, features, rate, files, findings),
    )


def _invariant() -> Finding:
    table = """\
  decode_threshold 1, workspace_tokens 4096, packed, window_left -
  num_actual_tokens 35, max_query_len 16, max_seq_len 9000
  requests        q          s      bound    context  class
         0        3       4101       4101       4098  extend
         1       16       9000       9000       8984  extend
         2       16         16         16          0  prefill
"""
    batch = "attnfuzz 1\nworkspace_tokens 4096\nchunk_policy packed\nbatch q3s4101_q16s9000_q16\n"
    regression = (
        "corpus/regressions/C1_extend_1__chunk_1.batch:\n# C1: every context token is gathered exactly once, in order. "
        f"extend 1, chunk 1: starts at 8190, expected 8188\n{batch}\nproperties/suites/regression_test.cpp:\n"
        f'TEST(Regression, C1_extend_1__chunk_1) {{\n  EXPECT_HOLDS(R"({batch})");\n}}\n'
    )
    return Finding(
        "C1",
        "1a2b3c4d",
        "invariant",
        "every context token is gathered exactly once, in order",
        where="extend 1, chunk 1",
        difference="starts at 8190, expected 8188: two tokens of the context are never read",
        targets=["fuzz_metadata", "fuzz_sequence"],
        variants=["asan", "ubsan"],
        seconds_to_fail=11.6,
        count=14,
        tries=10,
        repeated=10,
        command="build/test/src/cli/attnfuzz check findings/C1-1a2b3c4d/reduced.batch",
        requests_unshrunk=41,
        requests_reduced=3,
        unshrunk=batch.replace("q3s4101", "12q1s900_8q1s2047_(18)q5s77_q3s4101"),
        reduced=batch,
        table=table,
        shrinking="41 requests to 3 in 212 tries and 3.4 s, the same invariant all the way",
        regression=regression,
        log="#81920 pulse  corp: 1039/94Kb exec/s: 9102\nFINDING C1: every context token is gathered exactly once\n",
        svg=SMALL_SVG,
        folder="findings/C1-1a2b3c4d",
    )


def _overflow() -> Finding:
    frames = [
        "attn::ChunkedContext::fill src/attn/chunked_context.cpp:118:9",
        "attn::MetadataBuilder::build src/attn/metadata.cpp:33:5",
        "properties::check_case properties/check.cpp:104:12",
    ]
    log = (
        "\x1b[1m\x1b[31m==4711==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x602000000114\x1b[0m\n"
        + "".join(
            f"    #{i} 0x55d2c0ffee{i:02x} in {frame.split()[0]} {frame.split()[1]}\n" for i, frame in enumerate(frames)
        )
    )
    return Finding(
        "heap-buffer-overflow",
        "77e0d1c2",
        "sanitizer",
        "AddressSanitizer: heap-buffer-overflow, WRITE of size 4 in attn::ChunkedContext::fill",
        where="src/attn/chunked_context.cpp:118",
        difference="writes 4 bytes behind a buffer of 16 bytes",
        targets=["fuzz_metadata"],
        variants=["asan"],
        seconds_to_fail=187.2,
        count=2,
        tries=10,
        repeated=10,
        frames=frames,
        command="build/fuzz/fuzz/fuzz_metadata findings/heap-buffer-overflow-77e0d1c2/reduced.batch",
        requests_unshrunk=9,
        requests_reduced=1,
        unshrunk="attnfuzz 1\nbatch 8q1s1k_q16s4k\n",
        reduced="attnfuzz 1\nworkspace_tokens 4\nbatch q2s7\n",
        is_new=False,
        table="  requests        q          s      bound    context  class\n         0        2          7          7"
        "          5  extend\n",
        shrinking="9 requests to 1 in 31 tries and 1.2 s",
        log=log,
        svg=SMALL_SVG,
        folder="findings/heap-buffer-overflow-77e0d1c2",
    )


def _timeout() -> Finding:
    return Finding(
        "timeout",
        "0badcafe",
        "timeout",
        "an input takes less than 10 seconds",
        where="fuzz_device_faults",
        difference="ran 10 s and had not ended",
        targets=["fuzz_device_faults"],
        variants=["plain"],
        seconds_to_fail=502.9,
        tries=10,
        repeated=7,
        command="build/fuzz/fuzz/fuzz_device_faults -timeout=10 findings/timeout-0badcafe/unshrunk.batch",
        requests_unshrunk=3,
        unshrunk="attnfuzz 1\nfail_call 17\nbatch 3q16s4k\n",
        shrinking="not reduced: it does not fail each time",
        log="ALARM: working on the last Unit for 10 seconds\n",
        folder="findings/timeout-0badcafe",
    )


def canary() -> Finding:
    return Finding(
        "C2",
        "ca0a41e5",
        "invariant",
        "no chunk exceeds the workspace",
        difference="chunk 0 has 4097 tokens of 4096",
        targets=["fuzz_metadata"],
        variants=["asan"],
        is_canary=True,
        seconds_to_fail=0.4,
        tries=3,
        repeated=3,
        command="build/canary/fuzz/fuzz_metadata findings/canary/reduced.batch",
        folder="findings/canary",
    )


def _properties() -> list[Property]:
    classes = [
        ("decode-only", 18.2),
        ("no extend", 31.4),
        ("mixed", 44.9),
        ("empty", 2.1),
        ("padded", 21.7),
        ("window", 33.3),
    ]
    names = [
        "splits_hold",
        "chunked_context_holds",
        "windows_hold",
        "changed_batches_agree",
        "the_naive_implementation_agrees",
        "sequences_on_one_builder_hold",
    ]
    drawn = [
        Property(
            "Property",
            name,
            1203944 + i,
            200_000,
            31.5 + 4 * i,
            "ok",
            [Share(label, (share + 7 * i) % 97) for label, share in classes],
        )
        for i, name in enumerate(names)
    ]
    unclassed = "is_refused_with_its_own_error_and_nothing_else_happens/capacity_exceeded"
    return [*drawn, Property("Kinds/Malformed", unclassed, 1203990, 200_000, 12.0, "ok")]


def _coverage() -> Coverage:
    rooms = [
        Room("src/attn", 1124, 1119, "coverage/src/attn/index.html"),
        Room("src/attn/device", 806, 741, "coverage/src/attn/device/index.html"),
        Room("src/batchtext", 402, 398, "coverage/src/batchtext/index.html"),
    ]
    never = [
        Line("src/attn/device/capacity.cpp", 61, "    return tl::unexpected(Error{Error::device, name_of(status)});"),
        Line("src/attn/device/capacity.cpp", 62, "  }"),
        Line(
            "src/attn/device/kernels.cpp", 318, "    if (threadIdx.x >= warpSize) return;  // a block wider than a warp"
        ),
        Line("src/attn/arena.cpp", 44, "  if (bytes > limit_bytes) return nullptr;"),
    ]
    return Coverage(rooms, never, "coverage/index.html")


def _plan() -> list[PlanItem]:
    items = [PlanItem("canary", "fuzz_metadata", "asan", 60, 0.4, "ends when it is found")]
    items.append(PlanItem("replay", "", "asan", 120, 84.1))
    for name, *_ in _TARGETS:
        for variant, share in (("asan", 0.5), ("ubsan", 0.3), ("plain", 0.2)):
            items.append(PlanItem("fuzz", name, variant, 640 * share, 640 * share))
    items += [PlanItem("properties", "property_test", "test", 420, 402.8), PlanItem("races", "", "tsan", 360, 351.0)]
    return [*items, PlanItem("coverage", "", "", 180, 141.3, "the corpus of every target")]


def clean() -> Report:
    """Nothing found, and nothing to doubt it."""
    return Report(
        campaign="20261130T190830Z-0of1",
        commit="c41f9a6be0521b7d93f2a4406c2e1f7a58d0e9b3",
        subject="chunked context: one pass over the extends",
        host="build-7, Debian 12, 2 cores, clang 14.0.6",
        began="2026-11-30T19:08:30Z",
        ended="2026-11-30T20:09:12Z",
        minutes=60,
        jobs=2,
        shard="0/1",
        seed=20261130,
        command="ci/nightly --minutes 60 --jobs 2",
        state="finished",
        plan=_plan(),
        targets=[_target(i, 0) for i in range(len(_TARGETS))],
        findings=[canary()],
        properties=_properties(),
        coverage=_coverage(),
        not_reached=[
            "4 lines of src/attn and src/attn/device are run by no file of the corpus.",
            "fuzz_device_sequence had no new feature in its last 480 core-seconds.",
            "No batch of the corpus has more than 4,096 requests.",
            "The amd runtime was compiled, not run: no device answers on this machine.",
        ],
    )


def with_findings(svg: str = SMALL_SVG) -> Report:
    """An invariant, a sanitizer's report and a flaky timeout, out of order on purpose; and an alarm."""
    report = clean()
    report.findings = [_timeout(), _invariant(), _overflow(), canary()]
    report.findings[1].svg = svg
    for i, target in enumerate(report.targets):
        found = sum(target.name in finding.targets for finding in report.faults)
        report.targets[i] = _target(i, found)
    return report


def doubtful() -> Report:
    """No finding, but little to build on: no canary, a target that ended in an error, a planted fault that hid."""
    report = clean()
    report.findings, report.planted, report.state, report.resumed = [], ["chunk_starts_late"], "stopped", 2
    report.alarms = [
        "fuzz_device runs 71 % slower than in the median of 3 earlier campaigns (310 against 1,069 inputs/s)."
    ]
    report.targets[6].result, report.targets[6].error = "error", "exit code 77: libFuzzer could not read its corpus"
    report.targets[8] = Target("fuzz_batchtext", "any bytes parse to a case", "", "not run", "the time was spent")
    return report


def degenerate() -> Report:
    """As little as a report can hold."""
    return Report("", "", "", "", "", "", 0, 0, "", 0, "", "cut off")


def sparse() -> Report:
    """One of each, with nothing in it: no sample, one sample, one night, a finding without a picture, empty lists."""
    report = degenerate()
    one = Target(
        "fuzz_one",
        "one sample, one night",
        "",
        "ok",
        samples=[Sample(0.2, 1, 1, 0, 0, 0)],
        nights=[Night("a", "not a time", "", 0, 0, 0, 0, 0, 0)],
    )
    none = Target("fuzz_none", "no sample", "", "not run")
    flat = Target(
        "fuzz_flat",
        "the same twice",
        "",
        "ok",
        features=5,
        nights=_nights(1, 0, 0, 0, 0),
        samples=[Sample(t, 10, 7, 5, 5, 5) for t in (1, 2)],
    )
    report.targets = [one, none, flat]
    report.findings = [Finding("crash", "", "crash", "")]
    report.properties = [
        Property("Property", "classes_nothing", 0, 0, 0, "error"),
        Property("Property", "odd_shares", 0, 0, 0, "ok", [Share("nan", math.nan), Share("much", 130)]),
    ]
    report.coverage = Coverage([Room("src/empty", 0, 0)], [])
    report.plan = [PlanItem("fuzz", "", "", 0)]
    return report


def crowded(number: int = 50) -> Report:
    """Many findings with everything as long as it gets."""
    report = with_findings()
    findings = []
    for i in range(number):
        finding = _invariant()
        finding.hash, finding.seconds_to_fail = f"{i:08x}", 1.5 * i
        finding.svg = SMALL_SVG.replace("</svg>", "<text>long</text>" * 2500 + "</svg>")
        finding.log, finding.table = "a line of the log & more <b>\n" * 20_000, "  0  1  2  3  4\n" * 20_000
        finding.unshrunk = finding.reduced = finding.regression = "batch q1s1\n" * 20_000
        finding.difference = finding.claim = "word " * 4000
        findings.append(finding)
    report.findings = [*findings, canary()]
    report.coverage = Coverage(_coverage().rooms, [Line("src/attn/split.cpp", i, "x" * 300) for i in range(5000)])
    return report


_LISTS_OF_TEXTS = ("alarms", "planted", "not_reached", "frames", "variants")


def hostile(text: str) -> Report:
    """The same text wherever a text may stand."""
    report, coverage = with_findings(), _coverage()
    report.coverage = coverage
    holders: list[object] = [report, coverage, *report.targets, *report.findings, *report.properties, *report.plan]
    holders += [*coverage.rooms, *coverage.not_covered, *report.targets[0].nights, *report.properties[0].shares]
    for finding in report.findings:
        finding.targets = [text]
    for holder in holders:
        for name, value in vars(holder).items():
            if isinstance(value, str):
                setattr(holder, name, text)
            elif name in _LISTS_OF_TEXTS:
                setattr(holder, name, [text])
    return report
