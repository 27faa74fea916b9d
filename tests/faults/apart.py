"""Separate processes for disturbed sessions, each with its own folder, home and Ray.

A mark in the environment identifies all of them, whoever started them and whatever became of their parents; they are
ended by their ids.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
MARK = "DISTGRAD_FAULTS_MARK"
#: What this process's environment must not tell the other one: clusters to join, and which kernels to take.
_NOT_PASSED = ("RAY_ADDRESS", "RAY_JOB_ID", "RAY_AUTH_TOKEN", "OPENBLAS_CORETYPE", "NPY_DISABLE_CPU_FEATURES")


class Apart:
    """A place for a process that runs a module, and all that it starts. `disks` are folders below its own one with so
    many bytes each: file systems that nobody else sees, and that go with the last process."""

    def __init__(self, disks: Mapping[str, int] | None = None, env: Mapping[str, str] | None = None):
        self._mark = uuid.uuid4().hex
        self.folder = Path(tempfile.mkdtemp(prefix="dg"))  # short: the paths of sockets are limited
        self.out, self.err = self.folder / "out", self.folder / "err"
        self._disks, self._more = disks or {}, env or {}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str) -> None:
        """Run Python with these arguments."""
        home = self.folder / "home"
        home.mkdir(mode=0o700, exist_ok=True)
        command = [sys.executable, *arguments]
        if self._disks:
            command = [*_with_disks({self.folder / name: size for name, size in self._disks.items()}), *command]
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=self._environment(home, self._more), stdout=out, stderr=err,
                start_new_session=True,
            )  # fmt: skip

    def _environment(self, home: Path, more: Mapping[str, str]) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in _NOT_PASSED}
        own = {
            MARK: self._mark,
            "SPT_NOENV": "1",  # Ray's workers write their titles over their environment otherwise, and the mark is gone
            "HOME": str(home),
            "XDG_CACHE_HOME": str(home / ".cache"),
            "RAY_TMPDIR": str(self.folder),
            "PYTHONPATH": str(ROOT),
            "DISTGRAD_PROGRESS": "off",
        }
        given = {name: value.replace("{folder}", str(self.folder)) for name, value in more.items()}
        return kept | own | given

    def wait(self, seconds: float) -> int | None:
        """Its exit code; None where it did not end in time."""
        assert self.process is not None
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def tail(self, lines: int = 12) -> str:
        """The last that it said on its error output."""
        return "\n".join(self.err.read_text(errors="replace").splitlines()[-lines:])

    def alive(self) -> dict[int, str]:
        """The processes that bear the mark, with their names; the process itself is one of them."""
        return marked(self._mark)

    def leftovers(self, seconds: float) -> list[str]:
        """What still runs so many seconds after now, or nothing as soon as nothing does."""
        ends = time.monotonic() + seconds
        while (found := self.alive()) and time.monotonic() < ends:
            time.sleep(0.2)
        return sorted(found.values())

    def end(self) -> None:
        """Kill all that is left, and remove the folder."""
        while found := self.alive():
            for pid in found:
                _kill(pid)
            time.sleep(0.05)
        if self.process is not None:
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def marked(mark: str) -> dict[int, str]:
    """The processes with a mark in their environment."""
    wanted, found = f"{MARK}={mark}".encode(), {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = name_of(int(entry.name))
        except OSError:  # it ended, or is somebody else's
            continue
    return found


def name_of(pid: int) -> str:
    """What a process is, in a word: the program that a Python runs, or what Ray's worker does."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    names = [Path(word.decode(errors="replace")).name for word in words]
    if len(names) > 1 and names[0].startswith("python"):
        return next((name for name in names[1:] if not name.startswith("-")), names[0])
    return names[0]


def _with_disks(sizes: Mapping[Path, int]) -> list[str]:
    """A command in front of another one: it gets these file systems, in a namespace of its own."""
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    mounts = [f"mkdir -p {folder} && mount -t tmpfs -o size={size} tmpfs {folder}" for folder, size in sizes.items()]
    return [*unshare, "sh", "-c", " && ".join([*mounts, 'exec "$@"']), "sh"]


def can_mount() -> bool:
    """Whether this machine lets a process have file systems of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*_with_disks({Path(folder): 1 << 20}), "true"]
        return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def end_on_signal() -> None:
    """Have this process clean up when it is told to end. A shell's background and nohup have signals ignored, which
    the processes that this one starts would inherit: those that are sent some would go on."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
