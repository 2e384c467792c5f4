"""ci/nightly's command line."""

from __future__ import annotations

import argparse
import os
import pathlib
import random
import shlex
import shutil
import socket
import subprocess
import sys
import time
import traceback

from campaign import campaign as running
from campaign import corpus, coverage, merge, plan, programs
from campaign import state as states
from campaign.files import Failed, Lock, make_writable, write_whole
from campaign.jobs import Bench, utc_now
from campaign.model import Report, to_json
from campaign.report import report_of
from campaign.session import INTERRUPTED, NOT_DONE, ROOT, commit, exit_code, prepare, publish, say, take_lock, wait_for
from campaign.state import Progress, State
from campaign.terminal import Terminal, duration
from campaign.triage import Triage

KEPT_RUNS = 14  # campaigns whose logs stay

DESCRIPTION = """\
Fuzzes every target, draws new cases for every property, looks for races, keeps and shrinks the corpus, and writes a page
about it. Builds first (not counted in the minutes). Started again after it was cut off, it goes on where it was.
`ci/nightly merge` puts what several machines did together: see `ci/nightly merge --help`."""

EPILOG = """\
writes in the folder of --out
  page/index.html            what happened: open it in a browser; beside it junit.xml, findings.sarif, summary.md
  findings/<id>-<hash>/      a fault: input, smallest input, log, picture, command that repeats it, draft of a regression
  corpus/<target>/           inputs that reach something, kept for the next time (elsewhere with --corpus)
  records.jsonl              a line a run, kept across nights
  runs/<campaign>/           logs

exit code: 0 no finding; 1 findings; 2 something could not be done, or the canary was not found; 130 stopped by Ctrl-C (what was
found until then is merged, and on the page)

examples:
  ci/nightly                                    an hour on all cores
  ci/nightly --minutes 480 --jobs 32            eight hours on 32
  ci/nightly --shard 3/16 --corpus /nfs/corpus --out /nfs/night
                                                one of sixteen machines that share a corpus
  ci/nightly --minutes 5 --plant R1-turn-off-by-one --plant D2-synchronous-copy
                                                a rehearsal: are faults of properties/planted found?
  ci/nightly merge --out out/nightly a/ b/      one page and one corpus out of two machines' folders
"""


def positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"'{text}' is no number above 0")
    return value


def count(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 100000:
        raise argparse.ArgumentTypeError(f"'{text}' is no whole number from 1 to 99999")
    return int(text)


def shard(text: str) -> tuple[int, int]:
    index, _, total = text.partition("/")
    if not index.isdecimal() or not total.isdecimal() or not int(index) < int(total) < 1000000:
        raise argparse.ArgumentTypeError(f"'{text}' is no shard: 0/4 is the first of four, 3/4 the last")
    return int(index), int(total)


class Parser(argparse.ArgumentParser):
    def error(self, message: str):
        print(f"ci/nightly: {message}; see ci/nightly --help", file=sys.stderr)
        sys.exit(NOT_DONE)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = Parser(prog="ci/nightly", description=DESCRIPTION, epilog=EPILOG, allow_abbrev=False,
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=positive, default=60, metavar="N", help="time for everything but builds (default 60)")
    parser.add_argument("--jobs", type=count, default=os.cpu_count() or 1, metavar="J", help="cores to use (default: all)")
    parser.add_argument("--corpus", type=pathlib.Path, metavar="DIR", help="the kept corpus (default: corpus in the folder of --out)")
    parser.add_argument("--out", type=pathlib.Path, metavar="DIR", help="default: out/nightly, with --plant out/rehearsal")
    parser.add_argument("--shard", type=shard, default=(0, 1), metavar="i/n", help="this machine's part, of n that work together")
    parser.add_argument("--seed", type=count, metavar="S", help="of all seeds drawn (default: a new one each time)")
    parser.add_argument("--plant", action="append", default=[], metavar="FAULT", help="rehearsal: build with this fault of properties/planted")
    parser.add_argument("--fresh", action="store_true", help="do not resume a campaign that was cut off; what it found is taken in")
    parser.add_argument("--wait", action="store_true", help="wait for another run in the same folder instead of refusing")
    options = parser.parse_args(arguments)
    for fault in options.plant:
        if not (ROOT / "properties" / "planted" / f"{fault}.fault").is_file():
            parser.error(f"argument --plant: there is no fault '{fault}' in properties/planted")
    # Planted findings, and a corpus that leads to them, are not to be mixed with real ones.
    options.out = options.out or pathlib.Path("out/rehearsal" if options.plant else "out/nightly")
    return options


# ---- before the campaign ----


def unfinished(out: pathlib.Path, shard_text: str) -> list[tuple[pathlib.Path, State]]:
    """Campaigns of this shard that were cut off, oldest first."""
    found = []
    for folder in sorted((out / "runs").glob("*")):
        state = states.load(folder) if folder.is_dir() else None
        if state and not state.finished and state.shard == shard_text:
            found.append((folder, state))
    return found


def new_state(options: argparse.Namespace, targets: list[str], command: str) -> State:
    index, total = options.shard
    mine = plan.shard_targets(targets, index, total)
    now = time.time()
    found, subject = commit()
    name = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now)) + f"-{index}of{total}"
    state = State(name, found, subject, socket.gethostname(), utc_now(), options.minutes, options.jobs, f"{index}/{total}",
                  options.seed or random.SystemRandom().randrange(1, 1 << 31), command, options.plant)
    state.targets = [Progress(target) for target in mine]
    state.plan = plan.make_plan(options.minutes, options.jobs, mine, index, total)
    return state


def build_all(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Targets, and the variants that were built."""
    has_lines = options.shard[1] == 1
    wanted = [v for v in programs.VARIANTS.values() if v.name != "coverage" or has_lines]
    targets: list[str] = []
    for variant in wanted:
        found = programs.build(ROOT, variant, options.plant)
        targets = targets or found
    return targets, [variant.name for variant in wanted]


def take_over(bench: Bench, old: pathlib.Path, state: State) -> None:
    """Takes the inputs of a campaign that is not resumed, those that failed among them: if they still do, the replay says so."""
    for target in bench.state.targets:
        corpus.take_in(old / "work" / target.name, bench.work(target.name))
        for job in (old / "jobs").glob(f"*-{target.name.removeprefix('fuzz_')}-*"):
            for name in ("artifacts", "found"):
                corpus.take_in(job / name, bench.work(target.name))
    for failure in state.failures:
        if not failure.input:
            bench.state.alarms.append(f"the campaign {state.campaign}, which was cut off, had a failure of {failure.target} without "
                                      f"an input: {old}/{failure.log}")


# ---- the campaign ----


def conclude(bench: Bench, built: list[str], out: pathlib.Path, interrupted: bool) -> Report:
    """What was found, what was reached, and the page."""
    state = bench.state
    index, total = state.shard.split("/")
    pages = out / ("page" if total == "1" else f"page-{index}-of-{total}")
    pages.mkdir(parents=True, exist_ok=True)
    lines = None
    if "coverage" in built and not interrupted:
        try:
            objects = [bench.program("coverage", target.name) for target in state.targets]
            lines = coverage.count_lines(ROOT, objects, bench.folder / "profiles", pages / "coverage")
        except Failed as error:
            state.alarms.append(str(error))
    findings = Triage(bench, out / "findings", say).findings_of_campaign()
    state.ended = utc_now()
    state.finished = not interrupted
    report = report_of(ROOT, state, bench.kept, out / "records.jsonl", findings, lines)
    publish(report, pages, out / "findings")
    write_whole(bench.folder / "report.json", to_json(report))
    state.finished = True
    state.save(bench.folder)
    return report


def drop_old_runs(out: pathlib.Path) -> None:
    """Of each shard the last ones stay: `merge` reads their reports."""
    finished: dict[str, list[pathlib.Path]] = {}
    for folder in sorted((out / "runs").glob("*")):
        if (folder / "report.json").exists():
            finished.setdefault(folder.name.partition("-")[2], []).append(folder)
    for folders in finished.values():
        for folder in folders[:-KEPT_RUNS]:
            shutil.rmtree(folder, ignore_errors=True)


def run(options: argparse.Namespace, command: str) -> int:
    out, kept = options.out.resolve(), (options.corpus or options.out / "corpus").resolve()
    make_writable(out)
    make_writable(kept)
    index, total = options.shard
    lock = take_lock(out, index, total, options.wait)
    try:
        return locked_run(options, command, out, kept)
    finally:
        lock.release()


def locked_run(options: argparse.Namespace, command: str, out: pathlib.Path, kept: pathlib.Path) -> int:
    builds = wait_for(Lock(ROOT / "build" / ".nightly.lock"), "the builds of this checkout")
    setup = subprocess.run(["ci/setup"], cwd=ROOT, stdin=subprocess.DEVNULL).returncode
    if setup != 0:
        raise Failed("ci/setup failed")
    targets, built = build_all(options)
    cut_off = unfinished(out, f"{options.shard[0]}/{options.shard[1]}")
    state = new_state(options, targets, command)
    old_runs = cut_off
    if cut_off and not options.fresh and can_resume(cut_off[-1][1], state):
        folder, state = cut_off[-1]
        old_runs = cut_off[:-1]
        state.resumed += 1
        say(f"resuming the campaign {state.campaign}, cut off after {duration(state.elapsed_s)} of {duration(60 * state.minutes)}")
    else:
        folder = out / "runs" / state.campaign
        folder.mkdir(parents=True)
    bench = Bench(ROOT, folder, kept, out / "records.jsonl", state, corpus.longest(ROOT),
                  random.Random(f"{state.seed} {state.resumed}"))
    if state.resumed:
        flights = running.account_for_flights(bench)
        say(f"{flights} runs were under way: their inputs and findings are taken in")
    for old, old_state in old_runs:
        say(f"taking in what the campaign {old_state.campaign} found, which was cut off")
        take_over(bench, old, old_state)
    prepare(bench, built)
    builds.release()
    state.save(folder)
    for old, old_state in old_runs:
        # Only now: what it had is in the new one's state, which is on disk.
        old_state.finished = True
        old_state.save(old)
        running.clean_up(old)
    plan.print_plan(state.plan, state.minutes, state.jobs)
    night = running.Campaign(bench, built, Terminal())
    night.run()
    say("looking at what was found")
    report = conclude(bench, built, out, night.interrupted)
    running.rescue(bench)
    running.clean_up(folder)
    drop_old_runs(out)
    return exit_code(report, night.interrupted)


def can_resume(old: State, new: State) -> bool:
    """Whether it is the same campaign: other code or other targets would mix what must not be mixed."""
    return (old.commit, old.planted, [t.name for t in old.targets], old.minutes, old.jobs) == (
        new.commit, new.planted, [t.name for t in new.targets], new.minutes, new.jobs)


def main(arguments: list[str]) -> int:
    command = shlex.join(["ci/nightly", *arguments])
    try:
        if arguments[:1] == ["merge"]:
            return merge.merge(merge.parse(arguments[1:], Parser, count), command)
        options = parse(arguments)
        # Relative folders are the caller's; everything else is the project's.
        return run(options, command)
    except Failed as error:
        print(f"ci/nightly: {error}", file=sys.stderr)
        return NOT_DONE
    except OSError as error:
        print(f"ci/nightly: {error.filename or ''}: {error.strerror or error}", file=sys.stderr)
        return NOT_DONE
    except KeyboardInterrupt:
        print("ci/nightly: stopped; started again it goes on where it was", file=sys.stderr)
        return INTERRUPTED
    except Exception:  # noqa: BLE001 - exit code 1 says "findings": nothing that merely went wrong may use it
        traceback.print_exc()
        return NOT_DONE
