"""The entry point of group `vllm.general_plugins`.

vLLM calls register() once in every process it starts, and does not guard the call: an exception here would end every vLLM
process of this environment, whether it uses the plugin or not. So nothing escapes; an error is kept, and the loader that is
registered in its place raises it when somebody selects it. The function is cheap and touches no device.
"""

import logging

FORMAT = "ipc_broker"
ALIAS = "ipc_cache"

logger = logging.getLogger("vllm.ipc_cache")


def register() -> None:
    """Registers `ipc_broker`, and `ipc_cache` where vLLM has no loader of that name (it has from 0.30)."""
    try:
        _register()
    except Exception as error:
        logger.warning("ipc_cache: the load format %s is not available: %s", FORMAT, error, exc_info=True)


def _register() -> None:
    from vllm.model_executor.model_loader import register_model_loader

    taken = _taken_names()
    loader = _loader_class()
    ours = tuple(name for name in (FORMAT, ALIAS) if name not in taken)
    for name in ours:
        # Overwriting another's loader would only draw a warning: leave it alone. Ours may be there from an earlier call.
        register_model_loader(name)(loader)
    if ours:
        from ipc_cache.vllm import baseline, startup

        startup.prefetch()
        baseline.install(ours)
        startup.freeze()


def _taken_names() -> set[str]:
    from vllm.model_executor import model_loader

    return set(getattr(model_loader, "_LOAD_FORMAT_TO_MODEL_LOADER", ()))


def _loader_class() -> type:
    try:
        from ipc_cache.vllm.loader import IpcBrokerLoader
    except Exception as error:
        logger.debug("ipc_cache: the loader cannot be imported", exc_info=True)
        return _broken_loader(error)
    return IpcBrokerLoader


def _broken_loader(error: Exception) -> type:
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    class BrokenLoader(BaseModelLoader):
        """Stands in for the loader that could not be imported, and says why."""

        def __init__(self, load_config):
            raise RuntimeError(f"load format {FORMAT}: the ipc_cache plugin could not be loaded: {error}") from error

        def download_model(self, model_config):
            raise NotImplementedError

        def load_weights(self, model, model_config):
            raise NotImplementedError

    return BrokenLoader
