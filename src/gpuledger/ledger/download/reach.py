"""Find out what could be fetched now, without fetching it."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import urlsplit

import requests

from gpuledger.ledger.download.entries import Wheel
from gpuledger.ledger.download.package import ask_index
from gpuledger.ledger.download.session import DownloadSession

HOST_TIMEOUT_S, INDEX_TIMEOUT_S = 1.0, 20.0


def out_of_reach(datasets: Mapping[str, Sequence[Mapping]]) -> dict[str, str]:
    """Ask every host, and the package index for every package, whether it answers: all at once.

    Parameters
    ----------
    datasets : mapping
        Valid ``download:`` lists by dataset.

    Returns
    -------
    dict
        By dataset that cannot be fetched now, who does not answer. Hosts have a second for it; the index has twenty,
        because its client takes half a second to start.
    """
    questions: dict[str, tuple[float, Callable[[], bool]]] = {}
    needs: dict[str, set[str]] = {name: set() for name in datasets}
    for name, entries in datasets.items():
        for entry in entries:
            if "package" in entry:
                whom = f"the package index (asked for {entry['package']})"
                questions[whom] = INDEX_TIMEOUT_S, lambda entry=entry: ask_index(Wheel.of(entry), INDEX_TIMEOUT_S)
            else:
                whom = urlsplit(entry["url"]).netloc
                questions[whom] = HOST_TIMEOUT_S, lambda url=entry["url"]: _ask_host(url)
            needs[name].add(whom)
    answers: set[str] = set()
    asked, begun = [], time.monotonic()
    for whom, (timeout_s, question) in questions.items():
        # Daemons, because looking up the name of a host can take longer than anybody waits.
        thread = threading.Thread(target=lambda w=whom, q=question: q() and answers.add(w), daemon=True)
        thread.start()
        asked.append((timeout_s, thread))
    for timeout_s, thread in sorted(asked, key=lambda pair: pair[0]):
        thread.join(max(0.0, begun + timeout_s - time.monotonic()))
    silent = {name: sorted(whom - answers) for name, whom in needs.items()}
    return {name: f"no answer from {', '.join(whom)}" for name, whom in silent.items() if whom}


def _ask_host(url: str) -> bool:
    try:
        with DownloadSession() as session:
            session.head(url, timeout=HOST_TIMEOUT_S, allow_redirects=False)
    except (requests.RequestException, UnicodeError):
        return False
    return True
