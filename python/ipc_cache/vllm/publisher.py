"""The short-lived process that `python -m ipc_cache.daemon` starts: vLLM's own workers load and publish, and end.

Takes vLLM's engine arguments. One worker per rank is started in parallel by vLLM's own executor, as an engine does, so that
ranks, process groups and devices are what they will be in the engine; no KV cache is made and nothing is served.
"""

import os
import sys

from ipc_cache.vllm.register import FORMAT

# What an old version's parser does not know, and does not need.
_OPTIONAL = ("--master-port",)


def main(argv: list[str] | None = None) -> None:
    """Returns when every rank's model is resident; raises what the executor raises."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # one rank loads right here
    config = _config(sys.argv[1:] if argv is None else argv)
    from vllm.v1.executor.abstract import Executor

    executor = Executor.get_class(config)(config)
    executor.shutdown()


def _config(argv: list[str]):
    from vllm.engine.arg_utils import EngineArgs
    from vllm.plugins import load_general_plugins
    from vllm.usage.usage_lib import UsageContext

    load_general_plugins()
    parser = EngineArgs.add_cli_args(_parser_class()(prog="ipc-cache-daemon"))
    known = {option for action in parser._actions for option in action.option_strings}
    for option in _OPTIONAL:
        if option not in known:
            parser.add_argument(option)
    arguments = parser.parse_args(argv)
    arguments.load_format = FORMAT
    # Only weights are loaded here: no share of the device is claimed for a KV cache.
    arguments.gpu_memory_utilization = 0.01
    return EngineArgs.from_cli_args(arguments).create_engine_config(usage_context=UsageContext.ENGINE_CONTEXT)


def _parser_class():
    try:
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    except ImportError:  # its place in older versions
        from vllm.utils import FlexibleArgumentParser
    return FlexibleArgumentParser


if __name__ == "__main__":
    main()
