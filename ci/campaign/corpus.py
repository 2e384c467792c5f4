"""The inputs: the kept corpus (a folder a target, plain files named by their content), and the one a campaign works on."""

from __future__ import annotations

import contextlib
import pathlib

from campaign.files import Failed, Lock, add_input, plain_files, sha1
from campaign.libfuzzer import SMALLEST_MAX_LEN


def folder_of(corpus: pathlib.Path, target: str) -> pathlib.Path:
    return corpus / target


def lock_of(corpus: pathlib.Path, target: str) -> Lock:
    """Held while the kept corpus of a target is read for a merge and replaced: two merges at once could each drop what the
    other keeps."""
    return Lock(corpus / f".{target}.lock")


def seeds(root: pathlib.Path) -> list[pathlib.Path]:
    return sorted(p for d in ("corpus/seeds", "corpus/regressions") for p in (root / d).rglob("*.batch"))


def longest(root: pathlib.Path) -> int:
    """Bytes an input may have."""
    return max([SMALLEST_MAX_LEN, *(path.stat().st_size for path in seeds(root))])


def failed_before(findings: pathlib.Path) -> list[pathlib.Path]:
    """Inputs of earlier nights' findings: they are the first to be tried again."""
    return [path for path in sorted(findings.glob("*/*.batch")) if not path.parent.name.startswith((".", "canary-"))]


def start_working(work: pathlib.Path, kept: pathlib.Path, others: list[pathlib.Path], without: set[str]) -> int:
    """Puts `others` and the kept inputs into the folder that a target's runs work on, but those `without` names, which failed in
    this campaign already; the number of kept ones. What is there already, of a campaign that was cut off, stays."""
    work.mkdir(parents=True, exist_ok=True)
    inputs = plain_files(kept)
    for path in others + inputs:
        # Another machine may have merged meanwhile: its file went, one as good came.
        with contextlib.suppress(FileNotFoundError):
            data = path.read_bytes()
            if sha1(data) not in without:
                (work / sha1(data)).write_bytes(data)
    return len(inputs)


def take_in(found: pathlib.Path, into: pathlib.Path) -> int:
    """Adds what a run found to a folder; the number of new inputs. A file that a kill cut short is an input like any other,
    under its own name."""
    count = 0
    for path in plain_files(found):
        with contextlib.suppress(FileNotFoundError):  # replaced by a smaller one meanwhile
            count += add_input(into, path.read_bytes())
    return count


def replace(kept: pathlib.Path, cover: pathlib.Path, expected: int, considered: set[str], may_drop: bool) -> tuple[int, int]:
    """Makes `cover`, which is to have `expected` files, the kept corpus: first adds, then drops those of the inputs it was
    chosen from that it does not need, so that at no moment there is less than before. Numbers added and dropped."""
    inputs = {path.name: path.read_bytes() for path in plain_files(cover)}
    # On a full disk libFuzzer writes empty files, and says nothing.
    if len(inputs) != expected or any(sha1(data) != name for name, data in inputs.items()):
        raise Failed(f"the merge promised {expected} files and left {len(inputs)}, or some are not whole")
    kept.mkdir(parents=True, exist_ok=True)
    added = sum(add_input(kept, data) for data in inputs.values())
    dropped = 0
    if may_drop and inputs:
        for path in plain_files(kept):
            if path.name in considered and path.name not in inputs:
                path.unlink(missing_ok=True)
                dropped += 1
    return added, dropped


def weight(folder: pathlib.Path) -> tuple[int, int]:
    """Files and bytes."""
    sizes = [path.stat().st_size for path in plain_files(folder)]
    return len(sizes), sum(sizes)
