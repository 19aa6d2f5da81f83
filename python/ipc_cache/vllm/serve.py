"""`ipc-cache-serve [--standby] MODEL [ARGUMENTS]`: vLLM's OpenAI server, with our load format unless another is given.

--standby: a server that dies is started again by a process that has imported vLLM, see standby.
"""

import runpy
import signal
import sys
import warnings

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
    given = [argument for argument in sys.argv[1:] if argument != STANDBY]
    stand_by = len(given) < len(sys.argv) - 1 and not {"-h", "--help", "--version"} & set(given)
    sys.argv = ["ipc-cache-serve", *arguments(given)]
    if not stand_by:
        return _serve()
    for number in (signal.SIGTERM, signal.SIGINT):  # a container's first process ends by neither of itself
        signal.signal(number, lambda signum, _: sys.exit(128 + signum))
    from ipc_cache.vllm import standby

    standby.import_server()
    sys.exit(standby.supervise(_serve))


def _serve() -> None:
    # In a standby the module has been imported, and is run all the same.
    warnings.filterwarnings("ignore", message=f"'{SERVER}' found in sys.modules", category=RuntimeWarning)
    runpy.run_module(SERVER, run_name="__main__", alter_sys=True)
