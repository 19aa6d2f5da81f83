"""What costs an engine's start time beside the weights, and can be had without touching vLLM.

vLLM collects garbage several times while it starts, over everything that its imports have made: on a machine where the
whole start takes five seconds, two of them. What is imported by the time our loader is registered, or made, lives as long
as the process, so it is taken out of those rounds. IPC_CACHE_GC_FREEZE=0 leaves the collector alone.
"""

import gc
import os

VARIABLE = "IPC_CACHE_GC_FREEZE"


def freeze() -> None:
    """Objects that exist now are not looked at by the garbage collector any more; costs nothing itself. In a process that
    forks, their pages stay shared with the child."""
    if os.environ.get(VARIABLE, "1") != "0":
        gc.freeze()
