#!/usr/bin/env python3
"""Stands in for attnfuzz: an input that names an invariant breaks it, D1 only on the device; one that says nonsense is refused."""
import pathlib
import re
import sys

command, words = sys.argv[1], [word for word in sys.argv[2:] if not word.startswith("--")]
text = pathlib.Path(words[0]).read_text(errors="replace")
if command == "show":
    pathlib.Path(words[1]).write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    sys.exit(0)
if "nonsense" in text:
    sys.exit(2)
ids = [found for found in re.findall(r"\b[A-Z]\d\b", text) if found[0] != "D" or "--device" in sys.argv]
if not ids:
    sys.exit(0)
print(f"FINDING {ids[0]}: a claim\nwhere:   here\ndiffers: 1, expected 2\nbatch:\n  a table")
if command == "reduce":
    folder = pathlib.Path(words[words.index(words[0]) + 1])
    (folder / f"reduced-{ids[0]}-1.batch").write_text(f"# {ids[0]}\nattnfuzz 1\nbatch q1\n# {ids[0]} {'fails' if 'stays' in text else ''}\n")
    print("shrunk:  3 of 9 smaller cases kept; run again: same finding; unshrunk case in somewhere")
print("repeat:  attnfuzz check\nregression, ready to paste:\na draft")
sys.exit(1)
