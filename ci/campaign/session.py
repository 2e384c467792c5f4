"""What a night and a merge have in common: where they are, whose turn it is, and how they end."""

from __future__ import annotations

import os
import pathlib
import subprocess
import time

from campaign import corpus, page, programs
from campaign.files import Failed, Lock, sha1, write_whole
from campaign.jobs import Bench
from campaign.model import Report, to_json

ROOT = pathlib.Path(__file__).resolve().parents[2]
NO_FINDING, FINDINGS, NOT_DONE, INTERRUPTED = 0, 1, 2, 130


def say(text: str) -> None:
    print(f"ci/nightly: {text}", flush=True)


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def commit() -> tuple[str, str]:
    """Hash and subject; of a tree that was changed "+" and a hash of the changes behind it."""
    found = git("rev-parse", "HEAD")
    if not found:
        return "unknown", ""
    changes = git("diff", "HEAD")
    return found + (f"+{sha1(changes.encode())[:8]}" if changes else ""), git("log", "-1", "--format=%s")


def wait_for(lock: Lock, what: str) -> Lock:
    told = False
    while not lock.try_take():
        if not told:
            say(f"waiting for {what} ({lock.owner()})")
            told = True
        time.sleep(1)
    return lock


def take_lock(out: pathlib.Path, index: int, total: int, wait: bool) -> Lock:
    """One run a shard in a folder."""
    lock = Lock(out / f".run-{index}-of-{total}.lock")
    if wait:
        return wait_for(lock, f"another run in {out}")
    if not lock.try_take():
        raise Failed(f"another run has {out} ({lock.owner()}); --wait waits for it")
    return lock


def prepare(bench: Bench, built: list[str]) -> None:
    """Programs and inputs in the campaign's folder; targets that do not start are left out, and said to be."""
    state = bench.state
    names = [target.name for target in state.targets]
    for name in built:
        variant = programs.VARIANTS[name]
        programs.keep(ROOT, variant, state.planted, names if variant.has_targets else [], bench.folder / "bin" / name)
    (bench.folder / "profiles").mkdir(exist_ok=True)
    for target in state.targets:
        failed = {failure.artifact.rpartition("-")[2] for failure in state.failures if failure.artifact}
        others = corpus.seeds(ROOT) + corpus.failed_before(bench.records.parent / "findings")
        before = corpus.start_working(bench.work(target.name), corpus.folder_of(bench.kept, target.name), others, failed)
        if not state.resumed:
            target.corpus_before = before
        why = programs.why_not_startable(pathlib.Path(bench.program("asan", target.name)))
        if why and not target.error:
            target.error = f"does not start: {why}"
            state.alarms.append(f"{target.name} {target.error}")


def publish(report: Report, pages: pathlib.Path, findings: pathlib.Path) -> None:
    """The page and its companions; in CI the summary goes where it is shown."""
    for finding in report.findings:
        finding.folder = os.path.relpath(findings / pathlib.Path(finding.folder).name, pages)
    page.write_page(report, pages)
    write_whole(pages / "report.json", to_json(report))
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        with open(summary, "a", encoding="utf-8") as file:
            file.write((pages / "summary.md").read_text(encoding="utf-8"))
    print_verdict(report, pages)


def print_verdict(report: Report, pages: pathlib.Path) -> None:
    print()
    for finding in report.findings:
        name = f"canary {finding.id}" if finding.is_canary else finding.id
        size = f", {finding.requests_unshrunk} requests reduced to {finding.requests_reduced}" if finding.reduced else ""
        flaky = " FLAKY" if finding.is_flaky else ""
        again = f", fails {finding.repeated} of {finding.tries} times{flaky}" if finding.tries else ""
        print(f"{name}: {finding.claim}\n  found by {', '.join(finding.targets)} after {finding.seconds_to_fail:.1f} s{size}{again}\n"
              f"  {finding.command}")
    for alarm in report.alarms:
        print(f"ALARM: {alarm}")
    executions = sum(target.executions for target in report.targets)
    say(f"{len(report.faults)} finding{'s' if len(report.faults) != 1 else ''}, {len(report.alarms)} "
        f"alarm{'s' if len(report.alarms) != 1 else ''}, {executions} executions of {len(report.targets)} targets; page: {pages}/index.html")


def exit_code(report: Report, interrupted: bool) -> int:
    if report.faults:
        return FINDINGS
    if interrupted:
        return INTERRUPTED
    return NOT_DONE if report.alarms else NO_FINDING
