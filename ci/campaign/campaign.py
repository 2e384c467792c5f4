"""A campaign from its first job to its last: what runs next, on which core, until when."""

from __future__ import annotations

import calendar
import contextlib
import pathlib
import shutil
import signal
import time
from collections import Counter

from campaign import corpus, jobs, plan
from campaign.files import need_room
from campaign.jobs import Bench, Job
from campaign.process import end_all
from campaign.programs import RACE_SUITES, SUITES
from campaign.terminal import Terminal, duration

POLL_S = 0.2
SAVE_EVERY_S = 5
FIRST_CASES = 200  # of a property: what a case takes is not known yet
LONGEST_SUITE_S = 120.0


class Campaign:
    def __init__(self, bench: Bench, built: list[str], terminal: Terminal):
        self.bench = bench
        self.state = bench.state
        self.built = built
        self.terminal = terminal
        self.running: list[Job] = []
        self.queue: list[Job] = []
        self.interrupted = False
        self._began = time.monotonic() - self.state.elapsed_s
        self._saved = 0.0
        self._case_s: dict[str, float] = {}  # core-seconds a case of a suite takes
        self._cases: dict[str, int] = {}  # of its last run
        self._suite_turn = 0
        self._told_of_lock = 0.0

    # ---- time ----

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    @property
    def total_s(self) -> float:
        return self.state.minutes * 60

    @property
    def fuzz_until_s(self) -> float:
        closing = sum(item.core_s for item in self.state.plan if item.phase == "closing")
        return self.total_s - closing / self.state.jobs

    # ---- what runs next ----

    def queue_first_jobs(self) -> None:
        state = self.state
        todo: list[Job] = [jobs.Canary()]
        for target in state.targets:
            if not target.error:
                todo += [jobs.Replay(target.name, 1), jobs.Replay(target.name, 2)]
        if any(item.phase == "races" and item.core_s > 0 for item in state.plan):
            todo += [jobs.Races(suite) for suite in RACE_SUITES]
        # What was found by another variant when the campaign was cut off.
        for found in sorted((self.bench.folder / "jobs").glob("*/found")):
            name = "fuzz_" + found.parent.name.split("-")[2]
            if corpus.plain_files(found) and any(target.name == name for target in state.targets):
                todo.append(jobs.Absorb(name, found))
        self.queue = [job for job in todo if job.once not in state.done or not job.once]

    def queue_closing_jobs(self) -> None:
        self.state.closing = True
        self.state.save(self.bench.folder)
        todo: list[Job] = [jobs.Merge(target.name) for target in self.state.targets]
        if self.counts_lines:
            todo += [jobs.Lines(target.name) for target in self.state.targets]
        self.queue += [job for job in todo if job.once not in self.state.done]

    @property
    def counts_lines(self) -> bool:
        return "coverage" in self.built

    def _blocked(self, job: Job) -> bool:
        """Whether it has to wait for one in front of it."""
        active = {(other.phase, other.target) for other in self.running}
        if isinstance(job, jobs.Replay) and job.turn == 2:
            return f"replay {job.target} 1" not in self.state.done
        if isinstance(job, jobs.Merge):
            return ("absorb", job.target) in active or any(j.phase == "absorb" and j.target == job.target for j in self.queue)
        if isinstance(job, jobs.Lines):
            return f"merge {job.target}" not in self.state.done
        if isinstance(job, jobs.Absorb):
            return (job.phase, job.target) in active
        return False

    def next_job(self) -> Job | None:
        for queued in self.queue:
            if not self._blocked(queued) and queued.ready(self.bench):
                self.queue.remove(queued)
                return queued
        if self.state.closing:
            return None
        left_s = self.fuzz_until_s - self.elapsed_s
        if self.interrupted or left_s < plan.LEAST_SLICE_S:
            return None
        return self._properties(left_s) or self._fuzz(left_s)

    def _properties(self, left_s: float) -> Job | None:
        """The next suite, when the properties are behind their share of the time."""
        item = next(item for item in self.state.plan if item.phase == "properties")
        due = item.core_s * min(1.0, (self.elapsed_s + 1) / self.fuzz_until_s)
        if any(job.phase == "properties" for job in self.running) or item.spent_s >= due:
            return None
        suite = SUITES[self._suite_turn % len(SUITES)]
        self._suite_turn += 1
        seconds = min(LONGEST_SUITE_S, left_s / 2, item.core_s / 4)
        each = self._case_s.get(suite)
        # Not many times more than last time: that may have been a lucky one.
        cases = min(max(20, round(seconds / each)), 10 * self._cases[suite]) if each else FIRST_CASES
        return jobs.Properties(suite, cases, seconds)

    def _fuzz(self, left_s: float) -> Job | None:
        busy = Counter(job.target for job in self.running if job.phase == "fuzz")
        waiting = {job.target for job in self.queue + self.running if job.phase in ("replay", "absorb")}
        target = plan.choose_target(self.state, waiting, busy)
        if target is None:
            return None
        variant = plan.variant_of_turn(target.slices + busy[target.name], self.built)
        return jobs.Fuzz(target.name, variant, min(plan.slice_s(self.state, target), left_s))

    # ---- the loop ----

    def run(self) -> None:
        """All phases; returns when everything is done or stopped."""
        self.queue_first_jobs()
        try:
            with self._signals():
                self._loop()
                if self.interrupted:
                    self._stop()
                self.queue_closing_jobs()
                # A second Ctrl-C ends the closing, too.
                self.interrupted, was_interrupted = False, self.interrupted
                self._loop()
                if self.interrupted:
                    self._stop()
                self.interrupted = self.interrupted or was_interrupted
        finally:
            end_all([job.process for job in self.running if job.process])
            self.terminal.done()

    def run_closing(self) -> None:
        """The last phase alone: corpora that others made are merged, and their lines counted."""
        try:
            with self._signals():
                self.queue_closing_jobs()
                self._loop()
                if self.interrupted:
                    self._stop()
        finally:
            end_all([job.process for job in self.running if job.process])
            self.terminal.done()

    def _loop(self) -> None:
        """Until there is nothing left to start, or somebody interrupts."""
        while True:
            for job in [job for job in self.running if job.poll(self.bench)]:
                self._close(job)
            while len(self.running) < self.state.jobs and not self.interrupted:
                following = self.next_job()
                if following is None:
                    break
                following.start(self.bench)
                self.running.append(following)
            if not self.running and not self._waits_for_lock():
                return
            if self.interrupted:
                return
            self._tick()
            time.sleep(POLL_S)

    def _waits_for_lock(self) -> bool:
        """Whether what is queued only waits for another machine's merge."""
        return any(isinstance(job, jobs.Merge) for job in self.queue)

    def _tick(self) -> None:
        now = self.elapsed_s
        names = [f"{job.phase} {job.target.removeprefix('fuzz_')} {job.variant}" for job in self.running]
        self.terminal.show(self.state, now, self.total_s, names)
        if now - self._saved < SAVE_EVERY_S:
            return
        self._saved = now
        self.state.elapsed_s = now
        self.state.save(self.bench.folder)
        # Not to be closed on a full disk: started again, when there is room, it goes on.
        need_room(self.bench.folder)
        need_room(self.bench.kept)
        locks = [job.lock.owner() for job in self.queue if isinstance(job, jobs.Merge) and job.lock]
        if locks and not self.running and now - self._told_of_lock > 60:
            self._told_of_lock = now
            self.terminal.line(f"waiting for the corpus, which another run is merging ({locks[0]})")

    def _close(self, job: Job) -> None:
        self.running.remove(job)
        record = job.close(self.bench)
        if isinstance(job, jobs.Fuzz) and job.variant != "asan" and corpus.plain_files(job.folder / "found"):
            self.queue.append(jobs.Absorb(job.target, job.folder / "found"))
        if isinstance(job, jobs.Replay) and job.again:
            self.queue.insert(0, jobs.Replay(job.target, job.turn))
        if isinstance(job, jobs.Absorb) and job.was_stopped and corpus.plain_files(job.found):
            self.queue.append(jobs.Absorb(job.target, job.found))
        if isinstance(job, jobs.Properties) and record.result == "ok" and record.seconds > 0:
            self._case_s[job.target], self._cases[job.target] = record.seconds / job.cases, job.cases
        is_worth_a_line = not self.terminal.is_terminal and not isinstance(job, jobs.Absorb)
        if is_worth_a_line or record.result in ("finding", "error"):
            self.terminal.line(_line_of(record, self.elapsed_s))

    def _stop(self) -> None:
        """Ends what runs, and books it."""
        self.terminal.line("stopping; what was found so far is kept")
        for job in self.running:
            job.was_stopped = "stopped"
        end_all([job.process for job in self.running if job.process])
        for job in list(self.running):
            self._close(job)
        self.queue = [job for job in self.queue if job.phase == "absorb"]

    @contextlib.contextmanager
    def _signals(self):
        def on_signal(number, frame):
            self.interrupted = True

        # What nohup had ignored stays ignored.
        numbers = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
        before = {number: signal.signal(number, on_signal) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _line_of(record, elapsed_s: float) -> str:
    reached = f", {record.executions} executions, {record.features} features, {record.corpus} in the corpus" if record.executions else ""
    return (f"{duration(elapsed_s):>12}  {record.kind + ' ' + record.target:<30} {record.variant:<9} {record.result:<8} "
            f"{record.seconds:.1f} s{reached}")


# ---- what a campaign that was cut off left behind ----


def account_for_flights(bench: Bench) -> int:
    """Books the jobs that were under way when the campaign was killed: their time, their inputs, what they found."""
    count = 0
    for target in bench.state.targets:
        # The corpus may be another one by now: both replays, or none.
        if f"replay {target.name} 2" not in bench.state.done and f"replay {target.name} 1" in bench.state.done:
            bench.state.done.remove(f"replay {target.name} 1")
            bench.state.replays.pop(f"{target.name} 1", None)
    for flight in list(bench.state.flights):
        folder = bench.folder / "jobs" / flight.folder
        if flight.phase == "absorb":
            bench.state.flights.remove(flight)  # what it was to look through is still there, and is queued again
            continue
        job = _job_of(flight)
        job.folder, job.seed, job.flight, job.was_stopped = folder, flight.seed, flight, "cut off"
        job.core_s_before = next((t.core_s for t in bench.state.targets if t.name == flight.target), 0.0)
        if not job.log.exists():
            bench.state.flights.remove(flight)
            continue
        seconds = max(0.0, job.log.stat().st_mtime - _seconds_of(flight.began))
        try:
            job.account(bench, -9, min(seconds, flight.limit_s + jobs.OVERDUE_S))
        except (OSError, ValueError) as error:
            bench.state.alarms.append(f"{flight.folder}, cut off, could not be accounted for: {error}")
            bench.state.flights.remove(flight)
            continue
        count += 1
    return count


def _seconds_of(utc: str) -> float:
    return calendar.timegm(time.strptime(utc, "%Y-%m-%dT%H:%M:%SZ"))


def _job_of(flight) -> Job:
    kinds = {
        "fuzz": lambda: jobs.Fuzz(flight.target, flight.variant, flight.limit_s),
        "replay": lambda: jobs.Replay(flight.target, 1),
        "canary": jobs.Canary,
        "properties": lambda: jobs.Properties(flight.target, FIRST_CASES, flight.limit_s),
        "races": lambda: jobs.Races(flight.target),
        "merge": lambda: jobs.Merge(flight.target),
        "lines": lambda: jobs.Lines(flight.target),
    }
    return kinds[flight.phase]()


def rescue(bench: Bench) -> None:
    """Puts into the kept corpus what no merge has come to."""
    for target in bench.state.targets:
        if f"merge {target.name}" not in bench.state.done:
            kept = corpus.folder_of(bench.kept, target.name)
            corpus.take_in(bench.work(target.name), kept)
            for found in (bench.folder / "jobs").glob(f"*-fuzz-{target.name.removeprefix('fuzz_')}-*/found"):
                corpus.take_in(found, kept)


def clean_up(folder: pathlib.Path) -> None:
    """What a finished campaign needs no longer: its programs, its working corpora (they are merged), logs of what went well."""
    for name in ("bin", "work", "profiles"):
        shutil.rmtree(folder / name, ignore_errors=True)
