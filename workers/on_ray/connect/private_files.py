"""Files of a working folder that mostly hold secrets: they are not sent with a job. Knows no Ray."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

#: Names of files, and of folders with all that is in them. Models of such files (.env.example) hold none.
FILES = (
    ".env", ".env.*", "*.env", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.ppk",
    "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "id_*_sk", "auth_token", ".netrc", "_netrc", ".pgpass", ".my.cnf",
    ".pypirc", ".npmrc", ".git-credentials", ".htpasswd", ".dockercfg", "kubeconfig", "*.kubeconfig", "credentials",
    "credentials.json", "client_secret*.json", "service_account*.json", "service-account*.json", "secrets.json",
    "secrets.toml", "secrets.yaml", "secrets.yml",
)  # fmt: skip
FOLDERS = (".ssh", ".gnupg", ".aws", ".azure", ".gcloud", ".kube", ".docker", ".ray")
MODELS = ("*.example", "*.sample", "*.template", "*.dist")
#: What Ray leaves out by itself.
_SKIPPED = frozenset({".git", ".venv", "venv", "__pycache__"})


def private_files(folder: Path) -> list[str]:
    """What looks secret below a folder, as paths from there."""
    return list(_found(folder))


def _found(folder: Path) -> Iterator[str]:
    for where, folders, files in _walked(folder):
        place = Path(where).relative_to(folder)
        for name in sorted(folders):
            if name in _SKIPPED:
                folders.remove(name)
            elif name in FOLDERS:
                folders.remove(name)
                yield (place / name).as_posix()
        yield from ((place / name).as_posix() for name in sorted(files) if _is_private(name))


def _walked(folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """As `os.walk`, through links to folders as Ray goes, into each folder once."""
    seen = set()
    for where, folders, files in os.walk(folder, followlinks=True):
        found = os.stat(where)
        if (found.st_dev, found.st_ino) in seen:
            folders.clear()
        seen.add((found.st_dev, found.st_ino))
        yield where, folders, files


def _is_private(name: str) -> bool:
    name = name.lower()
    return any(fnmatchcase(name, x) for x in FILES) and not any(fnmatchcase(name, x) for x in MODELS)


def copies_of(file: Path, folder: Path) -> list[str]:
    """The paths below a folder that are this file: itself, or links to it."""
    try:
        known = os.stat(file)
    except OSError:  # it is on another machine
        return []
    found = []
    for where, _, files in _walked(folder):
        for name in files:
            path = os.path.join(where, name)
            try:
                if os.path.samestat(os.stat(path), known):
                    found.append(os.path.relpath(path, folder))
            except OSError:  # a link that leads nowhere
                continue
    return found


def pattern(path: str) -> str:
    """A path as a pattern of a .gitignore file that matches it alone.

    >>> pattern("a b/.env"), pattern("[1].pem")
    ('/a\\\\ b/.env', '/\\\\[1\\\\].pem')
    """
    return "/" + re.sub(r"([\\*?\[\]!# ])", r"\\\1", path)
