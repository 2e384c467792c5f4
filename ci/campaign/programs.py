"""The builds of a campaign, and the programs it takes from them."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
from dataclasses import dataclass

from campaign.files import Failed
from campaign.process import run, with_parent


@dataclass(frozen=True)
class Variant:
    """A build of the project by a preset, with what a campaign needs of it."""

    name: str
    preset: str
    has_targets: bool = True
    extra: tuple[str, ...] = ()  # CMake targets besides the fuzz targets
    programs: tuple[str, ...] = ()  # their files, from the build's folder


SUITES = ("property_test", "device_test")
RACE_SUITES = ("device_test", "device_stress_test")
# AddressSanitizer's build has UBSan on the subject too; UBSan's own has it on everything.
VARIANTS = {
    v.name: v
    for v in (
        Variant("asan", "fuzz", extra=("attnfuzz", "fuzz_canary", "canary_attnfuzz"),
                programs=("src/cli/attnfuzz", "fuzz/fuzz_canary", "fuzz/canary_attnfuzz")),
        Variant("ubsan", "ubsan", extra=("attnfuzz",), programs=("src/cli/attnfuzz",)),
        Variant("plain", "plain"),
        Variant("tsan", "tsan", has_targets=False, extra=RACE_SUITES,
                programs=tuple(f"properties/suites/{suite}" for suite in RACE_SUITES)),
        Variant("test", "test", has_targets=False, extra=SUITES,
                programs=tuple(f"properties/suites/{suite}" for suite in SUITES)),
        Variant("coverage", "coverage"),
    )
}


def build_folder(variant: Variant, planted: list[str]) -> str:
    """From the project's root. A build with planted faults is never mistaken for one without."""
    return f"build/planted-{variant.preset}" if planted else f"build/{variant.preset}"


def _shell(root: pathlib.Path, script: str, arguments: list[str]) -> None:
    """Runs lines of bash with what all scripts of ci/ share."""
    status = subprocess.run([*with_parent, "bash", "-c", f"set -euo pipefail; program=ci/nightly; . ci/lib.sh; {script}", "-", *arguments],
                            cwd=root, stdin=subprocess.DEVNULL).returncode
    if status < 0 or status == 130:
        raise KeyboardInterrupt
    if status != 0:
        raise Failed("the builds did not succeed; their output is above")


def build(root: pathlib.Path, variant: Variant, planted: list[str]) -> list[str]:
    """Builds a variant; the names of its fuzz targets."""
    folder = build_folder(variant, planted)
    # Without -D an earlier choice would stay; with it the cache is the same as ever where nothing is planted.
    plant = [f"-DATTNFUZZ_PLANT={';'.join(planted)}"] if planted else []
    _shell(root, 'configure "$@"', [folder, "--preset", variant.preset, "-B", folder, *plant])
    targets = (root / folder / "fuzz/targets.txt").read_text().split() if variant.has_targets else []
    _shell(root, 'build "$@"', [folder, *targets, *variant.extra])
    return targets


def keep(root: pathlib.Path, variant: Variant, planted: list[str], targets: list[str], into: pathlib.Path) -> None:
    """Takes the programs into the campaign's own folder: a build somebody starts meanwhile does not change them."""
    built = root / build_folder(variant, planted)
    into.mkdir(parents=True, exist_ok=True)
    for program in [f"fuzz/{target}" for target in targets] + list(variant.programs):
        there, here = built / program, into / pathlib.Path(program).name
        if not there.exists():
            raise Failed(f"{there} is missing")
        here.unlink(missing_ok=True)
        try:
            os.link(there, here)  # a linker writes a new file, this one stays
        except OSError:
            shutil.copy2(there, here)


def why_not_startable(program: pathlib.Path) -> str:
    """Why a fuzz target cannot be started, or nothing."""
    if not os.access(program, os.X_OK):
        return f"{program.name} is missing"
    status, output = run([str(program), "-help=1"], program.parent, 30)
    if status != 0:
        return f"'{program.name} -help=1' ended with {status}: {output.strip()[-200:]}"
    return "" if "-max_total_time" in output else f"{program.name} is no libFuzzer program"


def llvm_tool(name: str) -> str:
    """The tools that read coverage have to be of the compiler's version: its own lie beside it."""
    status, output = run(["clang++", f"-print-prog-name={name}"], pathlib.Path("."), 30)
    if status != 0:
        raise Failed(f"clang++ does not say where {name} is")
    return output.strip()
