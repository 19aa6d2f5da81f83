"""The process from which engines are forked: it imports vLLM once, which takes longer than starting a small engine.

Reads one JSON object a line: {"environment": {...}, "log": path, "function": "module:name", "arguments": [...]}. Forks a
child that sets the environment, writes to the log and calls the function, and answers with its process id. Children are
reaped as they end; a test that needs to know watches /proc.
"""

import importlib
import json
import os
import signal
import sys


def imports():
    """What every engine would import anyway; nothing here starts a thread or touches a device."""
    import vllm.entrypoints.llm
    import vllm.model_executor.model_loader
    import vllm.v1.engine.core
    import vllm.v1.worker.cpu_worker  # noqa: F401
    from vllm import LLM  # noqa: F401
    from vllm.model_executor.models import llama, qwen3, qwen3_moe  # noqa: F401


def inspect_here():
    """vLLM looks at each architecture in a fresh Python, an import of its own; this process is a child already."""
    from vllm.model_executor.models import registry

    if hasattr(registry, "_run_in_subprocess"):
        registry._run_in_subprocess = lambda function: function()


def compile_only_when_asked():
    """vLLM compiles a small function of its sampler in every process, for longer than these models run."""
    import torch._dynamo.config

    torch._dynamo.config.disable = "ENGINES_COMPILE" not in os.environ


def fork_workers():
    """Ranks are forked from the engine instead of importing vLLM anew; as many threads as before, one."""
    import multiprocessing

    from vllm.v1.executor import multiproc_executor

    multiproc_executor.get_mp_context = lambda: multiprocessing.get_context("fork")


def child(request):
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(0)
    for name, value in request["environment"].items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    inspect_here()
    fork_workers()
    compile_only_when_asked()
    module, _, name = request["function"].partition(":")
    getattr(importlib.import_module(module), name)(*request["arguments"])


def main():
    out = os.dup(1)
    os.dup2(2, 1)
    imports()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    os.write(out, b"ready\n")
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.close(out)
                child(json.loads(line))
                code = 0
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        os.write(out, f"{pid}\n".encode())
    os._exit(0)  # nothing to save, and tearing all these modules down takes seconds


if __name__ == "__main__":
    main()
