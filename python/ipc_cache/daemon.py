"""`python3 -m ipc_cache.daemon --model DIR-or-id --tp N`: makes a model resident for vLLM, and frees it at the end.

Starts a broker if none runs, has vLLM load and publish each rank in short-lived processes, prints `READY!` for each and
stays in the foreground; SIGTERM or SIGINT evicts what it published, unless --keep. It is no server: engines talk to the
broker alone, and need this process for nothing. Any further argument is vLLM's, and whatever decides the bytes should be
given here as it is given to the engine: --dtype, --quantization, --hf-overrides, --revision, --trust-remote-code.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import errors
from .client import Client
from .loader import program

PUBLISHER = "ipc_cache.vllm.publisher"
_BROKER_PATIENCE = 10.0  # seconds
_POLL = 0.1


class Failed(Exception):
    """The model could not be made resident; the text says which rank failed, and why."""


class Ended(Exception):
    """SIGTERM or SIGINT."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ipc-cache-daemon",
        allow_abbrev=False,
        description="Makes a model resident for vLLM, and keeps it until SIGTERM.",
        epilog="Every other argument is passed on to vLLM.",
    )
    parser.add_argument("--model", required=True, help="a folder, or a hub id that is downloaded")
    parser.add_argument(
        "--tp", "-tp", "--tensor-parallel-size", dest="tp", type=int, default=1, help="ranks, one process each"
    )
    parser.add_argument("--master-port", type=int, help="accepted as vLLM's; ranks on one host need no fixed port")
    parser.add_argument("--dir", help="the broker's directory (default: $IPC_CACHE_DIR, then the usual places)")
    parser.add_argument("--name", help="what `ipc-cache ls` calls the model (default: its path or id)")
    parser.add_argument(
        "--keep", action="store_true", help="leave the model resident at the end, and the broker running"
    )
    parser.add_argument("--replace", action="store_true", help="load and publish anew, though the model is resident")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The command; its exit status. 0 after SIGTERM or SIGINT, 1 with the failing rank's error on stderr."""
    options, passed_on = _parser().parse_known_args(argv)
    signals = _Signals()
    made = _Made(options.dir)
    status = 0
    try:
        _ensure_broker(made, signals)
        _publish(made, signals, options, passed_on)
        _stay(made.broker, signals)
    except Ended:
        pass
    except (Failed, errors.Error, OSError) as error:
        print(f"ipc-cache-daemon: {error}", file=sys.stderr, flush=True)
        status = 1
    if not options.keep or status:
        _free(made.directory, made.published)
        _stop_broker(made.broker, made.directory)
    return status


class _Signals:
    """SIGTERM and SIGINT end the daemon where it waits, and nowhere else: what has been started is known by then, and is
    ended in peace."""

    def __init__(self) -> None:
        self.came = self.waiting = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._take)

    def _take(self, number: int, frame: object) -> None:
        self.came = True
        if self.waiting:
            raise Ended

    def wait(self, seconds: float) -> None:
        """Raises Ended if a signal has come, or comes meanwhile."""
        self.waiting = True
        try:
            if self.came:
                raise Ended
            time.sleep(seconds)
        finally:
            self.waiting = False


@dataclass
class _Made:
    """What this process has to take away at the end: the broker if it started it, and the ids of the keys that were
    published; what was resident before is not ours to free."""

    directory: str | None
    broker: subprocess.Popen[bytes] | None = None
    published: list[str] = field(default_factory=list)


def _ensure_broker(made: _Made, signals: _Signals) -> None:
    """Starts one if none answers. It gets a session of its own: Ctrl-C here must not reach it."""
    with contextlib.suppress(errors.NoBroker):
        Client(made.directory).close()
        return
    where = ["--dir", made.directory] if made.directory else []
    made.broker = subprocess.Popen([program("ipc-cached"), *where], start_new_session=True)
    deadline = time.monotonic() + _BROKER_PATIENCE
    while True:
        signals.wait(_POLL)
        try:
            return Client(made.directory).close()
        except errors.NoBroker:
            if made.broker.poll() is not None or time.monotonic() > deadline:
                raise Failed("the broker did not start; its own message is above") from None


def _arguments(options: argparse.Namespace, passed_on: list[str]) -> list[str]:
    """The publisher's."""
    extra = {"on_miss": "publish", "replace": options.replace, "dir": options.dir, "name": options.name}
    return [
        "--model", options.model,
        "--tensor-parallel-size", str(options.tp),
        *passed_on,
        *(["--master-port", str(options.master_port)] if options.master_port else []),
        "--model-loader-extra-config", json.dumps({k: v for k, v in extra.items() if v is not None}),
    ]  # fmt: skip


def _publish(made: _Made, signals: _Signals, options: argparse.Namespace, passed_on: list[str]) -> None:
    """Runs the publisher and prints READY! for each rank as its model is there."""
    with tempfile.TemporaryDirectory(prefix="ipc-cache-daemon-") as folder:
        # A session of its own: all of its ranks are ended together.
        publisher = subprocess.Popen(
            [sys.executable, "-m", PUBLISHER, *_arguments(options, passed_on)],
            start_new_session=True,
            env={**os.environ, "IPC_CACHE_REPORT": folder},
        )
        resident: set[str] = set()
        try:
            while publisher.poll() is None:
                _announce(folder, resident, made.published)
                signals.wait(_POLL)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(publisher.pid, signal.SIGKILL)
            publisher.wait()
            _announce(folder, resident, made.published)  # what came since the last look is there too
        if publisher.returncode or sum(name.startswith("target-") for name in resident) < options.tp:
            raise Failed(_failure(folder, publisher.returncode))


def _reports(folder: str) -> list[tuple[str, dict[str, Any]]]:
    return [(path.stem, json.loads(path.read_text())) for path in sorted(Path(folder).glob("*.json"))]


def _announce(folder: str, resident: set[str], published: list[str]) -> None:
    """Takes up the reports of ranks that are not among the `resident` ones yet."""
    for name, report in _reports(folder):
        if name not in resident and not report["error"] and report["key_id"]:
            resident.add(name)
            if report["how"] == "published":
                published.append(report["key_id"])
            print(
                f"READY! {report['role']} rank {report['rank']}: {report['model']}, key {report['key_id']}, "
                f"{report['tensors']} tensors, {report['shared']} bytes, {report['how']}",
                flush=True,
            )


def _failure(folder: str, code: int) -> str:
    said = [
        f"{report['role']} rank {report['rank']}: {report['error']}"
        for _, report in _reports(folder)
        if report["error"]
    ]
    return (
        "; ".join(said)
        or f"vLLM ended with exit status {code} before every rank was published; its own message is above"
    )


def _stay(broker: subprocess.Popen[bytes] | None, signals: _Signals) -> None:
    """Until a signal comes, or the broker that we started is gone."""
    while broker is None or broker.poll() is None:
        signals.wait(1.0)
    raise Failed(f"the broker ended with exit status {broker.returncode}; what it held is gone")


def _free(directory: str | None, key_ids: list[str]) -> None:
    """Evicts; a model that an engine still uses goes with its last lease."""
    for key_id in key_ids:
        with contextlib.suppress(errors.NotFound, errors.NoBroker), Client(directory) as client:
            client.evict(key_id, mode="drain")


def _stop_broker(broker: subprocess.Popen[bytes] | None, directory: str | None) -> None:
    if broker is None or broker.poll() is not None:
        return
    with contextlib.suppress(errors.Error), Client(directory) as client:
        others = [model.name or model.key_id[:12] for model in client.models()]
        if others:
            print(
                f"ipc-cache-daemon: the broker goes on running, since it holds {', '.join(others)}",
                file=sys.stderr,
                flush=True,
            )
            return
    broker.terminate()
    broker.wait()


if __name__ == "__main__":
    sys.exit(main())
