"""What a server may not make a download do: send credentials, reach into the local network, take for ever."""

import ipaddress
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

import requests
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool

#: A server that sends no block of :data:`gpuledger.ledger.download.transfer.CHUNK_BYTES` for so long is given up; so is
#: one that does not end the head of its answer.
BLOCK_S = 120


class DownloadSession(requests.Session):
    """A session that sends no credentials and follows no redirect from a public host to a private address."""

    def __init__(self):
        super().__init__()
        self.max_redirects = 10
        for scheme in ("http://", "https://"):
            self.mount(scheme, _Adapter())
        # What a redirect says beside its address is of no use, and may have no end.
        self.hooks["response"].append(lambda response, **_: response.raw.close() if response.is_redirect else None)
        # Any value keeps requests from looking into ~/.netrc; proxies and certificates of the environment stay.
        self.auth = lambda request: request

    def rebuild_auth(self, prepared_request: requests.PreparedRequest, response: requests.Response) -> None:
        """Judge where a redirect leads; requests calls this for each."""
        prepared_request.headers.pop("Authorization", None)
        here, there = (urlsplit(url).hostname or "" for url in (response.url, prepared_request.url))
        if there != here and _is_private(there) and not _is_private(here):
            raise requests.exceptions.InvalidURL(f"{here} redirects to the private address of {there}")


def _is_private(host: str) -> bool:
    """Whether any address of a host is not public; one that only a proxy can resolve counts as public."""
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return False
    return any(not ipaddress.ip_address(address.partition("%")[0]).is_global for address in found)


class _WithDeadline:
    """A connection that waits `BLOCK_S` for an answer's head: single bytes keep a socket's timeout from passing."""

    def getresponse(self):
        late, own = threading.Event(), self.sock

        def end() -> None:
            late.set()
            with suppress(OSError):
                own.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(BLOCK_S, end)
        timer.daemon = True
        timer.start()
        try:
            return super().getresponse()
        finally:
            timer.cancel()
            if late.is_set():
                # A head that breaks off would pass for a whole one.
                raise TimeoutError(f"the server needs more than {BLOCK_S} s to begin its answer")


class _Pool(HTTPConnectionPool):
    ConnectionCls = type("_Connection", (_WithDeadline, HTTPConnectionPool.ConnectionCls), {})


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = type("_SecureConnection", (_WithDeadline, HTTPSConnectionPool.ConnectionCls), {})


class _Adapter(requests.adapters.HTTPAdapter):
    def init_poolmanager(self, *arguments, **options):
        super().init_poolmanager(*arguments, **options)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, *arguments, **options):
        manager = super().proxy_manager_for(*arguments, **options)
        manager.pool_classes_by_scheme = _POOLS
        return manager


_POOLS = {"http": _Pool, "https": _SecurePool}


@contextmanager
def watched(response: requests.Response, received: Callable[[], int]) -> Iterator[threading.Event]:
    """End a response when `received` did not grow for `BLOCK_S`: single bytes keep a socket's timeout from passing.

    Yields
    ------
    Event
        Set when the response was ended.
    """
    done, slow = threading.Event(), threading.Event()

    def watch() -> None:
        before = received()
        while not done.wait(BLOCK_S):
            if received() == before:
                slow.set()
                response.raw.shutdown()
                return
            before = received()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield slow
    finally:
        done.set()
        thread.join()
