"""Finds files of a working folder that usually hold secrets, which are not sent with a job. Does not import Ray."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

#: Names of secret files; of folders that are secret as a whole; and of examples of such files, which are not secret.
FILES = (
    ".env", ".env.*", "*.env", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.ppk",
    "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "id_*_sk", "auth_token", ".netrc", "_netrc", ".pgpass", ".my.cnf",
    ".pypirc", ".npmrc", ".git-credentials", ".htpasswd", ".dockercfg", "kubeconfig", "*.kubeconfig", "credentials",
    "credentials.json", "client_secret*.json", "service_account*.json", "service-account*.json", "secrets.json",
    "secrets.toml", "secrets.yaml", "secrets.yml",
)  # fmt: skip
FOLDERS = (".ssh", ".gnupg", ".aws", ".azure", ".gcloud", ".kube", ".docker", ".ray")
MODELS = ("*.example", "*.sample", "*.template", "*.dist")
#: Folders that Ray does not upload.
_SKIPPED = frozenset({".git", ".venv", "venv", "__pycache__"})


def private_files(folder: Path) -> list[str]:
    """The files and folders below a folder that look secret, as relative paths."""
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
    """Like `os.walk`, but follows links to folders, as Ray does, and visits each folder once."""
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
    except OSError:  # a path of another machine
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
    """The pattern for a .gitignore file that matches exactly one path.

    >>> pattern("a b/.env"), pattern("[1].pem")
    ('/a\\\\ b/.env', '/\\\\[1\\\\].pem')
    """
    return "/" + re.sub(r"([\\*?\[\]!# ])", r"\\\1", path)
