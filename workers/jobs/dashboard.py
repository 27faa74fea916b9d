"""The dashboard of a Ray cluster, which accepts jobs: its address, and whether it answers. Does not import Ray."""

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

#: The default address of a dashboard.
USUAL = "http://127.0.0.1:8265"
#: Seconds for a dashboard to answer.
ANSWER_TIMEOUT = 5.0


class JobsError(Exception):
    """A problem that the user can fix, in one line; `misuse` if the request itself is wrong."""

    def __init__(self, text: str, misuse: bool = False):
        super().__init__(text)
        self.misuse = misuse


def usual_address() -> str:
    """The dashboard that the environment names, as for Ray's own commands; otherwise that of this machine."""
    named = [os.environ.get(name, "") for name in ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")]
    return next((x for x in named if x.startswith(("http://", "https://"))), USUAL)


def checked(address: str) -> str:
    """The address without a trailing slash; JobsError if it cannot be that of a dashboard."""
    if "@" in address:  # which is not repeated: it may have a password
        raise JobsError(
            f"the address of a Ray dashboard has no user and no password in it: it looks like {USUAL}. If a proxy "
            f"requires them, bypass it, for example with `ssh -L 8265:localhost:8265 HEAD`",
            misuse=True,
        )
    try:
        parts = urlsplit(address)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an invalid port, or unbalanced brackets
        fine = False
    if not fine or re.search(r"\s", address):
        raise JobsError(
            f"{address!r} is not the address of a Ray dashboard: it must begin with http:// or https://, like {USUAL}",
            misuse=True,
        )
    return address.rstrip("/")


def wants_token(address: str) -> bool:
    """Whether a dashboard requires a token; JobsError if there is no dashboard. Ray's own client would wait for minutes
    if nothing answers."""
    try:
        with urlopen(f"{address}/api/version", timeout=ANSWER_TIMEOUT) as answer:
            json.load(answer)["ray_version"]
    except HTTPError as e:
        e.close()
        if e.code in (401, 403):
            return True
        raise JobsError(f"{address} is not a Ray dashboard: it answers {e.code} {e.reason}") from e
    except (ValueError, KeyError, TypeError) as e:
        raise JobsError(f"{address} is not a Ray dashboard: it answers, but not with Ray's version") from e
    except OSError as e:
        return _unreachable(address, e.reason if isinstance(e, URLError) else e)
    except Exception as e:  # the HTTP library's error for a malformed answer
        raise JobsError(f"{address} is not a Ray dashboard: it does not speak HTTP ({type(e).__name__})") from e
    return False


def _unreachable(address: str, reason: Any) -> bool:
    if isinstance(reason, ssl.SSLError):
        return False  # Ray's client has its own certificates
    if isinstance(reason, socket.gaierror):
        raise JobsError(f"there is no host {urlsplit(address).hostname!r} ({reason.strerror})", misuse=True)
    why = f"within {ANSWER_TIMEOUT:g} s" if isinstance(reason, TimeoutError) else f"({reason})"
    raise JobsError(
        f"no Ray dashboard answers at {address} {why}. Check that the cluster is up, that this is the port of its "
        f"dashboard (8265 by default), and that this machine can reach it"
    )
