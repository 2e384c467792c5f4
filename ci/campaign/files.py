"""Files that survive a kill at any moment, and locks that do not outlive their owner."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import shutil
import socket
import tempfile

from campaign.model import Record, record_of, to_json

# libFuzzer says nothing when it cannot write: below this much free space nothing is started.
LEAST_FREE_MIB = 200


class Failed(Exception):
    """What could not be done, in a line: exit code 2."""


def write_whole(path: pathlib.Path, content: str | bytes) -> None:
    """Writes aside and renames: whoever reads sees the old content or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode("utf-8", "replace") if isinstance(content, str) else content
    handle, aside = tempfile.mkstemp(dir=path.parent, prefix=".aside-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(aside, 0o644)  # mkstemp's are the owner's alone
        os.replace(aside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(aside)
        raise


def plain_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """The files of a corpus folder, in the order of their names; what is being written, or is somebody's own, is not one."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        names = [e.name for e in entries if not e.name.startswith(".") and e.is_file(follow_symlinks=False)]
    return [folder / name for name in sorted(names)]


def sha1(data: bytes) -> str:
    """The name that libFuzzer gives an input."""
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


def add_input(folder: pathlib.Path, data: bytes) -> bool:
    """Adds an input under the name of its content; whether it was not there."""
    path = folder / sha1(data)
    if path.exists():
        return False
    write_whole(path, data)
    return True


def free_mib(folder: pathlib.Path) -> int:
    return shutil.disk_usage(folder).free // (1 << 20)


def make_writable(folder: pathlib.Path) -> None:
    """Creates the folder, or says why nothing can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".probe-") as probe:
            probe.write(b"probe")
    except OSError as error:
        raise Failed(f"cannot write in {folder}: {error.strerror}") from error
    need_room(folder)


def need_room(folder: pathlib.Path) -> None:
    if free_mib(folder) < LEAST_FREE_MIB:
        raise Failed(f"disk full: {free_mib(folder)} MiB left for {folder}, less than {LEAST_FREE_MIB}")


# ---- locks ----


class Lock:
    """A lock that the kernel gives back when its owner dies, however it dies; the file says who the owner is. Works across
    machines where the file system's flock does (NFS, Lustre with -o flock)."""

    def __init__(self, path: pathlib.Path):
        self.path = path
        self._handle: int | None = None

    def try_take(self) -> bool:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return False
        except OSError as error:
            os.close(handle)
            raise Failed(f"cannot lock {self.path}: {error.strerror}") from error
        os.ftruncate(handle, 0)
        os.write(handle, f"pid {os.getpid()} on {socket.gethostname()}\n".encode())
        self._handle = handle
        return True

    def owner(self) -> str:
        try:
            return self.path.read_text(errors="replace").strip() or "somebody"
        except OSError:
            return "somebody"

    def release(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


# ---- records ----


def append_record(path: pathlib.Path, record: Record) -> None:
    """Under a lock, so that lines of several processes do not mix. A line that a kill cut short is ended first, and lost
    alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = to_json(record) + "\n"
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        size = os.fstat(handle).st_size
        if size > 0 and os.pread(handle, 1, size - 1) != b"\n":
            line = "\n" + line
        os.write(handle, line.encode())
    finally:
        os.close(handle)


def read_records(path: pathlib.Path) -> list[Record]:
    """All records, each once, but lines that a kill cut short."""
    records: dict[tuple, Record] = {}
    try:
        text = path.read_text(encoding="utf-8", errors="replace")  # as written: JSON
    except FileNotFoundError:
        return []
    for line in text.splitlines():
        with contextlib.suppress(json.JSONDecodeError, TypeError, ValueError):
            record = record_of(line)
            records[record.campaign, record.kind, record.target, record.variant, record.seed, record.began] = record
    return list(records.values())
