#!/usr/bin/env python3
"""pack_seeds.py ZIP DIRECTORY...: packs the .batch files below the directories, without folders, byte for byte the same
for the same files."""
import sys
import zipfile
from pathlib import Path

archive, *directories = sys.argv[1:]
seeds = {}
for directory in map(Path, directories):
    for path in directory.rglob("*.batch"):
        name = "-".join(path.relative_to(directory.parent).parts)
        if seeds.setdefault(name, path) != path:
            sys.exit(f"pack_seeds.py: two files would be named {name}: {seeds[name]}, {path}")
if not seeds:
    sys.exit(f"pack_seeds.py: no .batch file below {' '.join(directories)}")
with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
    for name in sorted(seeds):
        entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
        entry.external_attr = 0o644 << 16
        packed.writestr(entry, seeds[name].read_bytes(), zipfile.ZIP_DEFLATED)
