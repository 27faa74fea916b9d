"""A session on Ray that is opened, used and closed, to be interrupted from outside at any moment. Prints the moments.

With "again", the interrupt is handled, and another session is opened after it.
"""

from __future__ import annotations

import sys

import numpy as np

import distgrad as dg


def main() -> None:
    print("opening", flush=True)
    with dg.Session("ray", workers=1, object_store_memory="80 MB", timeout=60):
        print("open", flush=True)
        double = dg.function(lambda x: x * 2)
        for _ in range(20):
            double(np.ones(3))
        print("closing", flush=True)
    print("closed", flush=True)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        if "again" not in sys.argv:
            raise
        main()
