"""What else runs in a child of host.py: engines in a row, attaching without an engine, the daemon of vLLM's own weight cache."""

import time

from job import ENGINE, Peer


def restarts(peer, options, count):
    """Engines one after the other in this process: what each start took."""
    peer = Peer(peer)
    try:
        from vllm import LLM

        starts = []
        for _ in range(count):
            begin = time.perf_counter()
            llm = LLM(**{**ENGINE, **options})
            starts.append(time.perf_counter() - begin)
            llm.llm_engine.engine_core.shutdown()
            del llm
        peer.say(result=starts)
    except BaseException as error:  # noqa: BLE001
        peer.fail(error)


def attach(peer, directory, model, count):
    """Attaches without an engine, in a process with a CUDA context if there is a card: connecting and mapping, in ms, again and again."""
    peer = Peer(peer)
    try:
        import ipc_cache
        import torch

        if torch.cuda.is_available():
            torch.empty(1, device="cuda")
        rows = []
        for _ in range(count):
            begin = time.perf_counter()
            weights = ipc_cache.attach(model, dir=directory, verify="none")
            whole = time.perf_counter() - begin
            views = time.perf_counter()
            weights[weights.manifest.names[0]]
            rows.append([(whole - weights.map_seconds) * 1e3, weights.map_seconds * 1e3, (time.perf_counter() - views) * 1e3])
            weights.close()
        from ipc_cache import tensors

        peer.say(result=[rows, tensors._fast() is not None])
    except BaseException as error:  # noqa: BLE001
        peer.fail(error)


def weight_cache_daemon(peer, options, sockets):
    """The daemon of vLLM's own weight cache, as its program starts it for one rank."""
    peer = Peer(peer)
    begin = time.perf_counter()

    class Ready:
        @staticmethod
        def put(_):
            peer.say(result={"took_s": time.perf_counter() - begin})

    try:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.model_executor.model_loader.weight_cache import daemon
        from vllm.utils.network_utils import get_distributed_init_method, get_open_port

        config = EngineArgs(**{**ENGINE, **options}).create_engine_config()
        daemon._run_daemon(0, 0, config, get_distributed_init_method("127.0.0.1", get_open_port()), sockets, Ready)
    except BaseException as error:  # noqa: BLE001
        peer.fail(error)
