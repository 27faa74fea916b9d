"""Checks that both ends agree on TLS, within seconds: Ray itself would retry for a minute, and say little.

Ray's environment variables turn on TLS for all gRPC traffic: RAY_USE_TLS, RAY_TLS_SERVER_CERT, RAY_TLS_SERVER_KEY and
RAY_TLS_CA_CERT. Each end presents its certificate to the other. Does not import Ray.
"""

from __future__ import annotations

import os
import socket
import ssl

#: The variables that name the files: this machine's certificate, its key, and the certificate of the authority.
FILES = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")
#: Seconds for a TLS handshake; seconds to find out that a server does not use TLS, as it may not answer at all.
CONNECT_TIMEOUT, ANSWER_TIMEOUT = 10.0, 3.0


def check_tls(host: str, port: int) -> None:
    """Raise ConnectionError if a server and this process disagree on TLS, or reject each other's certificates."""
    if not wanted_here():
        if _speaks_tls(host, port):
            raise ConnectionError(
                f"the cluster uses TLS, this process does not: set RAY_USE_TLS=1 and {', '.join(FILES)} to the files "
                f"of this machine's certificate, its key and the authority's certificate, before ray is imported"
            )
    elif (wrong := _refusal(host, port, _context())) is not None:
        raise ConnectionError(wrong)


def wanted_here() -> bool:
    return os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")


def _speaks_tls(host: str, port: int) -> bool:
    """Whether a server answers a TLS handshake, even with a refusal."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # no data is sent
    context.set_alpn_protocols(["h2"])
    try:
        with socket.create_connection((host, port), ANSWER_TIMEOUT) as plain, context.wrap_socket(plain):
            return True
    except ssl.SSLError as e:
        return "ALERT" in (e.reason or "")
    except OSError:  # it closes the connection, or does not answer
        return False


def _context() -> ssl.SSLContext:
    """A TLS context like Ray's, with the files that the environment names; ConnectionError if they are unusable."""
    paths = [os.environ.get(name, "") for name in FILES]
    for name, path in zip(FILES, paths, strict=True):
        if not path:
            raise ConnectionError(f"RAY_USE_TLS is 1, but {name} is not set: set it to the path of a PEM file")
        try:
            with open(path, "rb"):
                pass
        except OSError as e:
            raise ConnectionError(f"{name} is {path!r}, which cannot be read: {e.strerror}") from None
    certificate, key, authority = paths
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    try:
        context.load_cert_chain(certificate, key)
        context.load_verify_locations(authority)
    except (ssl.SSLError, ValueError) as e:
        raise ConnectionError(
            f"the files of {', '.join(FILES)} are not a certificate, its key and an authority: {_reason(e)}"
        ) from None
    return context


def _refusal(host: str, port: int, context: ssl.SSLContext) -> str | None:
    """Why a server and this process reject each other; None if they do not."""
    try:
        with (
            socket.create_connection((host, port), CONNECT_TIMEOUT) as plain,
            context.wrap_socket(plain, server_hostname=host) as secure,
        ):
            return None if secure.recv(1) else _refused("it closes the connection")  # a gRPC server sends first
    except ssl.SSLCertVerificationError as e:
        return (
            f"its certificate is not accepted here ({e.verify_message}): RAY_TLS_CA_CERT must be the certificate of "
            f"the authority that signed it, and {host} must be one of its names"
        )
    except ssl.SSLError as e:
        return PLAIN if e.reason in _NO_TLS else _refused(_reason(e))
    except TimeoutError:
        return None  # it may be busy: leave it to Ray
    except OSError as e:
        return _refused(e.strerror or str(e))


#: OpenSSL's reasons for an answer that is not TLS.
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG")
PLAIN = "RAY_USE_TLS is 1 here, but the cluster does not use TLS: unset it here, or set it on every node of the cluster"


def _refused(why: str) -> str:
    return (
        f"it does not accept the certificate of RAY_TLS_SERVER_CERT ({why}): the authority that the cluster knows as "
        f"RAY_TLS_CA_CERT must have signed it"
    )


def _reason(e: BaseException) -> str:
    return str(getattr(e, "reason", None) or e).replace("_", " ").lower()
