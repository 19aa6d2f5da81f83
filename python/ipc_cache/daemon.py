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
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    broker = None
    resident: list[str] = []
    status = 0
    try:
        broker = _ensure_broker(options.dir)
        resident = _publish(options, passed_on)
        _stay(broker)
    except Ended:
        pass
    except (Failed, errors.Error, OSError) as error:
        print(f"ipc-cache-daemon: {error}", file=sys.stderr, flush=True)
        status = 1
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
    if not options.keep or status:
        _free(options.dir, resident)
        _stop_broker(broker, options.dir)
    return status


def _end(number: int, frame: object) -> None:
    raise Ended


def _ensure_broker(directory: str | None) -> subprocess.Popen[bytes] | None:
    """The broker's process if we started it. It gets a session of its own: Ctrl-C here must not reach it."""
    with contextlib.suppress(errors.NoBroker):
        Client(directory).close()
        return None
    broker = subprocess.Popen(
        [program("ipc-cached"), *(["--dir", directory] if directory else [])], start_new_session=True
    )
    deadline = time.monotonic() + _BROKER_PATIENCE
    while True:
        try:
            Client(directory).close()
            return broker
        except errors.NoBroker:
            if broker.poll() is not None or time.monotonic() > deadline:
                raise Failed("the broker did not start; its own message is above") from None
            time.sleep(_POLL)


def _publish(options: argparse.Namespace, passed_on: list[str]) -> list[str]:
    """Runs the publisher and prints READY! for each rank as its model is there; the ids of the keys that were published:
    what was resident before is not ours to free."""
    extra = {"on_miss": "publish", "replace": options.replace, "dir": options.dir, "name": options.name}
    arguments = [
        "--model",
        options.model,
        "--tensor-parallel-size",
        str(options.tp),
        *passed_on,
        *(["--master-port", str(options.master_port)] if options.master_port else []),
        "--model-loader-extra-config",
        json.dumps({k: v for k, v in extra.items() if v is not None}),
    ]
    with tempfile.TemporaryDirectory(prefix="ipc-cache-daemon-") as folder:
        # A session of its own: all of its ranks are ended together.
        publisher = subprocess.Popen(
            [sys.executable, "-m", PUBLISHER, *arguments],
            start_new_session=True,
            env={**os.environ, "IPC_CACHE_REPORT": folder},
        )
        resident: dict[str, str] = {}
        published: list[str] = []
        try:
            while publisher.poll() is None:
                _announce(folder, resident, published)
                time.sleep(_POLL)
            _announce(folder, resident, published)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(publisher.pid, signal.SIGKILL)
            publisher.wait()
        if publisher.returncode or sum(name.startswith("target-") for name in resident) < options.tp:
            _free(options.dir, published)
            raise Failed(_failure(folder, publisher.returncode))
    return published


def _reports(folder: str) -> list[tuple[str, dict[str, Any]]]:
    return [(path.stem, json.loads(path.read_text())) for path in sorted(Path(folder).glob("*.json"))]


def _announce(folder: str, resident: dict[str, str], published: list[str]) -> None:
    for name, report in _reports(folder):
        if name not in resident and not report["error"] and report["key_id"]:
            resident[name] = report["key_id"]
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


def _stay(broker: subprocess.Popen[bytes] | None) -> None:
    """Until a signal comes, or the broker that we started is gone."""
    while broker is None or broker.poll() is None:
        signal.sigtimedwait([], 1.0)
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
