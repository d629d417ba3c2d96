"""HTTP to engines on this side of the router: plain, direct, without proxies."""

import ssl

import httpx

# Engines are reached over plain HTTP. A context without authorities costs nothing to make (the
# default loads the machine's whole bundle) and trusts no TLS server by accident.
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def client(timeout_s: float) -> httpx.Client:
    """A client whose connect, read and write may each take ``timeout_s``."""
    return httpx.Client(timeout=timeout_s, trust_env=False, verify=_NO_TLS)


def async_client(timeout_s: float) -> httpx.AsyncClient:
    """The same, asynchronous and with as many connections as are asked for."""
    return httpx.AsyncClient(
        timeout=timeout_s,
        trust_env=False,
        verify=_NO_TLS,
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
    )


def healthy(base_url: str, path: str, timeout_s: float) -> bool:
    """Whether ``base_url + path`` answers 200 in time. It says nothing about progress."""
    try:
        with client(timeout_s) as http:
            return http.get(base_url + path).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False
