"""A pre-forking web service: every worker serves from one copy of the weights, also across restarts of the service.

    ipc-cached &
    python examples/prefork.py $(tools/fetch-model) --workers 4 --port 8000
    curl 'http://127.0.0.1:8000/?text=hello'

With --requests N it asks itself N times, shows the memory of each worker, and ends. The master attaches before it forks, as
gunicorn with --preload does; the workers inherit the mapping, and the lease with it.
"""

import argparse
import http.client
import http.server
import json
import os
import signal
import socket
import sys
import urllib.parse

import torch
from transformers import AutoConfig, AutoModel, AutoTokenizer

import ipc_cache
from ipc_cache import engine


def weights_kib() -> dict[str, int]:
    """This process's view of the shared segments: resident, and its share of that, in KiB."""
    found, inside = {"Rss": 0, "Pss": 0}, False
    with open("/proc/self/smaps") as file:
        for line in file:
            word = line.split()[0]
            if not word.endswith(":"):
                inside = "ipc-cache-segment" in line
            elif inside and word[:-1] in found:
                found[word[:-1]] += int(line.split()[1])
    return found


class Handler(http.server.BaseHTTPRequestHandler):
    model = tokenizer = None

    def do_GET(self) -> None:
        text = urllib.parse.parse_qs(urllib.parse.urlparse(self.path).query).get("text", [""])[0]
        batch = self.tokenizer(text, return_tensors="pt")
        with torch.inference_mode():
            vector = self.model(**batch).last_hidden_state.mean(1)[0]
        answer = {"pid": os.getpid(), "norm": float(vector.norm()), "weights_kib": weights_kib()}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


class Server(http.server.HTTPServer):
    """Over a socket that is listening already."""

    def __init__(self, listening: socket.socket) -> None:
        super().__init__(listening.getsockname(), Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening


def serve(listening: socket.socket) -> None:
    """A worker: whoever accepts first, answers."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    torch.set_num_threads(1)
    Server(listening).serve_forever()


def ask(port: int, text: str) -> dict:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/?" + urllib.parse.urlencode({"text": text}))
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return answer


def show(port: int, requests: int, nbytes: int) -> None:
    answers = [ask(port, f"request {i}") for i in range(requests)]
    workers = {answer["pid"]: answer["weights_kib"] for answer in answers}  # the latest of each
    for pid, kib in workers.items():
        print(f"worker {pid}: weights resident {kib['Rss'] / 1024:.1f} MiB, its share {kib['Pss'] / 1024:.1f} MiB")
    print(f"{requests} answers by {len(workers)} workers, from one copy of {nbytes / 2**20:.1f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="the model's folder")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--port", type=int, default=0, help="default: any that is free")
    parser.add_argument("--requests", type=int, help="ask so often, show the memory, and end")
    arguments = parser.parse_args()
    try:
        ipc_cache.load(arguments.model)
    except ipc_cache.NoBroker as error:
        sys.exit(str(error))

    torch.set_num_threads(1)  # threads do not survive a fork
    Handler.tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    with engine.skeleton():
        Handler.model = AutoModel.from_config(AutoConfig.from_pretrained(arguments.model)).eval()
    weights = ipc_cache.attach_module(Handler.model, arguments.model)
    listening = socket.create_server(("127.0.0.1", arguments.port))
    port = listening.getsockname()[1]
    print(f"listening on port {port}", flush=True)

    workers = []
    for _ in range(arguments.workers):
        pid = os.fork()
        if pid == 0:
            serve(listening)
        workers.append(pid)
    try:
        if arguments.requests is not None:
            show(port, arguments.requests, weights.nbytes)
        else:
            signal.pause()
    finally:
        for pid in workers:
            os.kill(pid, signal.SIGTERM)
            os.waitpid(pid, 0)
        weights.close()


if __name__ == "__main__":
    main()
