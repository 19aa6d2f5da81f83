"""What a load tells: one INFO line per rank, counters, and a file for the daemon that started it."""

import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

logger = logging.getLogger("vllm.ipc_cache")

# A folder: every rank leaves its outcome there. Set by `python -m ipc_cache.daemon`.
REPORT_VARIABLE = "IPC_CACHE_REPORT"


@dataclass
class Report:
    """One model of one rank. `how`: attached, loaded (ordinarily) or published; times in milliseconds, sizes in bytes."""

    how: str
    model: str
    role: str
    rank: int
    key_id: str = ""
    tensors: int = 0
    shared: int = 0
    private: int = 0
    sources: str = "unchecked"
    phases: dict[str, float] = field(default_factory=dict)
    error: str = ""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Times what runs inside; the same name adds up."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.phases[name] = self.phases.get(name, 0.0) + (time.perf_counter() - start) * 1e3

    def line(self) -> str:
        times = ", ".join(f"{name} {ms:.1f}" for name, ms in self.phases.items())
        return (
            f"ipc_cache: {self.how} {self.role} {self.model}, rank {self.rank}, key {self.key_id or '-'}: "
            f"{self.tensors} tensors, {self.shared} bytes shared, {self.private} private, sources {self.sources}; "
            f"{sum(self.phases.values()):.1f} ms ({times})"
        )


# What this process loaded, oldest first.
loads: list[Report] = []


def done(report: Report) -> None:
    """Logs the line, counts, keeps the report."""
    loads.append(report)
    logger.info("%s", report.line())
    count(report.how)
    _leave(report)


def failed(report: Report, error: BaseException) -> None:
    """Keeps why a load failed, for the daemon; the error goes on to vLLM."""
    report.error = f"{type(error).__name__}: {error}"
    _leave(report)


def supervised() -> bool:
    """Was this process started by the daemon, to publish and nothing else?"""
    return REPORT_VARIABLE in os.environ


def _leave(report: Report) -> None:
    folder = os.environ.get(REPORT_VARIABLE)
    if folder:
        path = Path(folder) / f"{report.role}-{report.rank}.json"
        path.with_suffix(".part").write_text(json.dumps(asdict(report)))
        path.with_suffix(".part").rename(path)


_counters: dict[str, object] = {}


def count(event: str, field_name: str = "") -> None:
    """Counts "attached", "published", "loaded", or "miss" with the key's field that did not match.

    The counters are prometheus_client's, so they are in `/metrics` where vLLM's server gathers those of its processes."""
    try:
        from prometheus_client import Counter

        if not _counters:
            for name, text in (
                ("attached", "models attached"),
                ("published", "models published"),
                ("loaded", "models loaded ordinarily because none fitted"),
            ):
                _counters[name] = Counter(f"ipc_cache_{name}", f"ipc_cache: {text}")
            _counters["miss"] = Counter("ipc_cache_miss", "ipc_cache: no resident model fitted, by field", ["field"])
        counter = _counters[event]
        (counter.labels(field=field_name) if event == "miss" else counter).inc()
    except (ImportError, ValueError) as error:  # no client library, or a registry that has these names from elsewhere
        logger.debug("ipc_cache: %s is not counted: %s", event, error)
