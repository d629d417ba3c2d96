"""Addresses of servers, as people write them."""

from urllib.parse import urlsplit


def url_fault(url: str) -> str | None:
    """What is wrong with the address of an HTTP server, in words; None where nothing is.

    It is shown in messages and kept in records, so that a password has no place in it.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "found no address, expected http://HOST:PORT or https://HOST"
    if parts.username is not None or parts.password is not None:
        return "found a user in the address (not shown); credentials are given by reference"
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        return f"found {url!r}, expected http://HOST:PORT or https://HOST, with or without a path"
    return None
