"""Secrets of a job: detects variable names that look secret, and reads files of variables on the machine of the script.

Ray shows the values of `submit --env` in its job list and in logs that every user of the cluster can read. A file of
variables is not copied; the job reads it. Nothing here prints a value, or a line that may contain one.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from distgrad.cli.console import MISUSED, fail

#: Texts that mark a name as secret: anywhere in it; as a whole word; at the end of a word.
_ANYWHERE = re.compile(r"SECRET|PASSW|PASSPHRASE|CREDENTIAL|PRIVATE|APIKEY|AUTHTOKEN")
_WORD = re.compile(r"TOKENS?|KEYS?|AUTH|CREDS?|PASS|PWD|PAT|BEARER|COOKIE|JWT|DSN|\w+(TOKEN|(ACCESS|SIGNING)KEY)")
#: Words next to which "key" and "token" are not secret: MAX_TOKENS, NUM_KEYS, SORT_KEY.
_COUNT = re.compile(r"MAX|MIN|NUM|N|COUNT|LIMIT|BATCH|PER|SORT|PRIMARY|FOREIGN|TOTAL|LEN|LENGTH|SIZE|PUBLIC")
#: User name and password in a URL.
_LOGIN = re.compile(r"://[^/\s:@]*:[^/\s@]+@")

_LINE = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)\s*=\s*(.*)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\", "$": "$"}


def looks_secret(name: str, value: str = "") -> bool:
    """Whether a variable of this name, or with this value, looks like a secret.

    >>> [looks_secret(name) for name in ("WANDB_API_KEY", "dbPassword", "GITHUBTOKEN")]
    [True, True, True]
    >>> [looks_secret(name) for name in ("MONKEY", "KEYBOARD", "TOKENIZERS_PARALLELISM", "MAX_TOKENS", "AUTHOR")]
    [False, False, False, False, False]
    >>> looks_secret("DATABASE_URL", "postgres://me:word@db/x")
    True
    """
    words = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).upper().split("_")
    if _ANYWHERE.search("".join(words)) or _LOGIN.search(value):
        return True
    if any(map(_COUNT.fullmatch, words)) or words == ["PWD"]:
        return False
    return any(map(_WORD.fullmatch, words))


def apply_file(path: str) -> None:
    """Set the variables of a file in this process; exits with an error if the file cannot be used."""
    file = Path(path).expanduser()
    _check(file)
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as e:
        fail(f"--env-file {file}: cannot be read: {e.strerror}", MISUSED)
    except UnicodeDecodeError:
        fail(f"--env-file {file}: is not UTF-8 text", MISUSED)
    try:
        found = parsed(text)
    except ValueError as e:
        fail(f"--env-file {file}: {e}", MISUSED)
    os.environ.update(found)


def _check(file: Path) -> None:
    from distgrad.workers.on_ray.connect.tokens import check_private

    try:
        check_private(file)
        if not file.is_file():
            fail(f"--env-file {file}: is not a file", MISUSED)
    except PermissionError as e:
        fail(f"--env-file {file}: {e.strerror or e}", MISUSED)
    except OSError as e:
        where = f" on this machine ({os.uname().nodename})" if "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ else ""
        fail(f"--env-file {file}: cannot be read{where}: {e.strerror}", MISUSED)


def parsed(text: str) -> dict[str, str]:
    """The variables of a file. Raises ValueError with the number of an invalid line, but not its text.

    >>> parsed("# mine\\nexport A=1\\nB = two words \\nC='$x # y'\\nD=\\"1\\\\n2\\"")
    {'A': '1', 'B': 'two words', 'C': '$x # y', 'D': '1\\n2'}
    """
    found: dict[str, str] = {}
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None or "\0" in line:
            raise ValueError(f"line {number} is neither KEY=VALUE nor a comment that begins with #")
        found[match[1]] = _value(match[2], number)
    return found


def _value(text: str, number: int) -> str:
    """The value without its quotes, if any; escapes such as \\n are replaced inside double quotes."""
    quote = text[:1]
    if quote not in ("'", '"'):
        return text
    inner = r"'([^']*)'" if quote == "'" else r'"((?:[^"\\]|\\.)*)"'
    match = re.fullmatch(rf"{inner}\s*(?:#.*)?", text)
    if match is None:
        raise ValueError(f"line {number} has an unclosed quote, or text after the closing quote")
    if quote == "'":
        return match[1]
    return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[0]), match[1])
