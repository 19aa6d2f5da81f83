"""The process from which engines are forked: it imports vLLM once and touches no device. With the argument "preload" it
imports what a worker needs, too, as a standby does.

Reads a JSON object a line: {"function": "module.name", "arguments": {...}, "environment": {...}, "log": path}; forks a
child that sets the environment, writes to the log and calls the function; answers with its process id.
"""

import importlib
import json
import os
import signal
import sys
import time


def imports():
    import vllm.entrypoints.llm  # noqa: F401
    import vllm.v1.engine.core  # noqa: F401
    from vllm import LLM  # noqa: F401
    from vllm.model_executor.model_loader import default_loader  # noqa: F401

    if sys.argv[1:] == ["preload"]:
        from ipc_cache.vllm import startup

        startup.preload()


def child(request):
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(0)
    os.setpgid(0, 0)
    os.environ.update(request["environment"])
    module, name = request["function"].split(".")
    getattr(importlib.import_module(module), name)(**request["arguments"])


def main():
    out = os.dup(1)
    os.dup2(2, 1)
    begin = time.monotonic()
    imports()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    os.write(out, f"{time.monotonic() - begin:.2f}\n".encode())
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.close(out)
                child(json.loads(line))
                code = 0
            except BaseException:  # noqa: BLE001 - it ends this process, and the log says why
                import traceback

                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        os.write(out, f"{pid}\n".encode())


if __name__ == "__main__":
    main()
