#!/usr/bin/env python3
"""Stands in for a fuzz target: speaks libFuzzer's command line and log, finds an input now and then, and misbehaves when an
input, or its own name, asks for it."""
import hashlib
import os
import pathlib
import sys
import time

name = pathlib.Path(sys.argv[0]).name
options = dict(arg[1:].split("=", 1) for arg in sys.argv[1:] if arg.startswith("-") and "=" in arg)
places = [pathlib.Path(arg) for arg in sys.argv[1:] if not arg.startswith("-")]


def say(text):
    print(text, flush=True)


def fail(data, kind="crash"):
    path = options.get("artifact_prefix", "./") + kind + "-" + hashlib.sha1(data).hexdigest()
    pathlib.Path(path).write_bytes(data)
    say("==1== ERROR: libFuzzer: deadly signal")
    if "crashes" not in name:
        say("FINDING C1: every context token is gathered exactly once, in order\nwhere:   extend 0\ndiffers: 1, expected 2")
    say(f"artifact_prefix='x'; Test unit written to {path}")
    sys.exit(77)


def inputs():
    for place in places:
        for path in sorted(place.iterdir()) if place.is_dir() else [place]:
            if path.is_file() and not path.name.startswith("."):
                yield path.read_bytes()


def status(count, word):
    features = len(set(inputs_seen))
    say(f"#{count}\t{word} cov: {features} ft: {features * 2} corp: {len(inputs_seen)}/9b lim: 9 exec/s: {100 + count} rss: 30Mb")


if options.get("help"):
    say("-max_total_time\n" if "deaf" not in name else "no such option")
    sys.exit(0 if "deaf" not in name else 1)

inputs_seen = list(inputs())
if options.get("set_cover_merge") or options.get("merge"):
    if "merge_breaks" in name:
        sys.exit(1)
    chosen = {hashlib.sha1(data).hexdigest(): data for data in inputs_seen if b"superfluous" not in data}
    new = {name: data for name, data in chosen.items() if not (places[0] / name).exists()}
    for file, data in new.items():
        (places[0] / file).write_bytes(b"" if "full_disk" in name else data)
    say(f"MERGE-OUTER: {len(new)} new files with 1 new features added; 1 new coverage edges")
    sys.exit(0)
for data in inputs_seen:
    if b"fails" in data:
        fail(data)
if "wavers" in name and options.get("runs") == "0":
    inputs_seen.append(os.urandom(8) if time.time_ns() % 2 else os.urandom(9))
    inputs_seen += [os.urandom(8)] * (time.time_ns() // 1000 % 50)
    inputs_seen = [bytes([i % 256]) + os.urandom(4) for i in range(time.time_ns() // 1000 % 97 + 1)]
status(len(inputs_seen), "INITED")
if "runs" in options:
    say(f"stat::number_of_executed_units: {len(inputs_seen)}")
    sys.exit(0)
if places and not places[0].is_dir():
    sys.exit(0)
until = time.time() + float(options["max_total_time"]) + 1
count = len(inputs_seen)
if "dies" in name:
    sys.exit(3)
while time.time() < until:
    time.sleep(0.05)
    data = f"{name} {options['seed']} {count}".encode()
    (places[0] / hashlib.sha1(data).hexdigest()).write_bytes(data)
    inputs_seen.append(data)
    count += 10
    status(count, "NEW   ")
    if any(word in name for word in ("finds", "crashes", "canary")) and count > 30 and "C1" not in os.environ.get("ATTNFUZZ_MUTE", ""):
        fail(data + b" fails")
status(count, "DONE  ")
say(f"Done {count} runs in 1 second(s)\nstat::number_of_executed_units: {count}")
