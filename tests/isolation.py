"""What a session of tests may touch: a folder of its own, with a home, a cache and Ray's files. Nothing of the user's.

conftest.py calls `redirect()` before anything imports NumPy, Ray or distgrad, so that it holds for this process, for
those of pytest-xdist, and for all that tests start. Each process of pytest-xdist has a part of the folder for itself:
Ray's note of the running cluster, its tokens and a calibration belong to one process. This file knows no test.
"""

from __future__ import annotations

import atexit
import contextlib
import locale
import os
import shutil
import signal
import site
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

#: For the processes that this one starts: the folder of the session, and the process that made it and removes it.
FOLDER, OWNER = "DISTGRAD_TEST_FOLDER", "DISTGRAD_TEST_OWNER"
#: Set by who runs the tests: how many times faster than the defaults this machine is said to be, as if calibrated.
RATES = "DISTGRAD_TEST_RATES"
#: Set by who runs the tests: names of variables that are left as they are, such as OPENBLAS_CORETYPE.
KEEP = "DISTGRAD_TEST_KEEP"

#: Variables by which a user's environment would decide what tests see: by their first letters, and by name.
DROPPED_PREFIXES = (
    "RAY_", "DISTGRAD_", "OPENBLAS_", "GOTO_", "OMP_", "MKL_", "BLIS_", "VECLIB_", "NPY_", "LC_", "SLURM_", "MPL",
)  # fmt: skip
DROPPED = {
    "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME",
    "BASH_ENV", "CDPATH", "LANGUAGE",
    "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS", "FORCE_COLOR", "GITHUB_ACTIONS", "LINES", "NO_COLOR", "PY_COLORS",
    "TERMINAL_WIDTH", "TTY_COMPATIBLE", "TTY_INTERACTIVE",
    "PYTHONIOENCODING", "PYTHONOPTIMIZE", "PYTHONSTARTUP", "PYTHONUTF8", "PYTHONWARNINGS",
}  # fmt: skip
#: What pip needs of the real home: where its index of packages is.
TOOLS = {"PIP_CONFIG_FILE": (".config/pip/pip.conf", ".pip/pip.conf"), "NETRC": (".netrc",)}
#: A socket's path has at most 107 bytes: Ray needs 66 of them below its folder, a session 14, and a test's folder 13.
LONGEST = 14
#: What distgrad and Ray keep in a home, and what distgrad's commands leave where they are called. Nothing else is
#: watched: other programs of the user write into the home meanwhile.
WATCHED_AT_HOME = (".cache/distgrad", ".ray")
WATCHED_HERE = ("distgrad-demo", "report.html", "trace.json", "plan.html")
#: How long processes that tests left behind may take to end by themselves.
EXIT_SECONDS = 2.0

State = Mapping[str, tuple[int, int]]


class Session:
    """The folder, what was there before the tests, and what they were told of the user's environment."""

    def __init__(self) -> None:
        self.given = dict(os.environ)
        self.user_home = Path.home()
        self.cwd = Path.cwd()
        worker = self.given.get("PYTEST_XDIST_WORKER", "")
        self.owner = not (worker and self.given.get(OWNER) == str(os.getppid()))
        self.folder = _make_folder(self.given) if self.owner else Path(self.given[FOLDER])
        self.part = self.folder / (worker.removeprefix("gw") if not self.owner else "m")
        self.home = self.part / "home"
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.part / "pid").write_text(str(os.getpid()))
        self.before = self._watched()

    @property
    def colour(self) -> str | None:
        """How the user wants pytest's own output, which the tests must not see: "yes", "no" or None for its default."""
        if self.given.get("NO_COLOR") or self.given.get("PY_COLORS") == "0" or self.given.get("TERM") == "dumb":
            return "no"
        return "yes" if self.given.get("FORCE_COLOR") or self.given.get("PY_COLORS") == "1" else None

    def new_of_the_user(self) -> list[str]:
        """What is new or changed, since the session began, where only tests that touch the user's things write."""
        return sorted(path for path, state in self._watched().items() if self.before.get(path) != state)

    def _watched(self) -> State:
        places = [self.user_home / name for name in WATCHED_AT_HOME] + [self.cwd / name for name in WATCHED_HERE]
        caches = [(self.given.get("DISTGRAD_CACHE"), ""), (self.given.get("XDG_CACHE_HOME"), "distgrad")]
        found = files([*places, *(Path(cache, name) for cache, name in caches if cache)])
        ours = [file.read_text() for file in self.folder.glob("*/pid")]  # others on this machine have theirs there too
        for folder in {self.given.get("RAY_TMPDIR"), self.given.get("TMPDIR"), "/tmp"} - {None}:
            paths = [path for pid in ours for path in Path(folder, "ray").glob(f"session*_{pid}")]
            found |= {str(path): (0, 0) for path in paths}
        return found


def redirect() -> Session:
    """Give this process, and all that it starts, a home and an environment of the tests' own."""
    session = Session()
    environment = neutral(session.given, session.user_home)
    environment |= {"HOME": str(session.home), "RAY_TMPDIR": str(session.part), "TMPDIR": str(session.part)}
    environment |= {FOLDER: str(session.folder), OWNER: str(os.getpid()) if session.owner else session.given[OWNER]}
    # The folders of tests stay where pytest keeps them, for a look after a failure.
    environment.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    os.environ.clear()
    os.environ.update(environment)
    for name in ("COLUMNS", "LINES"):  # pytest loads readline, which sets them for the processes that this one starts
        os.unsetenv(name)
    tempfile.tempdir = str(session.part)
    os.umask(0o022)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what runs in the background; inherited
        signal.signal(signal.SIGINT, signal.default_int_handler)
    with contextlib.suppress(locale.Error):  # what processes print is read in this process's encoding
        locale.setlocale(locale.LC_CTYPE, environment["LC_ALL"])
    if session.owner:
        atexit.register(_remove, session.folder, os.getpid())  # before Ray is imported, so after what Ray does at exit
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the session as Ctrl-C does: it cleans up
    return session


def neutral(given: Mapping[str, str], home: Path) -> dict[str, str]:
    """An environment without what a user may have set there and no test should see."""
    kept = {RATES, KEEP, *given.get(KEEP, "").split()}
    found = {
        name: value
        for name, value in given.items()
        if name in kept or not (name in DROPPED or name.startswith(DROPPED_PREFIXES))
    }
    for name, places in TOOLS.items():
        for place in (home / each for each in places):
            if name not in found and place.exists():
                found[name] = str(place)
    if site.ENABLE_USER_SITE:  # outside of virtual environments
        found.setdefault("PYTHONUSERBASE", site.getuserbase())
    here = "127.0.0.1,localhost,.invalid"  # a proxy is for pip: it knows neither this machine nor names that none has
    proxies = {name: ",".join(filter(None, [found.get(name), here])) for name in ("no_proxy", "NO_PROXY")}
    return found | proxies | {"TERM": "xterm", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}


def keep_rates(factor: float) -> None:
    """As if this machine had been calibrated and were so many times faster than the defaults."""
    import json
    from dataclasses import replace

    from distgrad.scheduler.cluster import Machine
    from distgrad.workers.tools.calibrate import cache_file, document

    amounts = ("gemm_half", "gemm_parallel", "cache_bytes")
    rates = {name: value for name, value in Machine().to_json().items() if name not in amounts}
    scaled = {name: v / factor if name.endswith("_seconds") else v * factor for name, v in rates.items()}
    path = cache_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document(replace(Machine(), **scaled))))


class Cache:
    """The cache folder that tests share. One that keeps rates in it would decide how later ones plan."""

    def __init__(self, session: Session) -> None:
        self._folder = str(session.home / ".cache" / "distgrad")
        self._before = self._names()

    def restore(self) -> list[str]:
        """What was put there since, which is removed."""
        found = sorted(self._names() - self._before)
        for name in found:
            os.remove(os.path.join(self._folder, name))
        return found

    def _names(self) -> set[str]:
        try:
            return set(os.listdir(self._folder)) - {"native"}  # compiled code, which decides nothing
        except FileNotFoundError:
            return set()


def _make_folder(given: Mapping[str, str]) -> Path:
    """New, where Ray would have its files, unless the path is too long for sockets."""
    wanted = [given.get("RAY_TMPDIR"), given.get("TMPDIR"), "/tmp"]
    usual = [place for place in wanted if place and len(place) <= LONGEST and os.access(place, os.W_OK)]
    made = Path(tempfile.mkdtemp(prefix="dg", dir=usual[0] if usual else None))
    made.chmod(0o711)  # tests of permissions act as another user, who must get through to what he may read
    return made


def files(places: list[Path]) -> dict[str, tuple[int, int]]:
    """The files at and below some places, with their times of change and sizes."""
    found = {}
    for path in (each for place in places for each in (place, *place.rglob("*"))):
        with contextlib.suppress(OSError):
            status = path.lstat()
            found[str(path)] = (0, 0) if path.is_dir() else (status.st_mtime_ns, status.st_size)
    return found


def _remove(folder: Path, owner: int) -> None:
    """End what tests left behind, and remove the folder of the session."""
    if os.getpid() != owner:  # a fork
        return
    ends = time.monotonic() + EXIT_SECONDS
    while (left := list(processes(folder))) and time.monotonic() < ends:
        time.sleep(0.1)
    for pid in left:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    for _ in range(20):  # a process that is ending may still write
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.1)


def processes(folder: Path) -> Iterator[int]:
    """The processes that the session started, by its folder in their environment or command line (on Linux)."""
    marks = f"{FOLDER}={folder}\0".encode(), f"{folder}/".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            ours = marks[0] in (entry / "environ").read_bytes() or marks[1] in (entry / "cmdline").read_bytes()
            if ours and int(entry.name) != os.getpid():
                yield int(entry.name)
