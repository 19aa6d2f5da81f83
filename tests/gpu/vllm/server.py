"""vLLM's server over HTTP, killed while it answers: seconds until a client has a token again.

As `ipc-cache-serve --standby`, which brings it back itself, and as vLLM's own server with its own loader, which the trial has
to launch. Nothing of either is left afterwards: each leads a session, which none of its descendants leaves.
"""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress

import models
from engines import HERE, PATIENCE, Failed, running
from trial import PROMPTS, SHARE

STANDBY = ["-c", "from ipc_cache.vllm.serve import main; main()", "--standby"]  # the console script, which a bundle has not
ORDINARY = ["-m", "vllm.entrypoints.openai.api_server"]
OPTIONS = {"dtype": "bfloat16", "max-model-len": 1024, "max-num-seqs": 8, "host": "127.0.0.1", **SHARE}
LONG = 900  # tokens of an answer that is not to come to its end
LOST = (OSError, http.client.HTTPException)  # nobody listens, or the answer was cut off
HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Server:
    """The program and its descendants; a context, at whose end all of them have ended."""

    def __init__(self, t, name, words, plugins):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.log, self.model = t.options.folder / f"server-{name}.log", words[words.index("--model") + 1]
        flags = [f"--{flag.replace('_', '-')}={value}" for flag, value in {**OPTIONS, "port": self.port}.items()]
        environment = {**os.environ, "PYTHONPATH": f"{HERE}:{os.environ.get('PYTHONPATH', '')}", "VLLM_PLUGINS": plugins,
                       "VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_LOGGING_CONFIG_PATH": str(t.host.logging)}
        self.begun = time.monotonic()
        with open(self.log, "w", encoding="utf-8") as out:
            self.process = subprocess.Popen(
                [sys.executable, *words, "--skip-tokenizer-init", "--enforce-eager", "--no-enable-prefix-caching", *flags],
                env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def processes(self):
        found = []
        for pid in running():
            with suppress(ProcessLookupError):
                if os.getsid(pid) == self.process.pid:
                    found.append(pid)
        return found

    def kill(self):
        """All of it, with SIGKILL; returns when nothing of it runs."""
        end = time.monotonic() + 60
        while found := self.processes():
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > end:
                raise Failed(f"processes {found} do not end")
            time.sleep(0.01)
        self.process.wait()

    def kill_served(self):
        """The server of a standby, which leads a group of its own, and not the standby."""
        (pid,) = [pid for pid in self.processes() if pid != self.process.pid and os.getpgid(pid) == pid]
        os.kill(pid, signal.SIGKILL)

    def again(self, ask):
        """ask(), as soon as it is answered."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                return ask()
            except urllib.error.HTTPError as error:
                raise Failed(f"{error}: {error.read().decode()[:500]}") from None
            except LOST as error:
                if time.monotonic() > end or self.process.poll() is not None:
                    raise Failed(f"the server does not answer ({error}): {self.log.read_text()[-2000:]}") from None
                time.sleep(0.02)

    def healthy(self):
        """Seconds from its launch until it says so."""
        self.again(lambda: HTTP.open(f"http://127.0.0.1:{self.port}/health", timeout=PATIENCE).close())
        return time.monotonic() - self.begun

    def stream(self, count):
        """The tokens of an answer as they come; LOST if it is cut off."""
        body = {"model": self.model, "prompt": PROMPTS[0], "max_tokens": count, "temperature": 0, "ignore_eos": True,
                "stream": True, "return_token_ids": True}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with HTTP.open(request, timeout=PATIENCE) as answer:
            for line in filter(None, (line.strip() for line in answer)):
                said = line.removeprefix(b"data: ")
                if said == b"[DONE]":
                    return
                if "choices" not in (chunk := json.loads(said)):
                    raise Failed(f"an answer without tokens: {chunk}")
                yield from chunk["choices"][0]["token_ids"]
        raise ConnectionError("the answer has no end")

    def answer(self, since):
        """Seconds from then to the first token of an answer, asked for until there is one; its tokens."""
        def ask():
            stream = self.stream(16)
            tokens = [next(stream)]
            return time.monotonic() - since, tokens + list(stream)

        return self.again(ask)

    def cut(self, kill):
        """Calls kill() in the middle of an answer: that moment, and how many tokens had come."""
        stream = self.stream(LONG)
        came = len([next(stream) for _ in range(8)])
        killed = time.monotonic()
        kill()
        with suppress(*LOST):
            for _ in stream:
                came += 1
            raise Failed("an answer came to its end although its server was killed")
        return killed, came


def server(t):
    folder = models.make(t.options.models / "dense", "dense")
    t.resident("dense", folder, **SHARE)
    tokens = t.attempt("server, standby", standby, folder)
    t.card.settled()
    t.attempt("server, ordinary", ordinary, folder, tokens)
    t.card.settled()


def standby(t, folder):
    extra = json.dumps({"dir": t.broker.directory})
    with Server(t, "standby", [*STANDBY, "--model", str(folder), "--model-loader-extra-config", extra], "ipc_cache") as one:
        healthy, (first, tokens) = one.healthy(), one.answer(one.begun)
        t.bar("server, standby: launch to first token over HTTP", None, f"{first:.2f} s; /health after {healthy:.2f} s")
        killed, came = one.cut(one.kill_served)
        again, others = one.answer(killed)
        attached = one.log.read_text().count("ipc_cache: attached target")
    t.figures["server_standby"] = {"launch_s": first, "killed_s": again}
    t.bar("server, standby: SIGKILL under load to first token over HTTP", None, f"{again:.2f} s; {came} of {LONG} tokens had come")
    t.bar("server, standby: same tokens", tokens == others and attached == 2,
          f"{'equal' if tokens == others else f'different: {tokens}, then {others}'}; attached {attached} times", "equal, twice")
    return tokens


def ordinary(t, folder, wanted):
    killed = None
    for number in range(t.options.launches):
        with Server(t, f"ordinary-{number}", [*ORDINARY, "--model", str(folder), "--load-format", "auto"], "") as one:
            healthy, (first, tokens) = one.healthy(), one.answer(one.begun)
            t.bar("server, ordinary: launch to first token over HTTP", None, f"{first:.2f} s; /health after {healthy:.2f} s")
            t.figures.setdefault("server_ordinary", []).append(first)
            if killed is not None:
                t.bar("server, ordinary: SIGKILL under load, launched again, to first token over HTTP", None,
                      f"{one.begun + first - killed:.2f} s; {came} of {LONG} tokens had come")
            killed, came = one.cut(one.kill)
        t.bar("server, ordinary: same tokens as with a standby", None if t.options.cpu or wanted is None else tokens == wanted,
              "equal" if tokens == wanted else f"different: {tokens}, there {wanted}", "equal")
        t.card.settled()
