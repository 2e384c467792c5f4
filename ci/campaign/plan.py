"""How the time is spent."""

from __future__ import annotations

import math
from collections import Counter

from campaign.files import Failed
from campaign.model import PlanItem
from campaign.programs import RACE_SUITES
from campaign.state import Progress, State

CANARY_S = 30  # it is found in the first second; this is how long it is waited for
REPLAY_S = 15  # of one target, twice over; what it is found to take is not known before
RACES_S = 60  # ThreadSanitizer on the whole corpus
PROPERTIES_SHARE = 0.08
CLOSING_SHARE = 0.10  # merging, coverage, reducing what was found
LEAST_CLOSING_S = 20
MOST_CLOSING_S = 300  # on two cores it took 40 s after half an hour; what takes longer comes behind the campaign's time
FLOOR_SHARE = 0.5  # of the time for fuzzing: every target's alike; the rest goes where features grow
LEAST_SLICE_S = 2.0
SLICES = 12  # a target's floor is cut into so many runs, so that growth is seen and a kill costs little
LONGEST_SLICE_S = 900.0
# Of a target's runs, in turn: the sanitizer that sees most has half of them.
TURNS = ("asan", "plain", "asan", "ubsan")


def shard_targets(targets: list[str], shard: int, shards: int) -> list[str]:
    """The targets of one shard: each target is somebody's, and with more shards than targets several have the same, each with
    seeds of its own."""
    if shards <= len(targets):
        return targets[shard::shards]
    return [targets[shard % len(targets)]]


def make_plan(minutes: float, jobs: int, targets: list[str], shard: int, shards: int) -> list[PlanItem]:
    """All core-seconds of the campaign. Builds come in front and are not counted."""
    plan, floor = _items(minutes, jobs, targets, shard, shards)
    if floor >= LEAST_SLICE_S:
        return plan
    enough = minutes
    while _items(enough, jobs, targets, shard, shards)[1] < LEAST_SLICE_S:
        enough = math.ceil(enough * 11) / 10
    raise Failed(f"{minutes:g} min on {jobs} cores are {max(floor, 0):.1f} s a target: too short; take at least {enough:g} min")


def _items(minutes: float, jobs: int, targets: list[str], shard: int, shards: int) -> tuple[list[PlanItem], float]:
    """The plan, and the floor of a target in it."""
    total = minutes * 60 * jobs
    closing = min(max(CLOSING_SHARE * total, min(LEAST_CLOSING_S, 0.3 * total)), MOST_CLOSING_S * jobs / 2)
    plan = [
        PlanItem("canary", "fuzz_canary", "asan", min(CANARY_S, 0.05 * total), note="has to fail at once"),
        PlanItem("replay", "", "asan", min(REPLAY_S * len(targets), 0.15 * total), note="the whole corpus, twice"),
        PlanItem("properties", "", "test", PROPERTIES_SHARE * total, note="fresh seeds"),
    ]
    if total < 10 * RACES_S:
        plan.append(PlanItem("races", "", "tsan", 0, note=f"left out: the campaign has less than {10 * RACES_S} core-seconds"))
    elif shard != 0:
        plan.append(PlanItem("races", "", "tsan", 0, note="shard 0 has them"))
    else:
        plan.append(PlanItem("races", "", "tsan", RACES_S * len(RACE_SUITES) / 2, note="ThreadSanitizer, the whole corpus"))
    rest = total - closing - sum(item.core_s for item in plan)
    floor = FLOOR_SHARE * rest / len(targets)
    for target in targets:
        plan.append(PlanItem("fuzz", target, "asan, plain, ubsan", floor, note="floor"))
    plan.append(PlanItem("growth", "", "asan, plain, ubsan", (1 - FLOOR_SHARE) * rest, note="where features grow"))
    where = "merge the corpus, lines reached, reduce findings" if shards == 1 else "merge the corpus, reduce findings"
    plan.append(PlanItem("closing", "", "", closing, note=where))
    return plan, floor


def print_plan(plan: list[PlanItem], minutes: float, jobs: int) -> None:
    total = minutes * 60 * jobs
    print(f"plan: {minutes:g} min on {jobs} core{'s' if jobs != 1 else ''}, {total:.0f} core-seconds")
    for item in plan:
        what = f"{item.phase} {item.target}".strip()
        print(f"  {what:<28} {item.core_s:>8.0f} s {100 * item.core_s / total:>5.1f} %  {item.variant:<19} {item.note}")


def variant_of_turn(turn: int, built: list[str]) -> str:
    variant = TURNS[turn % len(TURNS)]
    return variant if variant in built else "asan"


def slice_s(state: State, progress: Progress) -> float:
    """The length of a target's next run."""
    floor = next(item.core_s for item in state.plan if item.phase == "fuzz" and item.target == progress.name)
    return min(LONGEST_SLICE_S, max(LEAST_SLICE_S, floor / SLICES))


def choose_target(state: State, waiting: set[str], busy: Counter[str]) -> Progress | None:
    """The target whose turn it is: those below their floor first, the one that lacks most; then the one that grows fastest,
    its promise shared among those that run it already. None when no target can run."""
    able = [target for target in state.targets if not target.error and target.name not in waiting]
    if not able:
        return None
    floors = {item.target: item.core_s for item in state.plan if item.phase == "fuzz"}

    def lack(target: Progress) -> float:
        under_way = busy[target.name] * slice_s(state, target)
        return 1 - (target.core_s + under_way) / floors[target.name]

    most = max(able, key=lack)
    if lack(most) > 0:
        return most

    def promise(target: Progress) -> float:
        # A target that has found nothing new for long keeps a chance: features come late, too.
        growth = target.growth if target.growth >= 0 else float("inf")
        return (growth + 1 / (1 + target.core_s)) / (1 + busy[target.name])

    return max(able, key=promise)
