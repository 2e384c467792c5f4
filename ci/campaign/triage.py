"""From failures to findings: which of them are one fault, whether it repeats, and the smallest batch that shows it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import json
import pathlib
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field

from campaign import libfuzzer
from campaign.blame import Blame, blame
from campaign.files import Failed
from campaign.jobs import Bench
from campaign.model import Finding, to_json
from campaign.process import run
from campaign.programs import VARIANTS, build_folder
from campaign.state import Failure

TRIES = 10
REDUCE_S = 60  # of one finding; a batch is down to its last request in a second
CHECK_LIMIT_S = 30
LOOKED_AT = 12  # inputs of a group that are held against the CPU path; the rest are taken to be like them
MOST_GROUPS = 40  # that are reduced and repeated in one campaign; more than that is one fault under many names
LOG_KEPT = 20000  # bytes of a log's end

_report = re.compile(r"^(?:.*: )?FINDING ", re.M)
_requests = re.compile(r"^batch (\S+)$", re.M)


@dataclass
class Group:
    blame: Blame
    failures: list[Failure] = field(default_factory=list)
    is_canary: bool = False


class Triage:
    def __init__(self, bench: Bench, findings: pathlib.Path, say: Callable[[str], None]):
        self.bench = bench
        self.findings = findings  # the folder that keeps them
        self.say = say

    # ---- grouping ----

    def groups(self) -> list[Group]:
        groups: dict[tuple[bool, str], Group] = {}
        looked_at: dict[str, list[Blame]] = {}
        for failure in self.bench.state.failures:
            told_by = self.blame_of(failure)
            is_canary = failure.phase == "canary" and told_by.kind == "invariant"
            if told_by.kind in ("invariant", "sanitizer", "crash") and failure.input:
                alike = looked_at.setdefault(f"{failure.phase} {failure.target} {told_by.key}", [])
                if len(alike) < LOOKED_AT:
                    alike.append(self.told_by_attnfuzz(failure, told_by))
                told_by = alike[-1]
            key = told_by.key if told_by.kind == "invariant" or told_by.frames else f"{told_by.key} {failure.target}"
            group = groups.setdefault((is_canary, key), Group(told_by, is_canary=is_canary))
            group.failures.append(failure)
        return list(groups.values())

    def blame_of(self, failure: Failure) -> Blame:
        if failure.phase == "replay" and not failure.input:
            return Blame("flaky", "flaky", f"{failure.target}: the same corpus reaches the same, run again", failure.target,
                         failure.note, [failure.target])
        return blame(self.log_of(failure), str(self.bench.root), failure.artifact)

    def log_of(self, failure: Failure) -> str:
        """What the log of its run says of this failure."""
        log = self.bench.folder / failure.log
        if failure.note.endswith(".log"):
            log = log.parent / failure.note
        return libfuzzer.part_of(libfuzzer.read_log(log), failure.artifact) or failure.note

    def told_by_attnfuzz(self, failure: Failure, told_by: Blame) -> Blame:
        """The first that the input is told by when all invariants are held, on the CPU path and then on the device's: what a target
        calls D1 or M2 may be a fault that C1 names as well, and code that crashes does so in whatever comes to it first.
        What breaks nothing there keeps its name."""
        path = self.bench.folder / failure.input
        for device in ([], ["--device"]) if re.match(r"D\d", told_by.id) else ([],):
            status, output = run([self.attnfuzz(failure), "check", "--quiet", *device, str(path)], path.parent, CHECK_LIMIT_S)
            if status == 1 and _report.search(output):
                again = blame(output, str(self.bench.root))
                is_of_a_kind = again.kind == "invariant" or told_by.kind != "invariant"
                if is_of_a_kind and again.kind != "timeout":
                    return again
        return told_by

    # ---- one group ----

    def attnfuzz(self, failure: Failure) -> str:
        if failure.phase == "canary":
            return self.bench.program("asan", "canary_attnfuzz")
        return self.bench.program("ubsan" if failure.variant == "ubsan" else "asan", "attnfuzz")

    def finding(self, group: Group) -> Finding:
        """Everything about a group, stored in a folder of its own."""
        first = min(group.failures, key=lambda failure: (failure.at_core_s, failure.input))
        inputs = [f for f in group.failures if f.input and (self.bench.folder / f.input).is_file()]
        smallest = min(inputs, key=lambda f: (self.bench.folder / f.input).stat().st_size, default=None)
        found = Finding(
            group.blame.id, "", group.blame.kind, group.blame.claim, group.blame.where, group.blame.difference,
            targets=sorted({f.target for f in group.failures}), variants=sorted({f.variant for f in group.failures}),
            is_canary=group.is_canary, seconds_to_fail=first.at_core_s, count=len(group.failures), frames=group.blame.frames)
        with tempfile.TemporaryDirectory(dir=self.bench.folder) as temporary:
            scratch = pathlib.Path(temporary)
            if smallest is not None:
                self.reduce(found, smallest, scratch)
            self.name(found, group)
            self.store(found, group, smallest or first, scratch)
        return found

    def reduce(self, found: Finding, failure: Failure, scratch: pathlib.Path) -> None:
        path = self.bench.folder / failure.input
        data = path.read_bytes()
        found.unshrunk = data.decode(errors="replace")
        found.requests_unshrunk = count_requests(found.unshrunk)
        if found.kind in ("slow", "memory"):
            return  # attnfuzz reduce looks for wrong answers and deaths
        on_device = re.match(r"D\d", found.id) is not None or (found.kind != "invariant" and "device" in failure.target)
        for device in ([True] if re.match(r"D\d", found.id) else [False, True] if on_device else [False]):
            command = [self.attnfuzz(failure), "reduce", str(path), "--keep-in", str(scratch), "--seconds", str(REDUCE_S)]
            status, output = run(command + ["--device"] * device, scratch, REDUCE_S + CHECK_LIMIT_S)
            reduced = next(iter(sorted(scratch.glob("reduced-*.batch"))), None)
            if status == 1 and reduced is not None:
                self.take_reduction(found, output, reduced.read_bytes().decode("utf-8", "surrogateescape"))
                return
        found.shrinking = "not reduced: attnfuzz, given this input, finds nothing"

    def take_reduction(self, found: Finding, output: str, reduced: str) -> None:
        found.reduced = reduced
        found.requests_reduced = count_requests(reduced)
        # Where the unshrunk case is, the page says itself.
        found.shrinking = _line(output, "shrunk").rpartition("; unshrunk case in")[0]
        found.where = _line(output, "where") or found.where
        found.difference = _line(output, "differs") or found.difference
        table = re.search(r"^batch(?: of step 1)?:\n(.*?)^(?:shrunk|repeat):", output, re.M | re.S)
        found.table = table[1] if table else ""
        regression = re.search(r"^regression, ready to paste:\n(.*)", output, re.M | re.S)
        found.regression = regression[1] if regression else ""

    def name(self, found: Finding, group: Group) -> None:
        """The same fault is to have the same name in every campaign: it mostly reduces to the same batch."""
        told_by = found.reduced or " ".join([group.blame.key, *([] if group.blame.frames else found.targets)])
        if group.is_canary:
            told_by = "canary"
        found.hash = hashlib.sha256(re.sub(r"^#.*\n", "", told_by, flags=re.M).encode()).hexdigest()[:8]
        prefix = "canary-" if group.is_canary else ""
        found.folder = f"{prefix}{found.id}-{found.hash}"

    def store(self, found: Finding, group: Group, shown: Failure, scratch: pathlib.Path) -> None:
        folder = scratch / "finding"
        folder.mkdir()
        found.log = libfuzzer.log_without_noise(self.log_of(shown))[-LOG_KEPT:]
        (folder / "log").write_text(found.log, encoding="utf-8")
        if shown.input:  # which may be the empty one
            shutil.copyfile(self.bench.folder / shown.input, folder / "unshrunk.batch")
        if found.reduced:
            (folder / "reduced.batch").write_bytes(found.reduced.encode("utf-8", "surrogateescape"))
            self.draw(found, folder)
        if found.regression:
            (folder / "regression.txt").write_text(found.regression, encoding="utf-8", errors="replace")
        kept = self.findings / found.folder
        first = self.first_campaign(kept)
        found.is_new = first == self.bench.state.campaign
        name = "reduced.batch" if found.reduced else "unshrunk.batch"
        found.command = self.repeat(found, shown, folder, name)
        if found.tries and not found.repeated:
            run_command = self.shown((self.bench.folder / shown.log).with_name("command"))
            found.shrinking = (f"run alone, this input passes: the fault needs what ran before it, or lies in the mutator; the run "
                               f"is in {run_command}, a word a line")
        (folder / "command").write_text(found.command + "\n", encoding="utf-8")
        (folder / "finding.json").write_text(
            json.dumps({"campaign": first, **json.loads(to_json(found))}, indent=1), encoding="utf-8")
        self.replace(folder, kept)

    def first_campaign(self, kept: pathlib.Path) -> str:
        """The campaign that had the finding first."""
        try:
            return json.loads((kept / "finding.json").read_text(encoding="utf-8")).get("campaign", "")
        except (OSError, ValueError):
            return self.bench.state.campaign

    def replace(self, folder: pathlib.Path, kept: pathlib.Path) -> None:
        """Puts the folder in its place in one step: the page shows what lies there."""
        self.findings.mkdir(parents=True, exist_ok=True)
        old = folder.with_name("old")
        # Another shard may be about to do the same.
        for _ in range(10):
            with contextlib.suppress(OSError):
                if kept.exists():
                    kept.rename(old)
                folder.rename(kept)
                return
            shutil.rmtree(old, ignore_errors=True)
        raise Failed(f"cannot put {kept} in its place")

    def draw(self, found: Finding, folder: pathlib.Path) -> None:
        command = [self.bench.program("asan", "attnfuzz"), "show", "reduced.batch", "--svg", "picture.svg"]
        run(command, folder, CHECK_LIMIT_S)
        picture = folder / "picture.svg"
        found.svg = picture.read_text(errors="replace") if picture.exists() else ""

    # ---- repeating ----

    def repeat(self, found: Finding, failure: Failure, folder: pathlib.Path, name: str) -> str:
        """Runs the input `name` of `folder` ten times, and notes how often it fails: with the target that found it, or, where that
        does not look at the smallest case closely enough, with attnfuzz. The command that does so, from the project's root."""
        kept = shlex.quote(self.shown(self.findings / found.folder / name))
        built = build_folder(VARIANTS[failure.variant], self.bench.state.planted)
        if not failure.input:
            return self.command_without_input(failure, built)
        limits = libfuzzer.limits(self.bench.max_len)
        if failure.phase not in ("properties", "races"):
            target = [self.bench.program(failure.variant, failure.target), str(folder / name), *limits]
            found.tries, found.repeated = TRIES, self.count_failures(found, target, of_target=True)
            options = {"timeout": f" -timeout={libfuzzer.INPUT_TIMEOUT_S}", "memory": f" -rss_limit_mb={libfuzzer.MEMORY_LIMIT_MIB}",
                       "slow": f" -report_slow_units={libfuzzer.SLOW_S}"}.get(found.kind, "")
            if found.repeated or not found.reduced:
                return f"{built}/fuzz/{failure.target}{options} {kept}"
        device = ["--device"] if re.match(r"D\d", found.id) else []
        check = [self.attnfuzz(failure), "check", "--quiet", *device, str(folder / name)]
        found.tries, found.repeated = TRIES, self.count_failures(found, check, of_target=False)
        variant = VARIANTS["ubsan" if failure.variant == "ubsan" else "asan"]
        return " ".join([f"{build_folder(variant, self.bench.state.planted)}/src/cli/attnfuzz check", *device, kept])

    def command_without_input(self, failure: Failure, built: str) -> str:
        """One run of a suite, or of a corpus: nothing is asked ten times."""
        if failure.phase == "races":
            return f"ATTNFUZZ_RACE_SHARE=1 {built}/properties/suites/{failure.target}"
        if failure.phase == "properties":
            log = libfuzzer.read_log(self.bench.folder / failure.log)
            used = re.search(r"^Using configuration: (.*)$", log, re.M)
            setting = f'RC_PARAMS="{used[1]}" ' if used else ""
            return f"{setting}{built}/properties/suites/{failure.target} --gtest_filter='*Property.*'"
        kept = shlex.quote(self.shown(self.bench.kept / failure.target))
        twice = "  # twice: cov and ft differ" if failure.note else ""
        return f"{built}/fuzz/{failure.target} -runs=0 {kept} corpus/seeds corpus/regressions{twice}"

    def shown(self, path: pathlib.Path) -> str:
        return str(path).removeprefix(str(self.bench.root) + "/")

    def count_failures(self, found: Finding, command: list[str], of_target: bool) -> int:
        with concurrent.futures.ThreadPoolExecutor(self.bench.state.jobs) as pool:
            return sum(pool.map(lambda _: self.fails(found, command, of_target), range(TRIES)))

    def fails(self, found: Finding, command: list[str], of_target: bool) -> bool:
        with tempfile.TemporaryDirectory(dir=self.bench.folder) as scratch:
            status, output = run(command, pathlib.Path(scratch), libfuzzer.INPUT_TIMEOUT_S + CHECK_LIMIT_S)
        if found.kind == "slow":
            executed = re.search(r"^Executed .* in (\d+) ms$", output, re.M)
            return executed is not None and int(executed[1]) >= 1000 * libfuzzer.SLOW_S
        if not of_target:
            return status == 1 or status < 0  # 2 is an input that makes no sense
        return status not in (0, 126, 127) and (status != 124 or found.kind == "timeout")

    # ---- all of them ----

    def findings_of_campaign(self) -> list[Finding]:
        state = self.bench.state
        groups = sorted(self.groups(), key=lambda group: not group.is_canary)
        found = []
        for number, group in enumerate(groups[:MOST_GROUPS], 1):
            self.say(f"looking at finding {number} of {len(groups)}: {group.blame.id}, {len(group.failures)} inputs")
            try:
                finding = self.finding(group)
            except (OSError, ValueError, Failed) as error:
                where = ", ".join(f.input or f.log for f in group.failures[:3])
                state.alarms.append(f"a finding, {group.blame.id}, could not be looked at: {error}; it is in {self.bench.folder}: {where}")
                continue
            if finding.kind == "slow" and finding.repeated == 0:
                self.say(f"{finding.targets[0]}: an input that was slow once ran fast {TRIES} times: the machine was busy")
                if finding.is_new:
                    shutil.rmtree(self.findings / finding.folder)
                continue
            found.append(finding)
        if len(groups) > MOST_GROUPS:
            state.alarms.append(f"{len(groups) - MOST_GROUPS} groups of findings more, not looked at: {self.bench.folder}/jobs has them")
        return in_order(found)


def in_order(findings: list[Finding]) -> list[Finding]:
    """Fastest to fail first, the canary last."""
    return sorted(findings, key=lambda finding: (finding.is_canary, finding.seconds_to_fail))


def count_requests(text: str) -> int:
    """Requests in the text form of a case, of all its steps. Raw offsets count as what they are."""
    count = 0
    for batch in _requests.findall(text):
        for segment in batch.split("_"):
            number = re.match(r"(\d*)q", segment)
            count += int(number[1] or 1) if number else 0
    return count


def _line(text: str, name: str) -> str:
    found = re.search(rf"^{name}: +(.*)$", text, re.M)
    return found[1] if found else ""
