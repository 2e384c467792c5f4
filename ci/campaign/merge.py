"""`ci/nightly merge`: what several machines did, as one corpus and one page."""

from __future__ import annotations

import argparse
import calendar
import os
import pathlib
import random
import re
import shutil
import socket
import time

from campaign import campaign as running
from campaign import corpus, coverage, programs
from campaign.files import Failed, Lock, append_record, make_writable, read_records, write_whole
from campaign.jobs import Bench, utc_now
from campaign.model import Finding, PlanItem, Property, Report, Target, report_of, to_json
from campaign.report import claims, nights_of, target_of
from campaign.session import ROOT, commit, exit_code, prepare, publish, say, take_lock, wait_for
from campaign.state import Progress, State
from campaign.terminal import Terminal
from campaign.triage import in_order

# Shards that wait in a queue begin hours apart; those of the night before began a day earlier.
NIGHT_HOURS = 18

DESCRIPTION = """\
Puts together what shards, or other machines, did: their corpora into one that is as small as it can be, their findings and
records, and one page, of the campaigns that began within 18 hours before the newest. Each DIR is the folder of a run's
--out, or a corpus alone (a folder a target). Shards that shared one folder are merged by naming it for both."""

EPILOG = """\
exit code: as of ci/nightly, for all machines together; an absent shard is an alarm

examples:
  ci/nightly merge --out out/nightly shard-0 shard-1 shard-2 shard-3
  ci/nightly merge --out /nfs/night --corpus /nfs/corpus /nfs/night
  ci/nightly merge --out out/nightly ~/corpus-of-a-colleague
"""


def parse(arguments: list[str], parser_type: type[argparse.ArgumentParser], count) -> argparse.Namespace:
    parser = parser_type(prog="ci/nightly merge", description=DESCRIPTION, epilog=EPILOG, allow_abbrev=False,
                         formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=pathlib.Path, metavar="DIR", help="a run's --out, or a corpus")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out/nightly"), metavar="DIR", help="default: out/nightly")
    parser.add_argument("--corpus", type=pathlib.Path, metavar="DIR", help="the merged corpus (default: corpus in the folder of --out)")
    parser.add_argument("--jobs", type=count, default=os.cpu_count() or 1, metavar="J", help="cores to use (default: all)")
    return parser.parse_args(arguments)


# ---- reports ----


def latest_reports(folder: pathlib.Path, is_own: bool) -> list[Report]:
    """The last report of every shard that wrote into a folder, or of a merge of them; where it is this merge's own folder, those
    of earlier merges do not count."""
    latest: dict[str, Report] = {}
    for path in sorted((folder / "runs").glob("*/report.json")):
        try:
            report = report_of(path.read_text(encoding="utf-8"))
        except (ValueError, TypeError) as error:
            raise Failed(f"{path} is no report: {error}") from error
        if not (is_own and report.campaign.endswith("-merged")):
            latest[report.shard] = report
    return list(latest.values())


def of_one_night(reports: list[Report]) -> tuple[list[Report], list[str]]:
    """The reports of the newest night, and what is to be said of the others: a shard that died tonight left last week's."""
    newest = max(reports, key=lambda report: report.began, default=None)
    if newest is None:
        return [], ["no report in any of the folders: nothing was run, or it did not come to its end"]
    kept = [r for r in reports if hours_between(r.began, newest.began) < NIGHT_HOURS and is_shard(r) == is_shard(newest)]
    old = [r for r in reports if r not in kept]
    return kept, [f"shard {r.shard} left no report of this night: its last one is of {r.began}" for r in old]


def hours_between(earlier: str, later: str) -> float:
    def seconds(utc: str) -> int:
        return calendar.timegm(time.strptime(utc, "%Y-%m-%dT%H:%M:%SZ"))

    return (seconds(later) - seconds(earlier)) / 3600


def is_shard(report: Report) -> bool:
    return re.fullmatch(r"\d+/\d+", report.shard) is not None


def absent_shards(reports: list[Report]) -> list[str]:
    said = []
    reports = [report for report in reports if is_shard(report)]
    for total in sorted({int(report.shard.split("/")[1]) for report in reports}):
        there = {int(r.shard.split("/")[0]) for r in reports if r.shard.split("/")[1] == str(total)}
        lacking = [f"{i}/{total}" for i in range(total) if i not in there]
        if lacking:
            shown = ", ".join(lacking[:20]) + (f" and {len(lacking) - 20} more" if len(lacking) > 20 else "")
            said.append(f"no report of shard {shown}")
    return said


def merged_findings(reports: list[Report]) -> list[Finding]:
    """One finding for what several shards found, with the data of the one that was fastest."""
    merged: dict[tuple, Finding] = {}
    for finding in sorted((f for r in reports for f in r.findings), key=lambda f: f.seconds_to_fail):
        told_by = (finding.is_canary, finding.id, () if finding.kind == "invariant" else tuple(finding.frames))
        first = merged.setdefault(told_by, finding)
        if first is not finding:
            first.count += finding.count
            first.is_new = first.is_new or finding.is_new
            first.targets = sorted({*first.targets, *finding.targets})
            first.variants = sorted({*first.variants, *finding.variants})
    return in_order(list(merged.values()))


def merged_progress(reports: list[Report]) -> list[Progress]:
    """Each target's time and executions added up; its curve is that of the shard that had most of the time."""
    merged: dict[str, Progress] = {}
    longest: dict[str, float] = {}
    for target in (t for report in reports for t in report.targets):
        progress = merged.setdefault(target.name, Progress(target.name))
        progress.core_s += target.core_s
        progress.executions += target.executions
        progress.features = max(progress.features, target.features)
        progress.edges = max(progress.edges, target.edges)
        progress.corpus_before = max(progress.corpus_before, target.corpus_before)
        progress.error = progress.error or target.error
        if target.core_s > longest.get(target.name, -1):
            longest[target.name] = target.core_s
            progress.samples, progress.rate = target.samples, target.rate
            progress.last_new_core_s = _last_new(target)
    return list(merged.values())


def _last_new(target: Target) -> float:
    """Core-seconds when features grew last."""
    last = 0.0
    for before, sample in zip(target.samples, target.samples[1:]):
        if sample.features > before.features:
            last = sample.core_s
    return last


def merged_plan(reports: list[Report]) -> list[PlanItem]:
    merged: dict[tuple[str, str], PlanItem] = {}
    for item in (item for report in reports for item in report.plan):
        first = merged.setdefault((item.phase, item.target), item)
        if first is not item:
            first.core_s += item.core_s
            first.spent_s += item.spent_s
            # One shard's "left out" is not all shards'.
            first.note = item.note if first.note.startswith(("left out", "shard 0")) else first.note
    return list(merged.values())


_RANK = {"ok": 0, "error": 1, "finding": 2}


def merged_properties(reports: list[Report]) -> list[Property]:
    merged: dict[tuple[str, str], Property] = {}
    for found in (p for report in reports for p in report.properties):
        first = merged.setdefault((found.suite, found.name), found)
        if _RANK.get(found.result, 1) > _RANK.get(first.result, 1):
            merged[found.suite, found.name] = found
    return list(merged.values())


# ---- files ----


def corpora(folder: pathlib.Path) -> pathlib.Path:
    return folder / "corpus" if (folder / "corpus").is_dir() else folder


def take_files(folder: pathlib.Path, bench: Bench, out: pathlib.Path) -> int:
    """Inputs, records and findings of a folder; the number of inputs."""
    source, taken = corpora(folder), 0
    for target in bench.state.targets:
        if (source / target.name).resolve() != corpus.folder_of(bench.kept, target.name).resolve():
            taken += corpus.take_in(source / target.name, bench.work(target.name))
    if folder.resolve() == out:
        return taken
    known = {to_json(record) for record in read_records(out / "records.jsonl")}
    for record in read_records(folder / "records.jsonl"):
        if to_json(record) not in known:
            append_record(out / "records.jsonl", record)
    for finding in sorted((folder / "findings").glob("*")):
        if not finding.name.startswith(".") and not (out / "findings" / finding.name).exists():
            (out / "findings").mkdir(exist_ok=True)
            aside = out / "findings" / f".aside-{finding.name}"
            shutil.rmtree(aside, ignore_errors=True)
            shutil.copytree(finding, aside)
            aside.rename(out / "findings" / finding.name)
    return taken


# ---- the merge ----


def merged_state(reports: list[Report], targets: list[str], jobs: int, head: tuple[str, str], command: str) -> State:
    began = min((report.began for report in reports), default=utc_now())
    name = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()) + "-merged"
    state = State(name, *head, socket.gethostname(), began, max((r.minutes for r in reports), default=0.01), jobs,
                  f"{len(reports)} of them", 0, command, sorted({fault for report in reports for fault in report.planted}))
    state.targets = merged_progress(reports)
    state.targets += [Progress(target) for target in targets if target not in {t.name for t in state.targets}]
    state.plan = merged_plan(reports)
    return state


def merge(options: argparse.Namespace, command: str) -> int:
    out, kept = options.out.resolve(), (options.corpus or options.out / "corpus").resolve()
    for folder in options.folders:
        if not folder.is_dir():
            raise Failed(f"{folder} is no folder")
    make_writable(out)
    make_writable(kept)
    lock = take_lock(out, 0, 1, False)
    try:
        options.folders = list(dict.fromkeys(folder.resolve() for folder in options.folders))
        of_folder = {folder: latest_reports(folder, folder == out) for folder in options.folders}
        reports, said = of_one_night([report for found in of_folder.values() for report in found])
        said += [f"{folder} has no report" for folder, found in of_folder.items() if not found and (folder / "runs").is_dir()]
        if len({bool(report.planted) for report in reports}) > 1:
            raise Failed("some of these campaigns had planted faults and some had not: their findings must not be mixed")
        planted = sorted({fault for report in reports for fault in report.planted})
        built = ["asan", "coverage"]
        builds = wait_for(Lock(ROOT / "build" / ".nightly.lock"), "the builds of this checkout")
        targets = [programs.build(ROOT, programs.VARIANTS[name], planted) for name in built][0]
        state = merged_state(reports, targets, options.jobs, commit(), command)
        state.alarms = [alarm for report in reports for alarm in report.alarms] + absent_shards(reports) + said
        return merge_into(options, state, reports, built, out, kept, builds)
    finally:
        lock.release()


def merge_into(options: argparse.Namespace, state: State, reports: list[Report], built: list[str], out: pathlib.Path,
               kept: pathlib.Path, builds: Lock) -> int:
    folder = out / "runs" / state.campaign
    folder.mkdir(parents=True)
    bench = Bench(ROOT, folder, kept, out / "records.jsonl", state, corpus.longest(ROOT), random.Random(0))
    prepare(bench, built)
    builds.release()
    for source in options.folders:
        say(f"{take_files(source, bench, out)} new inputs in {source}")
    state.save(folder)
    night = running.Campaign(bench, built, Terminal())
    night.run_closing()
    pages = out / "page"
    pages.mkdir(exist_ok=True)
    lines = None
    if not night.interrupted:
        programs_ = [bench.program("coverage", target.name) for target in state.targets]
        try:
            lines = coverage.count_lines(ROOT, programs_, folder / "profiles", pages / "coverage")
        except Failed as error:
            state.alarms.append(str(error))
    state.ended = max((report.ended for report in reports), default=utc_now())
    report = merged_report(bench, reports, lines, out)
    publish(report, pages, out / "findings")
    write_whole(folder / "report.json", to_json(report))
    state.finished = True
    state.save(folder)
    running.rescue(bench)
    running.clean_up(folder)
    return exit_code(report, night.interrupted)


def merged_report(bench: Bench, reports: list[Report], lines: coverage.Coverage | None, out: pathlib.Path) -> Report:
    state, findings = bench.state, merged_findings(reports)
    about, nights = claims(bench.root), nights_of(read_records(out / "records.jsonl"))
    # What failed while the corpora were merged was found by nobody before.
    if reports and not any(finding.is_canary for finding in findings):
        state.alarms.insert(0, "no shard found the canary: what this night says is worth nothing")
    state.alarms += [f"{f.target}: {f.artifact} failed while corpora were merged; it is below {bench.folder}/jobs" for f in state.failures]
    targets = [target_of(p, bench.kept, about.get(p.name, ("", "")), nights.get(p.name, []), findings) for p in state.targets]
    said = list(dict.fromkeys(sentence for report in reports for sentence in report.not_reached if "lines were not" not in sentence))
    if lines and lines.not_covered:
        said.append(f"{len(lines.not_covered)} lines of {', '.join(room.name for room in lines.rooms)} were never run")
    stopped = next((report.state for report in reports if report.state != "finished"), "finished")
    return Report(
        state.campaign, state.commit, state.subject, ", ".join(sorted({report.host for report in reports})), state.began, state.ended,
        state.minutes, sum(report.jobs for report in reports), f"{len(reports)} merged", 0, state.command, stopped,
        sum(report.resumed for report in reports), state.planted, list(dict.fromkeys(state.alarms)), state.plan, targets, findings,
        merged_properties(reports), lines, said)
