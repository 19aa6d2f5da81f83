"""`ipc-cache-serve [--standby] MODEL [ARGUMENTS]`: vLLM's OpenAI server, with our load format unless another is given.

--standby: a server that dies is started again by a process that has imported vLLM, see standby.
"""

import runpy
import sys

SERVER = "vllm.entrypoints.openai.api_server"
STANDBY = "--standby"


def arguments(given: list[str]) -> list[str]:
    """What the server is called with: a first positional argument is the model, as with `vllm serve`."""
    out = list(given)
    if out and not out[0].startswith("-"):
        out[0:1] = ["--model", out[0]]
    if not any(a == "--load-format" or a.startswith("--load-format=") for a in out):
        out += ["--load-format", "ipc_broker"]
    return out


def main() -> None:
    """The console script; takes all of vLLM's options."""
    given = sys.argv[1:]
    stand_by = STANDBY in given[:1]
    sys.argv = ["ipc-cache-serve", *arguments(given[stand_by:])]
    if not stand_by:
        return _serve()
    from ipc_cache.vllm import standby

    standby.import_server()
    sys.exit(standby.supervise(_serve))


def _serve() -> None:
    runpy.run_module(SERVER, run_name="__main__", alter_sys=True)
