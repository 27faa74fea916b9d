"""Starts a framework's server in that framework's environment and sends requests to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
#: Seconds without an answer after which a server is killed: torch.compile takes a minute for the long chain.
ANSWER_SECONDS = 600.0


class Framework(NamedTuple):
    """A row of the tables: what runs (module, variant) and in whose environment."""

    title: str
    environment: str
    module: str
    variant: str = ""


FRAMEWORKS = {
    "distgrad": Framework("distgrad", "distgrad", "in_distgrad"),
    "distgrad-watched": Framework("distgrad, recording; next process", "distgrad", "in_distgrad", "watched"),
    "distgrad-torch": Framework("distgrad, backend torch", "torch", "in_distgrad", "torch"),
    "numpy": Framework("NumPy: products or ufuncs alone", "distgrad", "in_numpy"),
    "jax": Framework("JAX jit", "jax", "in_jax"),
    "torch": Framework("torch eager", "torch", "in_torch"),
    "torch-compile": Framework("torch.compile", "torch", "in_torch", "compile"),
    "tf": Framework("TensorFlow tf.function", "tensorflow", "in_tensorflow"),
    "tf-xla": Framework("TensorFlow XLA", "tensorflow", "in_tensorflow", "xla"),
    "other": Framework("distgrad of another checkout", "other", "in_distgrad"),
}
PYTHONS = {
    "distgrad": sys.executable,
    **{name: str(ROOT / f".venv-{name}/bin/python") for name in ("jax", "torch", "tensorflow")},
}


class NotAvailable(Exception):
    """A server that did not start, failed or fell silent; the text says why."""


class Client:
    """A server process. `with` ends it."""

    def __init__(self, framework: Framework, python: str, threads: int, log: Path, root: Path = ROOT):
        self.title, self.log = framework.title, log
        self.gone = f"{python} ended"
        command = [python, str(root / "benchmarks/step.py"), "--serve", framework.module]
        command += ["--variant", framework.variant, "--threads", str(threads)]
        with log.open("w") as errors:
            try:
                self.process = subprocess.Popen(
                    command, env=_environment(threads), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                    text=True,
                )  # fmt: skip
            except OSError as e:
                raise NotAvailable(f"{python} does not start ({e.strerror}): make bench-step, or --python") from None
        try:
            self.versions: dict[str, str] = self._answer()["versions"]
        except NotAvailable:
            self.close()
            raise

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        with suppress(BrokenPipeError):
            _pipe(self.process.stdin).close()  # the server's loop ends
        _pipe(self.process.stdout).close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        try:
            print(json.dumps({"do": do, **request}), file=_pipe(self.process.stdin), flush=True)
        except BrokenPipeError:
            raise NotAvailable(self._last_words()) from None
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        timer = threading.Timer(ANSWER_SECONDS, self._give_up)
        timer.start()
        try:
            line = _pipe(self.process.stdout).readline()
        finally:
            timer.cancel()
        if not line:
            raise NotAvailable(self._last_words())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise NotAvailable(answer["error"])
        return answer

    def _give_up(self) -> None:
        self.gone = f"no answer within {ANSWER_SECONDS:.0f} s"
        self.process.kill()

    def _last_words(self) -> str:
        said = self.log.read_text(errors="replace").strip().splitlines()
        return f"{self.gone}: {said[-1]}" if said else self.gone


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def _environment(threads: int) -> dict[str, str]:
    count = str(threads)
    return {
        **os.environ,
        "OMP_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "CUDA_VISIBLE_DEVICES": "",
        "JAX_PLATFORMS": "cpu",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
