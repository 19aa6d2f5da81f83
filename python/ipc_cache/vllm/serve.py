"""`ipc-cache-serve MODEL [ARGUMENTS]`: vLLM's OpenAI server, with our load format unless another is given."""

import runpy
import sys

SERVER = "vllm.entrypoints.openai.api_server"


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
    sys.argv = ["ipc-cache-serve", *arguments(sys.argv[1:])]
    runpy.run_module(SERVER, run_name="__main__", alter_sys=True)
