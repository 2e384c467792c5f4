"""The kinds of runs a campaign is made of. A job is one process in a folder of its own; what it leaves there is enough to
account for it when the campaign is killed before the job ends."""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import shutil
import time
from dataclasses import dataclass

from campaign import corpus, libfuzzer, suites
from campaign.blame import Blame, blame
from campaign.files import Failed, Lock, add_input, append_record, plain_files, sha1
from campaign.model import Record, Sample
from campaign.process import Process
from campaign.programs import RACE_SUITES
from campaign.state import Failure, Flight, Progress, State

OVERDUE_S = 60  # a process still there so long after its time hangs outside of an input, which nobody reports
SUITE_LIMIT_S = 1800
MOST_FAILURES = 30  # of a target in one campaign: the same fault over and over by then
MOST_USELESS = 8  # runs in a row that failed at once
MOST_ERRORS = 3  # runs of a target that ended badly without a finding: one may be the machine's fault
MOST_LOG = 256 << 20  # bytes; whoever writes more is out of control
ENOUGH = 3  # failures of one invariant by one target: from then on it is muted there, so that others are found
SAMPLE_EVERY_S = 2


@dataclass
class Bench:
    """What jobs work with: the folders of the campaign, and what it knows."""

    root: pathlib.Path
    folder: pathlib.Path  # of this campaign
    kept: pathlib.Path  # the corpus that stays
    records: pathlib.Path
    state: State
    max_len: int
    seeds: random.Random

    def program(self, variant: str, name: str) -> str:
        return str(self.folder / "bin" / variant / name)

    def work(self, target: str) -> pathlib.Path:
        return self.folder / "work" / target


class Job:
    phase = ""
    plan_phase = ""  # where the plan has it under another name
    once = ""  # under this name it is done once a campaign
    limit_s = 600.0

    def __init__(self, target: str, variant: str):
        self.target = target
        self.variant = variant
        self.seed = 0
        self.process: Process | None = None
        self.folder = pathlib.Path()
        self.began = 0.0
        self.core_s_before = 0.0
        self.was_stopped = ""  # why it did not end by itself: stopped, cut off (with the campaign), overdue, flooding
        self.ids: list[str] = []  # of what it found

    # ---- what kinds of jobs differ in ----

    def command(self, bench: Bench) -> list[str]:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return {}

    def ready(self, bench: Bench) -> bool:
        return True

    def plan_item(self, bench: Bench) -> tuple[str, str]:
        """Phase and target of the plan's item that the time is booked on."""
        return self.plan_phase or self.phase, ""

    def ended(self, bench: Bench, status: int, seconds: float) -> str:
        """Takes in what the run left; its result: ok, finding, error."""
        raise NotImplementedError

    def links(self, bench: Bench) -> dict[str, pathlib.Path]:
        """Folders that the command names by a short name: libFuzzer's merge hands its arguments to a shell unquoted."""
        return {}

    # ---- what they have in common ----

    @property
    def is_recorded(self) -> bool:
        """Whether records.jsonl has a line of it: what it did was look for faults."""
        return self.plan_phase == ""

    @property
    def log(self) -> pathlib.Path:
        return self.folder / "log"

    def start(self, bench: Bench) -> None:
        state = bench.state
        self.seed = bench.seeds.randrange(1, 1 << 31)
        self.folder = bench.folder / "jobs" / f"{state.next_job:05}-{self.phase}-{self.target.removeprefix('fuzz_')}-{self.variant}"
        shutil.rmtree(self.folder, ignore_errors=True)
        for name in ("artifacts", "found", "tmp"):
            (self.folder / name).mkdir(parents=True)
        state.next_job += 1
        self.flight = Flight(self.folder.name, self.phase, self.target, self.variant, self.seed, utc_now(), self.limit_s)
        state.flights.append(self.flight)
        state.save(bench.folder)
        progress = next((target for target in state.targets if target.name == self.target), None)
        self.core_s_before = progress.core_s if progress else 0.0
        for name, there in self.links(bench).items():
            (self.folder / name).symlink_to(there)
        self.began = time.monotonic()
        muted = {"ATTNFUZZ_MUTE": " ".join(self.muted(bench))} if self.muted(bench) else {}
        environment = {"TMPDIR": "tmp", **muted, **self.environment()}
        command = self.command(bench)
        (self.folder / "command").write_text("\n".join(command) + "\n", encoding="utf-8")
        self.process = Process(command, self.folder, self.log, environment)

    def muted(self, bench: Bench) -> list[str]:
        return next((target.muted for target in bench.state.targets if target.name == self.target), [])

    def poll(self, bench: Bench) -> bool:
        """Whether it is over."""
        assert self.process is not None
        if self.process.status() is not None:
            return True
        if time.monotonic() - self.began > self.limit_s + OVERDUE_S:
            self.was_stopped = "overdue"
            self.process.kill()
            return True
        if self.log.stat().st_size > MOST_LOG:
            self.was_stopped = "flooding"
            self.process.kill()
            return True
        self.watch(bench)
        return False

    @property
    def was_ended(self) -> bool:
        """Whether it was the campaign's end that ended it."""
        return self.was_stopped in ("stopped", "cut off")

    def watch(self, bench: Bench) -> None:
        pass

    def close(self, bench: Bench) -> Record:
        assert self.process is not None
        status = self.process.status()
        seconds = time.monotonic() - self.began
        return self.account(bench, status if status is not None else -9, seconds)

    def account(self, bench: Bench, status: int, seconds: float) -> Record:
        """Books a run that is over, or was cut off."""
        state = bench.state
        result = self.ended(bench, status, seconds)
        state.spend(*self.plan_item(bench), seconds)
        state.flights = [flight for flight in state.flights if flight.folder != self.folder.name]
        if self.once and result != "stopped":
            state.done.append(self.once)
        record = self.record(bench, result, seconds)
        # In this order: a kill between the two has it written twice, which a reader sees, and not lost.
        if self.is_recorded:
            append_record(bench.records, record)
        state.save(bench.folder)
        shutil.rmtree(self.folder / "tmp", ignore_errors=True)
        return record

    def record(self, bench: Bench, result: str, seconds: float) -> Record:
        state = bench.state
        status = libfuzzer.read_status(self.log) or libfuzzer.Status()
        executions = libfuzzer.final_executions(self.log) or status.executions
        return Record(state.campaign, self.flight.began, state.commit, self.phase, self.target, self.variant, self.seed,
                      round(seconds, 1), executions, status.features, status.edges, status.corpus, result,
                      sorted(set(self.ids)))

    def fail(self, bench: Bench, input_path: pathlib.Path | None, at_core_s: float, told: Blame, artifact: str = "",
             note: str = "") -> None:
        self.ids.append(told.id)
        path = str(input_path.relative_to(bench.folder)) if input_path else ""
        bench.state.failures.append(
            Failure(self.phase, self.target, self.variant, str(self.log.relative_to(bench.folder)), path, round(at_core_s, 2),
                    artifact, note))

    def died(self, bench: Bench, status: int, seconds: float) -> str:
        """A run that ended badly and left no input. One that reports something all the same has found it."""
        told = blame(libfuzzer.read_log(self.log), str(bench.root))
        if told.kind in ("invariant", "sanitizer", "race"):
            self.fail(bench, None, self.core_s_before + seconds, told)
            return "finding"
        why = {"overdue": f"did not stop {OVERDUE_S} s after its time and was killed", "flooding": "filled its log and was killed"}
        return self.error(bench, why.get(self.was_stopped, f"ended with status {status} and left no input"))

    def error(self, bench: Bench, what: str) -> str:
        bench.state.alarms.append(f"{self.phase} {self.target} ({self.variant}): {what}; log: {self.log}")
        return "error"

    def take_artifacts(self, bench: Bench, seconds: float) -> int:
        """Books the inputs libFuzzer says it wrote, and takes them out of the working corpus, which would end every later run at
        its start. The number of those that fail: slow ones only cost time."""
        text, count = libfuzzer.read_log(self.log), 0
        booked = {failure.artifact for failure in bench.state.failures if failure.target == self.target}
        for name in libfuzzer.artifacts(text):
            path = self.folder / name
            if not path.is_file():
                self.error(bench, f"it found something, but {name} could not be written")
                continue
            is_slow = path.name.startswith("slow-unit")
            count += not is_slow
            # A merge goes on behind each that fails: what is behind so many is more of the same.
            if path.name in booked or count > MOST_FAILURES:
                continue
            # When it failed is when the file was written, as far as files know.
            at = self.core_s_before + max(0.0, min(seconds, path.stat().st_mtime - self.log_began(seconds)))
            told = blame(libfuzzer.part_of(text, path.name), str(bench.root), path.name)
            self.fail(bench, path, at, told, path.name)
            self.mute(bench, told)
            if not is_slow:
                (bench.work(self.target) / sha1(path.read_bytes())).unlink(missing_ok=True)
        return count

    def mute(self, bench: Bench, told: Blame) -> None:
        """Counts what an invariant has found; when that is enough, later runs of the target go on past it."""
        target = next((target for target in bench.state.targets if target.name == self.target), None)
        if target is None or told.kind != "invariant":
            return
        target.found[told.id] = target.found.get(told.id, 0) + 1
        if target.found[told.id] >= ENOUGH and told.id not in target.muted:
            target.muted.append(told.id)
            target.useless = 0

    def log_began(self, seconds: float) -> float:
        return time.time() - seconds if self.process is not None else self.log.stat().st_mtime - seconds


def utc_now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class Fuzz(Job):
    phase = "fuzz"

    def __init__(self, target: str, variant: str, seconds: float):
        super().__init__(target, variant)
        self.limit_s = seconds
        self.last_sample = 0.0

    def command(self, bench: Bench) -> list[str]:
        # Inputs that only another variant finds new go to a folder of their own: they are looked through afterwards.
        folders = [str(bench.work(self.target))]
        if self.variant != "asan":
            folders.insert(0, "found")
        values = ["-use_value_profile=1"] if self.variant == "plain" else []
        return [bench.program(self.variant, self.target), *folders, *values,
                *libfuzzer.fuzz_options(self.limit_s, self.seed, bench.max_len)]

    def watch(self, bench: Bench) -> None:
        now = time.monotonic() - self.began
        if now - self.last_sample < SAMPLE_EVERY_S:
            return
        self.last_sample = now
        status = libfuzzer.read_status(self.log)
        if status is None:
            return
        target = bench.state.of(self.target)
        # Early status lines have no rate yet.
        target.rate = status.rate or round(status.executions / now)
        if self.variant == "asan":
            self.measure(target, status, self.core_s_before + now)

    def measure(self, target: Progress, status: libfuzzer.Status, core_s: float) -> None:
        if status.features > target.features:
            target.last_new_core_s = core_s
        target.features = max(target.features, status.features)
        target.edges = max(target.edges, status.edges)
        target.corpus = status.corpus
        target.add_sample(Sample(round(core_s, 1), target.executions + status.executions, target.rate, target.features,
                                 target.edges, target.corpus))

    def ended(self, bench: Bench, status: int, seconds: float) -> str:
        target = bench.state.of(self.target)
        last = libfuzzer.read_status(self.log) or libfuzzer.Status()
        executions = libfuzzer.final_executions(self.log) or last.executions
        target.core_s += seconds
        if self.variant == "asan" and last.features:
            if seconds > 1:
                target.rate = round(executions / seconds)
            last.executions = executions
            self.measure(target, last, target.core_s)
            self.judge_growth(target)
        target.executions += executions
        target.slices += 1
        count = self.take_artifacts(bench, seconds)
        if count:
            target.failures += count
            target.useless = target.useless + 1 if seconds < 2 else 0
            if target.failures >= MOST_FAILURES or target.useless >= MOST_USELESS:
                target.error = f"left alone after {target.failures} failures"
            return "finding"
        target.useless = 0
        return self.judge(bench, target, status, executions, seconds)

    def judge_growth(self, target: Progress) -> None:
        """Features a core-second since it was judged last, the newest counting half. The first time says nothing: the features are
        those of the seeds."""
        span = target.core_s - target.measured_core_s
        if target.measured_features > 0 and span > 0:
            rate = (target.features - target.measured_features) / span
            target.growth = rate if target.growth < 0 else (target.growth + rate) / 2
        target.measured_core_s, target.measured_features = target.core_s, target.features

    def plan_item(self, bench: Bench) -> tuple[str, str]:
        floor = sum(item.core_s for item in bench.state.plan if item.phase == "fuzz" and item.target == self.target)
        return ("fuzz", self.target) if self.core_s_before < floor else ("growth", "")

    def judge(self, bench: Bench, target: Progress, status: int, executions: int, seconds: float) -> str:
        if self.was_ended:
            return "stopped"
        if status != 0 or self.was_stopped:
            target.errors += 1
            if target.errors >= MOST_ERRORS:
                target.error = f"left alone after {target.errors} runs that ended badly"
            return self.died(bench, status, seconds)
        return "ok" if executions else self.error(bench, "ended without running a single input")


class Absorb(Job):
    """Brings what another variant found to the working corpus: what is new with AddressSanitizer's build, too."""

    phase = "absorb"
    plan_phase = "closing"

    def __init__(self, target: str, found: pathlib.Path):
        super().__init__(target, "asan")
        self.found = found
        self.copied: set[str] = set()

    def links(self, bench: Bench) -> dict[str, pathlib.Path]:
        return {"bin": bench.folder / "bin", "other": self.found}

    def command(self, bench: Bench) -> list[str]:
        # Into a copy: a run that is under way replaces files of the working corpus by smaller ones, and libFuzzer's merge
        # gives up on a file that is gone.
        copy = self.folder / "copy"
        copy.mkdir()
        for path in plain_files(bench.work(self.target)):
            with contextlib.suppress(FileNotFoundError):
                os.link(path, copy / path.name)
        self.copied = {path.name for path in plain_files(copy)}
        return [f"bin/asan/{self.target}", "-merge=1", "copy", "other", "-artifact_prefix=artifacts/",
                *libfuzzer.limits(bench.max_len)]

    def ended(self, bench: Bench, status: int, seconds: float) -> str:
        count = self.take_artifacts(bench, seconds)
        if self.was_ended:
            return "stopped"  # what was found is still there, and looked through later
        text = libfuzzer.read_log(self.log)
        new = [path for path in plain_files(self.folder / "copy") if path.name not in self.copied]
        whole = status == 0 and libfuzzer.merged_files(text) == len(new) and all(sha1(p.read_bytes()) == p.name for p in new)
        for path in new if whole else plain_files(self.found):
            add_input(bench.work(self.target), path.read_bytes())
        shutil.rmtree(self.folder / "copy", ignore_errors=True)
        shutil.rmtree(self.found, ignore_errors=True)
        if not whole:
            return self.error(bench, f"merging ended with {status}; everything is kept")
        return "finding" if count else "ok"


class Replay(Job):
    """Runs the whole corpus, and notes what it reaches. The second time has to reach the same."""

    phase = "replay"

    def __init__(self, target: str, turn: int):
        super().__init__(target, "asan")
        self.turn = turn
        self.once = f"replay {target} {turn}"
        self.again = False

    def command(self, bench: Bench) -> list[str]:
        return [bench.program("asan", self.target), "-runs=0", "found", str(bench.work(self.target)),
                "-artifact_prefix=artifacts/", *libfuzzer.limits(bench.max_len)]

    def ended(self, bench: Bench, status: int, seconds: float) -> str:
        if self.take_artifacts(bench, seconds):
            target = bench.state.of(self.target)
            target.failures += 1
            # Without that input the rest can run, but not for ever.
            self.again = target.failures < MOST_FAILURES
            if self.again:
                self.once = ""
            return "finding"
        if self.was_ended:
            return "stopped"
        if status != 0:
            return self.died(bench, status, seconds)
        last = libfuzzer.read_status(self.log) or libfuzzer.Status()
        reached = f"{last.edges} edges, {last.features} features"
        bench.state.replays[f"{self.target} {self.turn}"] = reached
        first = bench.state.replays.get(f"{self.target} 1", reached)
        if reached != first:
            self.fail(bench, None, 0, Blame("flaky", "flaky", ""), note=f"the corpus reached {first}, and run again {reached}")
            return "finding"
        return "ok"


class Canary(Job):
    phase = "canary"
    once = "canary"
    limit_s = 30

    def __init__(self) -> None:
        super().__init__("fuzz_canary", "asan")

    def command(self, bench: Bench) -> list[str]:
        # From nothing: the engine and the mutator have to get there.
        return [bench.program("asan", self.target), "found", *libfuzzer.fuzz_options(self.limit_s, self.seed, bench.max_len)]

    def ended(self, bench: Bench, status: int, seconds: float) -> str:
        if self.take_artifacts(bench, seconds):
            return "finding"
        return "stopped" if self.was_ended else "error"


class Suite(Job):
    """A suite under GoogleTest."""

    def ended(self, bench: Bench, status: int, seconds: float) -> str:
        text = libfuzzer.read_log(self.log)
        if status == 0:
            # A filter that matches nothing ends well, too.
            return "ok" if suites.passed(text) else self.error(bench, "no test ran")
        # What is under way when it is ended has not failed.
        found = self.take_failures(bench, text, seconds, also_unfinished=not self.was_stopped)
        if found:
            return "finding"
        return "stopped" if self.was_ended else self.died(bench, status, seconds)

    def take_failures(self, bench: Bench, text: str, seconds: float, also_unfinished: bool) -> int:
        """Books the cases that failed, by the files that properties write before they shrink one; races; and tests that failed
        without either."""
        failed = suites.failed_tests(text, also_unfinished)
        reports: list[tuple[pathlib.Path | None, str]] = [(None, race) for race in suites.races(text)[:MOST_FAILURES]]
        for test, part in suites.parts(text):
            if test not in failed:
                continue
            kept = [(self.folder / name, report) for name, report in suites.kept_cases(part) if (self.folder / name).is_file()]
            reports += kept
            if not kept and not suites.races(part):
                reports.append((None, f"[ RUN      ] {test}{part}\n[  FAILED  ] {test}\n"))
        for number, (path, report) in enumerate(reports, 1):
            (self.folder / f"failure-{number}.log").write_text(report, encoding="utf-8")
            self.fail(bench, path, seconds, blame(report, str(bench.root)), note=f"failure-{number}.log")
        return len(reports)


class Properties(Suite):
    phase = "properties"

    def __init__(self, suite: str, cases: int, seconds: float):
        super().__init__(suite, "test")
        self.cases = cases
        self.limit_s = 3 * seconds + OVERDUE_S

    def command(self, bench: Bench) -> list[str]:
        # The other tests of the suite are the same every time: ci/test has them.
        return [bench.program("test", self.target), "--gtest_filter=*Property.*"]

    def environment(self) -> dict[str, str]:
        return suites.parameters(self.seed, self.cases)

    def ended(self, bench: Bench, status: int, seconds: float) -> str:
        result = super().ended(bench, status, seconds)
        found = suites.properties_of(libfuzzer.read_log(self.log), self.target, self.seed)
        if self.was_stopped:
            found = [p for p in found if p.result != "error"]
        names = {p.name for p in found}
        bench.state.properties = [p for p in bench.state.properties if p.suite != self.target or p.name not in names] + found
        return result

    def record(self, bench: Bench, result: str, seconds: float) -> Record:
        record = super().record(bench, result, seconds)
        mine = [p for p in bench.state.properties if p.suite == self.target and p.seed == self.seed]
        record.executions = sum(p.cases for p in mine)
        return record


class Races(Suite):
    """A suite of the device path under ThreadSanitizer, on the whole corpus."""

    phase = "races"
    limit_s = SUITE_LIMIT_S

    def __init__(self, suite: str):
        super().__init__(suite, "tsan")
        self.once = f"races {suite}"
        assert suite in RACE_SUITES

    def command(self, bench: Bench) -> list[str]:
        return [bench.program("tsan", self.target)]

    def environment(self) -> dict[str, str]:
        return {"ATTNFUZZ_RACE_SHARE": "1", **suites.parameters(self.seed, 30)}


class Merge(Job):
    """Chooses the fewest inputs that reach what all of them reach, and makes them the kept corpus."""

    phase = "merge"
    plan_phase = "closing"
    limit_s = 3600

    def __init__(self, target: str):
        super().__init__(target, "asan")
        self.once = f"merge {target}"
        self.lock: Lock | None = None
        self.considered: set[str] = set()

    def ready(self, bench: Bench) -> bool:
        self.lock = self.lock or corpus.lock_of(bench.kept, self.target)
        return self.lock.try_take()

    def links(self, bench: Bench) -> dict[str, pathlib.Path]:
        kept = corpus.folder_of(bench.kept, self.target)
        kept.mkdir(parents=True, exist_ok=True)
        return {"bin": bench.folder / "bin", "work": bench.work(self.target), "kept": kept}

    def command(self, bench: Bench) -> list[str]:
        self.considered = {path.name for path in plain_files(self.folder / "kept")}
        (self.folder / "cover").mkdir()
        return [f"bin/asan/{self.target}", "-set_cover_merge=1", "cover", "work", "kept", "-artifact_prefix=artifacts/",
                *libfuzzer.limits(bench.max_len)]

    def ended(self, bench: Bench, status: int, seconds: float) -> str:
        try:
            return self.keep(bench, status, seconds)
        finally:
            if self.lock:
                self.lock.release()
                self.lock = None

    def keep(self, bench: Bench, status: int, seconds: float) -> str:
        kept, cover = corpus.folder_of(bench.kept, self.target), self.folder / "cover"
        if self.was_ended:
            return "stopped"
        count = self.take_artifacts(bench, seconds)
        promised = libfuzzer.merged_files(libfuzzer.read_log(self.log))
        # With inputs that fail the choice was made from less than there is.
        failing = count > 0 or bench.state.of(self.target).failures > 0
        try:
            if status != 0 or promised is None:
                raise Failed(f"merging ended with {status}")
            if promised == 0 and plain_files(bench.work(self.target)):
                raise Failed("the merge chose nothing")
            corpus.replace(kept, cover, promised, self.considered, may_drop=not failing)
        except Failed as why:
            # Whatever went wrong, nothing is to be lost by it.
            corpus.take_in(bench.work(self.target), kept)
            return self.error(bench, f"{why}; everything is kept")
        shutil.rmtree(cover, ignore_errors=True)
        return "finding" if count else "ok"


class Lines(Job):
    """The kept corpus on the build that counts lines."""

    phase = "lines"
    plan_phase = "closing"
    limit_s = 1800

    def __init__(self, target: str):
        super().__init__(target, "coverage")
        self.once = f"lines {target}"

    def command(self, bench: Bench) -> list[str]:
        inputs = self.folder / "inputs"
        inputs.mkdir()
        failing = {failure.artifact.rpartition("-")[2] for failure in bench.state.failures}
        for path in plain_files(corpus.folder_of(bench.kept, self.target)):
            # A process that dies counts nothing.
            if path.name not in failing:
                shutil.copyfile(path, inputs / path.name)
        return [bench.program("coverage", self.target), "-runs=0", "inputs", "-artifact_prefix=artifacts/",
                *libfuzzer.limits(bench.max_len)]

    def environment(self) -> dict[str, str]:
        return {"LLVM_PROFILE_FILE": str(self.folder.parent.parent / "profiles" / f"{self.target}.profraw")}

    def ended(self, bench: Bench, status: int, seconds: float) -> str:
        shutil.rmtree(self.folder / "inputs", ignore_errors=True)
        if status == 0:
            return "ok"
        if self.was_ended:
            return "stopped"
        if self.take_artifacts(bench, seconds):
            return "finding"
        return self.died(bench, status, seconds)
