"""What a campaign leaves behind, as values: the one description that the runner writes and the page, JUnit, SARIF and
Markdown writers read. As JSON it is `report.json`, and a Record is a line of `records.jsonl`."""

from __future__ import annotations

import dataclasses
import json
import typing
from dataclasses import dataclass, field


@dataclass
class Record:
    """One run of one target: a line of records.jsonl, kept across nights."""

    campaign: str  # id of the campaign: "20261130T190830Z-0of1"
    began: str  # of this run, UTC, "2026-11-30T19:08:30Z"
    commit: str  # full hash, "+" behind it for a changed working tree
    kind: str  # fuzz, replay, properties, races, canary
    target: str  # fuzz_metadata; property_test for properties
    variant: str  # asan, ubsan, plain, tsan, test
    seed: int
    seconds: float
    executions: int  # inputs run; cases, for properties
    features: int  # libFuzzer's count when the run ended; 0 where there is none
    edges: int
    corpus: int  # files the run had in its corpus at the end
    result: str  # ok, finding, error, stopped
    ids: list[str] = field(default_factory=list)  # groups of findings, "C1" or "heap-buffer-overflow"


@dataclass
class Sample:
    """A target at one moment of the campaign."""

    core_s: float  # core-seconds the target has had in this campaign
    executions: int
    rate: int  # executions a second since the sample before
    features: int
    edges: int
    corpus: int  # files


@dataclass
class Night:
    """A target in one campaign, for comparison with others."""

    campaign: str
    began: str
    commit: str
    core_s: float
    rate: int
    features: int
    edges: int
    corpus: int
    findings: int


@dataclass
class Target:
    """A fuzz target in this campaign."""

    name: str
    claim: str
    invariants: str  # "S1-S8, L1": as the README's table has it
    result: str  # ok, finding, error, not run
    error: str = ""
    core_s: float = 0
    executions: int = 0
    rate: int = 0
    features: int = 0
    edges: int = 0
    corpus_before: int = 0  # files of the kept corpus when the campaign began
    corpus_after: int = 0  # and when it ended
    corpus_bytes: int = 0
    findings: int = 0
    variants: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    nights: list[Night] = field(default_factory=list)  # oldest first, this campaign last


@dataclass
class Finding:
    """A group of failures that are one fault, as far as anybody can tell without reading it."""

    id: str  # C1, or the kind: heap-buffer-overflow, timeout, memory, slow, flaky, property
    hash: str  # of what the group is told by, 8 hex digits: with the id the same in every campaign
    kind: str  # invariant, sanitizer, crash, timeout, memory, slow, flaky, property, race
    claim: str  # the invariant's sentence, or the sanitizer's summary
    where: str = ""
    difference: str = ""
    targets: list[str] = field(default_factory=list)  # those that found it
    variants: list[str] = field(default_factory=list)
    is_canary: bool = False
    is_new: bool = True  # no earlier campaign had it
    seconds_to_fail: float = 0  # core-seconds its target had had when it failed first
    count: int = 1  # inputs of the group
    tries: int = 0  # times the reduced input (the unshrunk, where it could not be reduced) was run again
    repeated: int = 0  # of those, the ones that failed again
    frames: list[str] = field(default_factory=list)  # top three of project code: "attn::split src/attn/split.cpp:41"
    command: str = ""  # repeats it, from the project's root
    requests_unshrunk: int = 0
    requests_reduced: int = 0  # 0 where it could not be reduced
    unshrunk: str = ""  # the case's text
    reduced: str = ""
    table: str = ""  # the reduced batch as a table, plain text
    shrinking: str = ""  # what reducing did, a sentence
    regression: str = ""  # the draft, plain text
    log: str = ""  # the end of the log, plain text
    svg: str = ""  # the picture as SVG text; empty where there is none
    folder: str = ""  # findings/C1-1a2b3c4d, from the page's folder

    @property
    def is_flaky(self) -> bool:
        return self.repeated < self.tries


@dataclass
class Share:
    label: str
    percent: float


@dataclass
class Property:
    """A property in its last run of this campaign."""

    suite: str
    name: str
    seed: int
    cases: int
    seconds: float
    result: str  # ok, finding, error
    shares: list[Share] = field(default_factory=list)  # of its cases' classes


@dataclass
class Room:
    name: str  # src/attn, src/attn/device
    lines: int
    covered: int
    link: str = ""  # llvm-cov's page, from the page's folder


@dataclass
class Line:
    file: str
    line: int
    text: str


@dataclass
class Coverage:
    """Lines of the library that the kept corpus runs."""

    rooms: list[Room] = field(default_factory=list)
    not_covered: list[Line] = field(default_factory=list)
    link: str = ""


@dataclass
class PlanItem:
    phase: str  # canary, replay, fuzz, properties, races, coverage, ...
    target: str  # empty: all
    variant: str
    core_s: float  # planned
    spent_s: float = 0
    note: str = ""


@dataclass
class Report:
    """A whole campaign."""

    campaign: str
    commit: str
    subject: str  # of the commit
    host: str
    began: str
    ended: str
    minutes: float  # asked for
    jobs: int
    shard: str  # "0/1"
    seed: int
    command: str
    state: str  # finished, stopped (Ctrl-C), cut off (killed and not resumed)
    resumed: int = 0  # times it was cut off and resumed
    planted: list[str] = field(default_factory=list)  # faults switched on by --plant
    alarms: list[str] = field(default_factory=list)  # what makes the campaign itself doubtful, a sentence each
    plan: list[PlanItem] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)  # fastest to fail first, canary last
    properties: list[Property] = field(default_factory=list)
    coverage: Coverage | None = None
    not_reached: list[str] = field(default_factory=list)  # sentences

    @property
    def faults(self) -> list[Finding]:
        """The findings that somebody has to look at."""
        return [finding for finding in self.findings if not finding.is_canary]


def to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(dataclasses.asdict(value), ensure_ascii=False, indent=indent)  # type: ignore[call-overload]


def of_dict(cls: typing.Any, data: dict) -> typing.Any:
    """The dataclass of a parsed JSON object. Unknown keys are left out, so that records of a later version can be read."""
    hints = typing.get_type_hints(cls)
    known = {f.name for f in dataclasses.fields(cls)}
    return cls(**{key: _value_of(hints[key], value) for key, value in data.items() if key in known})


def _value_of(hint: typing.Any, value: typing.Any) -> typing.Any:
    inner = [arg for arg in typing.get_args(hint) if arg is not type(None)]
    if isinstance(value, list) and inner and dataclasses.is_dataclass(inner[0]):
        return [of_dict(inner[0], item) for item in value]
    if isinstance(value, dict) and (dataclasses.is_dataclass(hint) or inner):
        cls = hint if dataclasses.is_dataclass(hint) else inner[0]
        return of_dict(cls, value)
    return value


def report_of(text: str) -> Report:
    return of_dict(Report, json.loads(text))


def record_of(text: str) -> Record:
    return of_dict(Record, json.loads(text))
