"""vLLM's reload_weights writes into the parameters that there are: refused while they are shared.

For a later reload vLLM notes, for every layer, what its tensors were before they were loaded; under skeleton() that is half
of the time that a model takes to be built. With shared weights nothing is noted, unless IPC_CACHE_SKIP_RELOAD=0, and who
reloads all the same, with weights of its own, is told before a tensor of the model has changed. Weights in the form of
kernels (is_checkpoint_format=False) vLLM copies without asking anybody: the first ends the engine, as every write does.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import torch

from ipc_cache.vllm import startup
from ipc_cache.vllm.refuse import Refused

SKIP = "IPC_CACHE_SKIP_RELOAD"


def deny() -> NoReturn:
    raise Refused(
        "ipc_cache: weights cannot be reloaded in place while they are shared; restart the engine, which "
        "attaches, or start it with --model-loader-extra-config '{\"private\": true}'"
    )


@contextmanager
def denied() -> Iterator[None]:
    """A model that is built meanwhile, in this process, cannot be reloaded in place. Not for two threads at a time."""
    from vllm.model_executor.model_loader import utils

    record = getattr(utils, "record_metadata_for_reloading", None)
    if record is None:  # an old vLLM
        yield
        return

    def note(model: torch.nn.Module) -> None:
        from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

        if not startup.on(SKIP):
            record(model)
        # What a reload asks first, of the first layer that it takes, which is the model.
        get_layerwise_info(model).can_load = deny

    utils.record_metadata_for_reloading = note
    try:
        yield
    finally:
        utils.record_metadata_for_reloading = record
