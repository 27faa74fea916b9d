"""`distgrad run`, and what `submit` and `jobs` say without a cluster: output, exit codes, errors of one line."""

from __future__ import annotations

import asyncio
import io
import json
import platform
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner, Result

from distgrad import runtime
from distgrad.cli import app
from distgrad.cli.session_options import OF_RUN
from distgrad.workers.jobs.dashboard import usual_address
from distgrad.workers.jobs.jobs import LARGEST, Job, Request, _Tail
from distgrad.workers.jobs.package import assemble, certain_bytes, explain_missing


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of the test's own, and all that running a script changes as it was afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(runtime, "_default", runtime._default)
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def script(text: str, name: str = "script.py") -> str:
    Path(name).write_text(text)
    return name


def check_error(made: Result, code: int, text: str) -> None:
    assert (made.exit_code, made.stdout) == (code, "")
    assert made.stderr.startswith("error: ")
    assert made.stderr.count("\n") == 1
    assert text in made.stderr


# -- run ---------------------------------------------------------------------------------------------------------


def test_a_script_gets_what_is_no_option_of_run() -> None:
    made = call("run", script("import sys; print(sys.argv)"), "a", "--rate=1", "-n", "3", "--check-numerics", "-1")
    assert made.stdout == "['script.py', 'a', '--rate=1', '-n', '3', '-1']\n"


def test_all_that_follows_two_dashes_is_the_scripts() -> None:
    made = call("run", script("import sys; print(sys.argv[1:])"), "--", "--workers", "8", "--", "--help")
    assert made.stdout == "['--workers', '8', '--', '--help']\n"


def test_a_script_is_the_main_module_and_imports_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    script("NAME = 'beside'", "folder/beside_it.py")
    script("import beside_it\nprint(__name__, __file__, beside_it.NAME)", "folder/main.py")
    command = [sys.executable, "-m", "distgrad", "run", "folder/main.py"]
    made = subprocess.run(command, text=True, capture_output=True, check=True)
    assert made.stdout == "__main__ folder/main.py beside\n"


CHECKED = """
import threading
import numpy as np, distgrad as dg
function = dg.function(lambda x: np.log(x))
def call():
    try:
        function(np.zeros(2))
    except dg.NumericsError:
        print("refused")
call()
thread = threading.Thread(target=call)
thread.start()
thread.join()
"""


def test_the_options_hold_for_all_threads_of_the_script() -> None:
    assert call("run", "--check-numerics", script(CHECKED)).stdout == "refused\nrefused\n"


SETTINGS = """
from distgrad import runtime
planner = runtime.current()._planner
print(planner.settings.threads, planner.settings.timeout, planner.options.memory, planner.options.cpus_per_task)
"""


def test_options_of_a_session_reach_that_of_the_script() -> None:
    options = ["--threads", "2", "--timeout", "60", "--memory", "1 KiB", "--cpus-per-task", "1"]
    assert call("run", *options, script(SETTINGS)).stdout == "2 60.0 1024 1\n"


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ("--bits=any", {"engine": "ray", "bits": "any"}),
        ("--task-timeout=9", {"engine": "ray", "task_timeout": 9.0}),
        ("--workers=2", {"engine": "ray", "workers": 2}),
        ("--memory=1 GB", {"engine": "local", "memory": "1 GB"}),
    ],
)
def test_an_option_of_ray_has_the_script_run_there(
    given: str, asked: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[str, object] = {}

    def open_session(engine: str, **options: object) -> None:
        found.update(engine=engine, **{name: value for name, value in options.items() if value})
        raise ConnectionError("that is all to be known")

    monkeypatch.setattr("distgrad.run.session.Session", open_session)
    assert call("run", given, script("")).exit_code == 1
    assert found == asked


@pytest.mark.parametrize("name", [name for name in OF_RUN if name != "check_numerics"])
def test_a_value_that_cannot_be_is_told_with_its_option(name: str) -> None:
    made = call("run", f"--{name.replace('_', '-')}=junk?", script(""))
    assert (made.exit_code, made.stdout, made.stderr.count("\n")) == (2, "", 1)
    assert name.replace("_", "-") in made.stderr.replace("_", "-")


@pytest.mark.parametrize(("code", "expected"), [("0", 0), ("5", 5), ("None", 0), ("'bye'", 1)])
def test_the_exit_code_is_the_scripts(code: str, expected: int) -> None:
    assert call("run", script(f"raise SystemExit({code})")).exit_code == expected


def test_a_traceback_begins_in_the_script() -> None:
    made = call("run", script("def f():\n    raise ValueError('of f')\n\nf()"))
    assert made.exit_code == 1
    lines = made.stderr.splitlines()
    assert lines[:2] == ["Traceback (most recent call last):", '  File "script.py", line 4, in <module>']
    assert lines[-1] == "ValueError: of f"


def test_a_syntax_error_is_shown_without_frames() -> None:
    made = call("run", script("import"))
    assert made.exit_code == 1
    assert made.stderr.startswith('  File "script.py", line 1\n')


def test_an_interrupt_is_one_line() -> None:
    made = process("run", script("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nwhile True: pass"))
    assert (made.returncode, made.stdout, made.stderr) == (130, "", "interrupted\n")


def test_a_script_may_handle_an_interrupt_itself() -> None:
    made = call("run", script("try:\n    raise KeyboardInterrupt\nexcept KeyboardInterrupt:\n    print('saved')"))
    assert (made.exit_code, made.stdout, made.stderr) == (0, "saved\n", "")


@pytest.mark.parametrize("given", [["--worker", "2"], ["--worker=2"]])
def test_an_option_that_looks_like_one_of_runs_is_passed_on_with_a_note(given: list[str]) -> None:
    made = call("run", script("import sys; print(sys.argv[1:])"), *given)
    assert made.stdout == f"{given}\n"
    assert made.stderr.startswith("note: --worker is passed to the script; did you mean --workers?")
    assert made.stderr.count("\n") == 1


@pytest.mark.parametrize("given", [["--", "--worker", "2"], ["--rate", "2"], ["-worker"]])
def test_other_options_are_passed_on_without_a_word(given: list[str]) -> None:
    assert call("run", script(""), *given).stderr == ""


RUNS = "import numpy as np, distgrad as dg\nprint(dg.function(lambda x: x + 1)(np.zeros(1)))"


def process(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command with all that comes at the end of its process."""
    command = [sys.executable, "-m", "distgrad", *arguments]
    return subprocess.run(command, text=True, capture_output=True, check=False, timeout=60)


def test_the_trace_is_written_and_its_path_said() -> None:
    made = process("run", script(RUNS), "--trace", "trace.json")
    assert (made.stdout, made.stderr) == ("[1.]\n", f"wrote {Path.cwd() / 'trace.json'}\n")
    assert json.loads(Path("trace.json").read_text())["distgrad"]["plans"]


def test_a_job_says_on_which_machine_its_trace_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    made = process("run", script(RUNS), "--trace", "trace.json")
    assert made.stderr == f"wrote {Path.cwd() / 'trace.json'} on {platform.node()}\n"


def test_the_trace_is_written_where_it_was_asked_for_though_the_script_goes_elsewhere() -> None:
    Path("other").mkdir()
    process("run", script(f"import os; os.chdir('other')\n{RUNS}"), "--trace", "trace.json")
    assert Path("trace.json").exists()


def test_the_trace_of_a_script_that_fails_is_written_too() -> None:
    made = process("run", script(f"{RUNS}\n1 / 0"), "--trace", "trace.json")
    assert made.returncode == 1
    assert Path("trace.json").exists()


def test_a_trace_of_nothing_is_said_to_be_missing() -> None:
    made = process("run", script(""), "--trace", "trace.json")
    assert made.stderr == f"{Path.cwd() / 'trace.json'} was not written: nothing ran in the session\n"


def test_a_trace_that_cannot_be_written_any_more_is_told_in_one_line() -> None:
    Path("gone").mkdir()
    made = process("run", script(f"{RUNS}\nimport os; os.rmdir('gone')"), "--trace", "gone/trace.json")
    assert made.stderr.startswith(f"error: {Path.cwd() / 'gone/trace.json'} could not be written: ")
    assert made.stderr.count("\n") == 1


LATE = """
import atexit, threading
import numpy as np, distgrad as dg
f = dg.function(lambda x: x + 1)
main = threading.current_thread()
atexit.register(lambda: print("at exit", f(np.ones(1))))
threading.Thread(target=lambda: (main.join(), print("thread", f(np.zeros(1))))).start()
"""


def test_the_session_outlives_the_threads_of_the_script_and_what_it_does_at_exit() -> None:
    made = process("run", script(LATE), "--trace", "trace.json")
    assert made.stdout == "thread [1.]\nat exit [2.]\n"
    assert json.loads(Path("trace.json").read_text())["distgrad"]["plans"][0]["runs"]["count"] == 2


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["missing.py"], "the script 'missing.py' cannot be read: No such file or directory"),
        (["."], "the script '.' cannot be read: Is a directory"),
        (["--wokers", "script.py"], "there is no option '--wokers'"),
        (["script.py", "--trace", "trace.txt"], "a trace is a .json file"),
        (["script.py", "--address", "nowhere"], "'nowhere' is not the address of a Ray cluster"),
        (["script.py", "--address", "http://127.0.0.1:8265"], "is the address of a dashboard"),
    ],
)
def test_wrong_use_of_run_is_told_in_one_line(arguments: list[str], text: str) -> None:
    script("")
    check_error(call("run", *arguments), 2, text)


def test_doctor_tells_of_the_address_of_a_dashboard_as_run_does() -> None:
    check_error(call("doctor", "--address", "http://127.0.0.1:8265"), 2, "is the address of a dashboard")


# -- submit and jobs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["missing.py"], "the script 'missing.py' cannot be read"),
        (["script.py", "--working-dir", "nowhere"], "there is no folder 'nowhere' (--working-dir)"),
        (["script.py", "--working-dir", "other"], "the script 'script.py' is not in the folder"),
        (["script.py", "--bits", "some"], "bits is 'same' or 'any', got 'some'"),
        (["script.py", "--timeout", "-1"], "timeout is a positive number of seconds, got -1.0"),
        (["script.py", "--env", "secret"], "--env takes KEY=VALUE"),
        (["script.py", "--env", "A=1", "--env", "a-b=secret"], "see number 2"),
        (["script.py", "--address", "127.0.0.1:8265"], "is not the address of a Ray dashboard"),
        (["script.py", "--address", "http://127.0.0.1:99999"], "is not the address of a Ray dashboard"),
        (["script.py", "--address", "http://me:secret@127.0.0.1:8265"], "has no user and no password in it"),
        (["script.py", "--address", "http://nowhere.invalid:8265"], "there is no host 'nowhere.invalid'"),
    ],
)
def test_wrong_use_of_submit_is_told_in_one_line_without_secrets(arguments: list[str], text: str) -> None:
    script("")
    Path("other").mkdir()
    made = call("submit", *arguments)
    check_error(made, 2, text)
    assert "secret" not in made.stderr


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.parametrize("command", [["submit", "script.py"], ["jobs", "list"], ["jobs", "logs", "x"]])
def test_a_refused_connection_is_told_in_one_line(command: list[str], closed_port: int) -> None:
    script("")
    made = call(*command, "--address", f"http://127.0.0.1:{closed_port}")
    check_error(made, 1, f"no Ray dashboard answers at http://127.0.0.1:{closed_port} ([Errno")


def test_the_address_may_come_from_the_environment(closed_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", f"http://127.0.0.1:{closed_port}")
    check_error(call("jobs", "list"), 1, f"at http://127.0.0.1:{closed_port} ")


def test_the_address_of_a_head_in_the_environment_is_not_taken_for_a_dashboards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert usual_address() == "http://127.0.0.1:8265"


class Other(BaseHTTPRequestHandler):
    """Some other program's server."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>")

    def log_message(self, *_: object) -> None:
        pass


def test_another_server_is_not_taken_for_a_dashboard() -> None:
    with HTTPServer(("127.0.0.1", 0), Other) as server:
        Thread(target=server.handle_request, daemon=True).start()
        made = call("jobs", "list", "--address", f"http://127.0.0.1:{server.server_port}")
    check_error(made, 1, "is not a Ray dashboard: it answers, but not with Ray's version")


# -- what a job takes along --------------------------------------------------------------------------------------


def test_the_command_of_a_job_quotes_arguments() -> None:
    request = Request("a b.py", ["it's", "--workers"], options=["--check-numerics"])
    expected = "python -P -m distgrad run --address auto --check-numerics -- 'a b.py' 'it'\"'\"'s' --workers"
    assert request.entrypoint == expected


def test_a_request_does_not_show_its_variables() -> None:
    assert "secret" not in repr(Request("a.py", env={"KEY": "secret"}))


def test_the_shipped_package_runs_without_an_install(tmp_path: Path) -> None:
    assemble(tmp_path)
    code = "import distgrad as dg, numpy as np; print(dg.scheduler.__file__, dg.function(lambda x: x + 1)(np.zeros(1)))"
    command = [sys.executable, "-c", code]
    made = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, check=True)
    assert made.stdout == f"{tmp_path}/distgrad/scheduler/__init__.py [1.]\n"


def test_the_size_of_a_folder_counts_what_is_uploaded_for_sure(tmp_path: Path) -> None:
    for name in ("a", "kept/b", ".git/c", "repository/d", "repository/below/e"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"12345")
    (tmp_path / "repository" / ".gitignore").write_text("")
    assert certain_bytes(tmp_path, LARGEST) == 10


@pytest.mark.parametrize(
    ("log", "text"),
    [
        ("sh: 1: python: not found", "; specify its Python with --python"),
        ("/usr/bin/python: No module named distgrad", ": the cluster has no distgrad; submit without --no-ship"),
        ("No module named 'array_api_compat'", "lacks 'array_api_compat', which distgrad needs; submit with --install"),
        ("No module named 'pandas'", "add it to the working folder, or install it with --pip"),
    ],
)
def test_what_a_cluster_lacks_is_explained(log: str, text: str) -> None:
    assert text in explain_missing(log)


@pytest.mark.parametrize("log", ["KeyError: 3", "No module named 'numpy.other'", "No module named 'a'\n1\n2\n3\n"])
def test_other_ends_of_a_log_are_not_explained(log: str) -> None:
    assert explain_missing(log) == ""


async def interrupted(parts: list[str]) -> AsyncIterator[str]:
    for part in parts:
        yield part
    raise ConnectionResetError


async def whole(parts: list[str]) -> AsyncIterator[str]:
    for part in parts:
        yield part


def test_a_log_is_written_once_though_its_connection_breaks() -> None:
    tails = iter([interrupted(["one\ntw"]), interrupted(["one\n"]), whole(["one\n", "two\nthree\n"])])
    client, written = SimpleNamespace(tail_job_logs=lambda _: next(tails)), io.StringIO()
    tail = _Tail(written.write)
    assert [asyncio.run(tail.read(client, "id")) for _ in range(3)] == [False, False, True]
    assert written.getvalue() == "one\ntwo\nthree\n"


def test_a_job_that_did_not_begin_tells_why() -> None:
    message = "runtime_env setup failed: see below.\nTraceback:\n  ...\nERROR: No matching distribution found for x\n"
    job = Job("id", "FAILED", "a.py", 1.0, 2.0, None, message)
    assert job.failure().endswith("setup failed: see below. ERROR: No matching distribution found for x")


@pytest.mark.parametrize("command", ["run", "submit"])
def test_a_misspelt_option_before_the_script_proposes_the_right_one(command: str) -> None:
    made = call(command, "--check-numeric", "script.py")
    assert made.exit_code == 2
    assert "there is no option '--check-numeric'; did you mean --check-numerics?" in made.output
