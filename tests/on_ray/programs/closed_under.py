"""Three threads use a session that another one closes: what they get, whether Ray is gone, and whether it would
show its token to the next cluster. Before, a child that is forked tries to use it."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import numpy as np

import distgrad as dg

os.environ.pop("RAY_AUTH_MODE", None)
session = dg.Session("ray", workers=2, object_store_memory="100 MB", timeout=60)
import ray  # noqa: E402  (as the session has it)
from ray._raylet import AuthenticationMode, get_authentication_mode  # noqa: E402


def shows_token() -> tuple[str | None, bool]:
    return os.environ.get("RAY_AUTH_MODE"), get_authentication_mode() == AuthenticationMode.TOKEN


during = shows_token()

product = dg.function(lambda x: dg.exp(x) @ x + 1)
x = np.ones((300, 300))
kept = session.submit(product, x)
child = os.fork()
if not child:  # it has the session, but none of the threads behind it
    for call in (kept.numpy, lambda: session.submit(product, x), lambda: dg.Session("ray")):
        try:
            call()
        except RuntimeError as e:
            print(str(e).partition(",")[0], flush=True)
    os._exit(0)
os.waitpid(child, 0)

errors: list[Any] = []
calls = 0


def use() -> None:
    global calls
    try:
        while True:
            session.submit(product, x).numpy()
            calls += 1
    except BaseException as e:
        errors.append(e)


threads = [threading.Thread(target=use, daemon=True) for _ in range(3)]
for thread in threads:
    thread.start()
while calls < 6:
    time.sleep(0.01)
session.close()
for thread in threads:
    thread.join(30)
print(sorted({f"{type(e).__name__}: {e}" for e in errors}), len(errors))
print(ray.is_initialized(), kept.numpy().shape)
print(during, shows_token())
