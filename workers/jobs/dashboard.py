"""The dashboard of a Ray cluster, which takes jobs: its address, and whether it answers. Knows no Ray."""

from __future__ import annotations

import json
import os
import re
import socket
import ssl
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

#: Where it listens unless it is told otherwise.
USUAL = "http://127.0.0.1:8265"
#: Seconds in which it must answer.
KNOCK = 5.0


class JobsError(Exception):
    """What a user can mend, in one line; `misuse` where he asked for what cannot be."""

    def __init__(self, text: str, misuse: bool = False):
        super().__init__(text)
        self.misuse = misuse


def usual_address() -> str:
    """The dashboard that the environment names, as for Ray's own commands; else that of this machine."""
    named = [os.environ.get(name, "") for name in ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")]
    return next((x for x in named if x.startswith(("http://", "https://"))), USUAL)


def checked(address: str) -> str:
    """The address without a trailing slash, if it can be one of a dashboard."""
    if "@" in address:  # which is not repeated: it may have a password
        raise JobsError(
            f"the address of a Ray dashboard has no user and no password in it: it is of the form {USUAL}. Behind a "
            f"proxy that wants them, go past it, as with `ssh -L 8265:localhost:8265 HEAD`",
            misuse=True,
        )
    try:
        parts = urlsplit(address)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, or too large; brackets that do not close
        fine = False
    if not fine or re.search(r"\s", address):
        raise JobsError(
            f"{address!r} is not the address of a Ray dashboard: that begins with http:// or https://, such as {USUAL}",
            misuse=True,
        )
    return address.rstrip("/")


def wants_token(address: str) -> bool:
    """Whether a dashboard wants to see a token; JobsError where there is none. Ray's own client would wait for minutes
    where nobody answers."""
    try:
        with urlopen(f"{address}/api/version", timeout=KNOCK) as answer:
            json.load(answer)["ray_version"]
    except HTTPError as e:
        e.close()
        if e.code in (401, 403):
            return True
        raise JobsError(f"{address} is no Ray dashboard: it answers {e.code} {e.reason}") from e
    except (ValueError, KeyError, TypeError) as e:
        raise JobsError(f"{address} is no Ray dashboard: it answers, but not with Ray's version") from e
    except OSError as e:
        return _unreachable(address, e.reason if isinstance(e, URLError) else e)
    except Exception as e:  # what the HTTP library raises for an answer that is none
        raise JobsError(f"{address} is no Ray dashboard: it does not speak HTTP ({type(e).__name__})") from e
    return False


def _unreachable(address: str, reason: Any) -> bool:
    if isinstance(reason, ssl.SSLError):
        return False  # Ray's client has certificates of its own
    if isinstance(reason, socket.gaierror):
        raise JobsError(f"there is no host {urlsplit(address).hostname!r} ({reason.strerror})", misuse=True)
    why = f"within {KNOCK:g} s" if isinstance(reason, TimeoutError) else f"({reason})"
    raise JobsError(
        f"no Ray dashboard answers at {address} {why}. Is the cluster up, is this the port of its dashboard (8265 "
        f"unless `ray start` was told otherwise), and may this machine reach it?"
    )
