"""What a running campaign knows, on disk after every step: a killed one is resumed from here."""

from __future__ import annotations

import json
import pathlib
from dataclasses import dataclass, field

from campaign.files import Failed, write_whole
from campaign.model import PlanItem, Property, Sample, of_dict, to_json

MOST_SAMPLES = 160  # of a target: as many as a chart shows


@dataclass
class Failure:
    """An input that broke something, or a suite that failed."""

    phase: str
    target: str
    variant: str
    log: str  # from the campaign's folder, as all paths here
    input: str = ""  # empty where there is none: a suite's race, a difference between two replays
    at_core_s: float = 0  # core-seconds of its target until then
    artifact: str = ""  # the name libFuzzer gave it
    note: str = ""  # what is to be said where there is no log of the failure itself


@dataclass
class Progress:
    """A fuzz target so far."""

    name: str
    core_s: float = 0
    executions: int = 0
    rate: int = 0
    features: int = 0  # with AddressSanitizer's build; others count in their own way
    edges: int = 0
    corpus: int = 0
    corpus_before: int = 0
    slices: int = 0
    failures: int = 0
    found: dict = field(default_factory=dict)  # failures of each invariant
    muted: list[str] = field(default_factory=list)  # invariants that are known to fail: runs go on past them
    errors: int = 0  # runs that ended badly
    useless: int = 0  # slices in a row that ended at once in a failure
    growth: float = -1  # features a core-second in the latest slices; below 0: not known
    measured_core_s: float = 0  # core_s and features when growth was judged last
    measured_features: int = 0
    last_new_core_s: float = 0  # core_s when features grew last
    error: str = ""
    samples: list[Sample] = field(default_factory=list)

    def add_sample(self, sample: Sample) -> None:
        self.samples.append(sample)
        if len(self.samples) > MOST_SAMPLES:
            # Every second one, and always the last.
            self.samples = self.samples[:-1][::2] + self.samples[-1:]


@dataclass
class Flight:
    """A job that was started: what is left of it when the campaign is killed is found by this."""

    folder: str
    phase: str
    target: str
    variant: str
    seed: int
    began: str
    limit_s: float


@dataclass
class State:
    campaign: str
    commit: str
    subject: str
    host: str
    began: str
    minutes: float
    jobs: int
    shard: str
    seed: int
    command: str
    planted: list[str] = field(default_factory=list)
    ended: str = ""
    elapsed_s: float = 0
    resumed: int = 0
    next_job: int = 1
    done: list[str] = field(default_factory=list)  # jobs that are done once
    replays: dict = field(default_factory=dict)  # "target 1": "cov 12 ft 34"
    flights: list[Flight] = field(default_factory=list)
    targets: list[Progress] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    properties: list[Property] = field(default_factory=list)
    plan: list[PlanItem] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)
    closing: bool = False  # fuzzing is over: what is left is merging, counting lines, and looking at failures
    finished: bool = False

    def of(self, target: str) -> Progress:
        return next(progress for progress in self.targets if progress.name == target)

    def spend(self, phase: str, target: str, core_s: float) -> None:
        for item in self.plan:
            if item.phase == phase and target in (item.target, ""):
                item.spent_s += core_s

    def save(self, folder: pathlib.Path) -> None:
        write_whole(folder / "state.json", to_json(self))


def load(folder: pathlib.Path) -> State | None:
    """The state in a campaign's folder; None where there is none."""
    try:
        return of_dict(State, json.loads((folder / "state.json").read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise Failed(f"{folder}/state.json cannot be read ({error}); move {folder} away to start anew") from error
