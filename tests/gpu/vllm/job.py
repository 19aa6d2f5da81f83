"""What runs in a child of host.py: a publisher, or an engine that answers one JSON line for each that it is asked.

Only names that vLLM has had from 0.26 on.
"""

import json
import os
import socket
import statistics
import time
import traceback

ENGINE = {"skip_tokenizer_init": True, "dtype": "bfloat16", "max_model_len": 1024, "max_num_seqs": 8, "seed": 0,
          "max_num_batched_tokens": 1024, "enforce_eager": True, "enable_prefix_caching": False, "disable_log_stats": True}


class Peer:
    """The connection to the program that runs the tests."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.lines = self.socket.makefile("rw")

    def say(self, **answer):
        self.lines.write(json.dumps(answer) + "\n")
        self.lines.flush()

    def fail(self, error):
        causes = []
        while error is not None:
            causes.append(f"{type(error).__name__}: {error}")
            error = error.__cause__ or error.__context__
        traceback.print_exc()
        self.say(error="\n".join(causes))


def plain_loop():
    """Milliseconds that a little of plain Python takes here and now, of eleven tries the median: how fast this machine is."""
    took = []
    for _ in range(11):
        begin = time.perf_counter()
        {str(i): (i,) for i in range(10_000)}
        took.append(time.perf_counter() - begin)
    return statistics.median(took) * 1e3


def worker_state(worker):
    """What the plugin reported in this worker, the process, and its speed."""
    from dataclasses import asdict

    import torch

    from ipc_cache.vllm import report

    memory = {}
    if torch.cuda.is_available():
        memory = {"reserved": torch.cuda.memory_reserved(), "allocated": torch.cuda.memory_allocated()}
    return {"pid": os.getpid(), "loads": [asdict(r) for r in report.loads], "loop_ms": plain_loop(), **memory}


def compile_factors(worker):
    """What of this worker's configuration and environment is in the key of vLLM's compile cache, part by part."""
    from vllm import envs

    config = worker.vllm_config
    parts = {name: getattr(config, name) for name in vars(config)}
    hashes = {name: str(part.compute_hash()) for name, part in parts.items() if hasattr(part, "compute_hash")}
    return {**hashes, **{name: str(value) for name, value in envs.compile_factors().items()}}


def serve(peer, options, trace=None):
    """An engine. Answers {"do": "generate" | "state" | ...}; ends when the peer hangs up."""
    peer = Peer(peer)
    try:
        from vllm import LLM

        begun, begin = time.time(), time.perf_counter()
        llm = traced(trace, lambda: LLM(**{**ENGINE, **options}))
        started = time.perf_counter() - begin
        engine = Engine(llm)
        config = llm.llm_engine.vllm_config
        peer.say(result={"begun": begun, "start_s": started, "blocks": config.cache_config.num_gpu_blocks,
                         "block_bytes": block_bytes(config)})
        for line in peer.lines:
            request = json.loads(line)
            peer.say(result=getattr(engine, request.pop("do"))(**request))
        llm.llm_engine.engine_core.shutdown()
    except BaseException as error:  # noqa: BLE001 - the program judges it
        peer.fail(error)


def block_bytes(config):
    """Of one block of the KV cache, in all layers: keys and values in bf16."""
    model, parallel = config.model_config, config.parallel_config
    heads, layers = model.get_num_kv_heads(parallel), model.get_num_layers(parallel)
    return 2 * 2 * config.cache_config.block_size * heads * model.get_head_size() * layers


def traced(path, function):
    """function(), with a profile written to `path` if there is one; of use where the engine runs in this process."""
    if path is None:
        return function()
    import cProfile
    import io
    import pstats

    profile = cProfile.Profile()
    result = profile.runcall(function)
    text = io.StringIO()
    for order in ("cumulative", "tottime"):
        pstats.Stats(profile, stream=text).sort_stats(order).print_stats(120)
    with open(path, "w") as file:
        file.write(text.getvalue())
    return result


class Engine:
    def __init__(self, llm):
        self.llm = llm

    def generate(self, prompts, tokens=16, logprobs=2):
        """Greedy, one prompt at a time: tokens, and the log-probabilities of the likeliest at each step."""
        from vllm import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False, logprobs=logprobs)
        outputs = [self.llm.generate([{"prompt_token_ids": p}], params, use_tqdm=False)[0].outputs[0] for p in prompts]
        return [[list(o.token_ids), [sorted((t, e.logprob) for t, e in step.items()) for step in o.logprobs]] for o in outputs]

    def timed(self, prompts, tokens):
        begin = time.perf_counter()
        self.generate(prompts, tokens)
        return time.perf_counter() - begin

    def state(self):
        return self.llm.collective_rpc(worker_state)

    def compile_factors(self):
        return self.llm.collective_rpc(compile_factors)[0]


def publish(peer, options):
    """A rank's worker up to its loaded model, nothing of an engine after it; says what the plugin reported."""
    peer = Peer(peer)
    try:
        from vllm.config import set_current_vllm_config
        from vllm.engine.arg_utils import EngineArgs
        from vllm.utils.import_utils import resolve_obj_by_qualname
        from vllm.utils.network_utils import get_distributed_init_method, get_open_port

        begin = time.perf_counter()
        config = EngineArgs(**{**ENGINE, **options}).create_engine_config()
        worker_class = resolve_obj_by_qualname(config.parallel_config.worker_cls)
        with set_current_vllm_config(config):
            worker = worker_class(vllm_config=config, local_rank=0, rank=0, is_driver_worker=True,
                                  distributed_init_method=get_distributed_init_method("127.0.0.1", get_open_port()))
            worker.init_device()
            worker.load_model()
        peer.say(result={"took_s": time.perf_counter() - begin, **worker_state(worker)})
        peer.lines.readline()
    except BaseException as error:  # noqa: BLE001
        peer.fail(error)
