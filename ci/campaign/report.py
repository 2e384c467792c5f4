"""From what a campaign knows to what its page says."""

from __future__ import annotations

import pathlib
import re

from campaign import corpus, jobs
from campaign.files import read_records
from campaign.model import Coverage, Finding, Night, Record, Report, Target
from campaign.state import Progress, State

FLAT_SHARE = 0.5  # without a new feature in this share of its time a target's curve is called flat
NIGHTS = 60  # earlier campaigns that are shown


def claims(root: pathlib.Path) -> dict[str, tuple[str, str]]:
    """Claim and invariants of every target, from the README's table, which a test holds against the build's list."""
    rows = re.findall(r"^\| `(fuzz_\w+)` \| (.*?) \| ?(.*?) \|$", (root / "README.md").read_text(encoding="utf-8"), re.M)
    return {name: (claim, invariants.strip()) for name, claim, invariants in rows}


def nights_of(records: list[Record]) -> dict[str, list[Night]]:
    """Each target's campaigns, oldest first."""
    nights: dict[tuple[str, str], Night] = {}
    seconds: dict[tuple[str, str], float] = {}
    executions: dict[tuple[str, str], int] = {}
    for record in records:
        if record.kind != "fuzz":
            continue
        # The shards of a night are one night.
        shard = record.campaign.partition("-")[2].partition("of")
        is_one_of_many = shard[2] not in ("", "1")
        key = (record.target, f"{record.began[:10]} {shard[2]}" if is_one_of_many else record.campaign)
        night = nights.setdefault(key, Night(record.campaign, record.began, record.commit, 0, 0, 0, 0, 0, 0))
        night.core_s = round(night.core_s + record.seconds, 1)
        night.findings += record.result == "finding"
        if record.variant == "asan":
            # Other variants count features, and run, in their own way.
            night.features = max(night.features, record.features)
            night.edges = max(night.edges, record.edges)
            night.corpus = record.corpus or night.corpus
            seconds[key] = seconds.get(key, 0) + record.seconds
            executions[key] = executions.get(key, 0) + record.executions
            night.rate = round(executions[key] / seconds[key]) if seconds[key] else 0
    sorted_nights: dict[str, list[Night]] = {}
    for (target, _), night in sorted(nights.items(), key=lambda item: item[1].began):
        sorted_nights.setdefault(target, []).append(night)
    return {target: found[-NIGHTS:] for target, found in sorted_nights.items()}


def target_of(progress: Progress, kept: pathlib.Path, claim: tuple[str, str], nights: list[Night], findings: list[Finding]) -> Target:
    files, size = corpus.weight(corpus.folder_of(kept, progress.name))
    found = sum(progress.name in finding.targets and not finding.is_canary for finding in findings)
    result = "finding" if found else "error" if progress.error else "ok" if progress.executions else "not run"
    return Target(
        progress.name, claim[0], claim[1], result, progress.error, round(progress.core_s, 1), progress.executions,
        nights[-1].rate if nights else progress.rate, progress.features, progress.edges, progress.corpus_before, files, size,
        found, ["asan", "plain", "ubsan"], progress.samples, nights)


def alarms_of(state: State, findings: list[Finding]) -> list[str]:
    alarms = list(state.alarms)
    if not any(finding.is_canary for finding in findings):
        alarms.insert(0, "the canary was not found: what this campaign says of other targets is worth nothing")
    for target in state.targets:
        if not target.executions and not target.error:
            alarms.append(f"{target.name} ran no input")
        if target.error and not any(target.name in finding.targets for finding in findings):
            alarms.append(f"{target.name}: {target.error}")
    return list(dict.fromkeys(alarms))


def not_reached(state: State, coverage: Coverage | None) -> list[str]:
    said = []
    for target in state.targets:
        since = target.core_s - target.last_new_core_s
        if target.muted:
            said.append(f"{target.name}: what stands behind {', '.join(target.muted)}, which failed {jobs.ENOUGH} times and was muted then")
        if target.core_s and since >= FLAT_SHARE * target.core_s:
            said.append(f"{target.name}: no new feature in the last {since:.0f} of {target.core_s:.0f} core-seconds; its curve is flat")
    if coverage is None:
        said.append("lines were not counted" + (": `ci/nightly merge` does for all shards" if state.shard.split("/")[1] != "1" else ""))
    elif coverage.not_covered:
        said.append(f"{len(coverage.not_covered)} lines of {', '.join(r.name for r in coverage.rooms)} were never run")
    for item in state.plan:
        if item.note.startswith(("left out", "shard 0")):
            said.append(f"{item.phase}: {item.note}")
    said.append("a GPU: the device path ran on hipsim; `ci/fuzz --device amd` runs it on a card")
    said.append("steps that make more than 4096 entries, and cases of more than 3 steps: targets cut or refuse them to stay fast")
    return said


def report_of(root: pathlib.Path, state: State, kept: pathlib.Path, records: pathlib.Path, findings: list[Finding],
              coverage: Coverage | None) -> Report:
    about, nights = claims(root), nights_of(read_records(records))
    targets = [target_of(p, kept, about.get(p.name, ("", "")), nights.get(p.name, []), findings) for p in state.targets]
    return Report(
        state.campaign, state.commit, state.subject, state.host, state.began, state.ended, state.minutes, state.jobs, state.shard,
        state.seed, state.command, "finished" if state.finished else "stopped", state.resumed, state.planted,
        alarms_of(state, findings), state.plan, targets, findings, state.properties, coverage, not_reached(state, coverage))
