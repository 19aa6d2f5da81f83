"""One engine in a process of its own, driven by a test over a socket: one JSON line in, one JSON line out.

The process was forked from host.py, which has imported vLLM; the engine core runs in this very process, so that a test that
kills it kills the engine.
"""

import hashlib
import json
import os
import socket
import traceback

PHASES = {}


def digest(tensor):
    """Of a tensor's bytes, whatever its type and strides."""
    import torch

    flat = tensor.detach().cpu().contiguous().flatten()
    return hashlib.sha256(flat.view(torch.uint8).numpy().tobytes()).hexdigest()[:16] if flat.numel() else "empty"


def shared_ranges():
    """Address ranges of this process that are broker memory, with their permissions."""
    with open("/proc/self/maps") as maps:
        rows = [line.split(maxsplit=5) for line in maps if "/memfd:" in line]
    return [(*(int(at, 16) for at in row[0].split("-")), row[1]) for row in rows]


def describe(model):
    """Every tensor of the model by name: type, shape, digest, and the permissions of shared memory it lies in, or None."""
    ranges = shared_ranges()
    found = {}
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    for name, tensor in tensors:
        at = tensor.data_ptr()
        where = next((perms for begin, end, perms in ranges if begin <= at < end), None)
        found[name] = [str(tensor.dtype), list(tensor.shape), digest(tensor), where if tensor.numel() else None]
    return found


def models_of(worker):
    """The models of a worker: target, then draft."""
    runner = worker.model_runner
    draft = getattr(getattr(runner, "drafter", None) or getattr(runner, "speculator", None), "model", None)
    return [runner.get_model()] + ([draft] if draft is not None else [])


def worker_tensors(worker):
    return [describe(model) for model in models_of(worker)]


def worker_flags(worker):
    """What loading leaves on a draft: whose embedding and head it uses."""
    return [
        {name: getattr(m, name, None) for name in ("has_own_lm_head", "has_own_embed_tokens")}
        for m in models_of(worker)
    ]


def worker_overwrite(worker, name):
    """Writes into a parameter, as an engine that updates weights in place would."""
    dict(worker.model_runner.get_model().named_parameters())[name].data.zero_()
    return True


def worker_reload(worker, own):
    """vLLM's own way to load again, from its files or with weights of the caller's own; the text of a refusal, or None."""
    from ipc_cache.vllm.refuse import Refused

    parameters = dict(worker.model_runner.get_model().named_parameters())
    given = [("model.norm.weight", parameters["model.norm.weight"].clone())] if own else None
    try:
        worker.model_runner.reload_weights(given)
    except Refused as refusal:
        return str(refusal)
    return None


def worker_state(worker):
    """What the plugin reported in this worker, and counted."""
    from dataclasses import asdict

    from prometheus_client import REGISTRY

    from ipc_cache.vllm import report

    counters = {
        f"{s.name}{dict(s.labels) or ''}": s.value
        for m in REGISTRY.collect()
        if m.name.startswith("ipc_cache")
        for s in m.samples
        if s.name.endswith("_total")
    }
    return {"pid": os.getpid(), "phases": PHASES, "loads": [asdict(r) for r in report.loads], "counters": counters}


def time_phases():
    """For the benchmark: what stock vLLM spends where, in milliseconds."""
    import time

    from vllm.model_executor.model_loader import base_loader, default_loader

    def timed(owner, attribute, phase):
        function = getattr(owner, attribute)

        def wrapper(*arguments, **options):
            begin = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                PHASES[phase] = PHASES.get(phase, 0) + (time.perf_counter() - begin) * 1e3

        setattr(owner, attribute, wrapper)

    timed(base_loader, "initialize_model", "initialize")
    timed(default_loader.DefaultModelLoader, "load_weights", "read")
    timed(base_loader, "process_weights_after_loading", "post-process")


class Engine:
    def __init__(self, spec):
        if "ENGINES_PHASES" in os.environ:
            time_phases()
        from vllm import LLM

        options = {
            "skip_tokenizer_init": True,
            "enforce_eager": True,
            "max_model_len": 256,
            "max_num_seqs": 4,
            "seed": 0,
            "enable_prefix_caching": False,
            "disable_log_stats": True,
            "num_gpu_blocks_override": 64,
            **spec["options"],
        }
        self.llm = LLM(**{k: v for k, v in options.items() if v is not None})

    def generate(self, prompts, tokens=32, logprobs=2, lora=None):
        """Greedy, one prompt at a time: tokens, and the log-probabilities of the likeliest ones at each step."""
        from vllm import SamplingParams

        params = SamplingParams(
            temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False, logprobs=logprobs
        )
        more = {}
        if lora is not None:
            from vllm.lora.request import LoRARequest

            more["lora_request"] = LoRARequest("adapter", 1, lora)
        outputs = [
            self.llm.generate([{"prompt_token_ids": p}], params, use_tqdm=False, **more)[0].outputs[0] for p in prompts
        ]
        return [
            {
                "tokens": list(o.token_ids),
                "logprobs": [{str(t): entry.logprob for t, entry in step.items()} for step in o.logprobs],
            }
            for o in outputs
        ]

    def embed(self, prompts):
        inputs = [p if isinstance(p, str) else {"prompt_token_ids": p} for p in prompts]
        return [list(self.llm.embed([p], use_tqdm=False)[0].outputs.embedding) for p in inputs]

    def tensors(self):
        """For each rank, for target and draft: describe()."""
        return self.llm.collective_rpc(worker_tensors)

    def state(self):
        """For each rank: worker_state()."""
        return self.llm.collective_rpc(worker_state)

    def flags(self):
        return self.llm.collective_rpc(worker_flags)

    def overwrite(self, name):
        return self.llm.collective_rpc(worker_overwrite, args=(name,))

    def reload(self, own=False):
        return self.llm.collective_rpc(worker_reload, args=(own,))

    def memory(self):
        """Bytes of this process, as the kernel counts them, and those of shared segments."""
        rows = {}
        with open("/proc/self/smaps") as smaps:
            memfd = False
            for line in smaps:
                head = line.split()
                if "-" in head[0] and not head[0].endswith(":"):
                    memfd = "/memfd:" in line
                elif head[0] in ("Rss:", "Pss:", "Private_Dirty:") and memfd:
                    rows[head[0][:-1]] = rows.get(head[0][:-1], 0) + int(head[1]) * 1024
        return rows


def serve(spec):
    """Starts the engine, says so, and answers until the peer hangs up."""
    peer = socket.socket(socket.AF_UNIX)
    peer.connect(spec["socket"])
    lines = peer.makefile("rw")

    def say(**answer):
        lines.write(json.dumps(answer) + "\n")
        lines.flush()

    try:
        engine = Engine(spec)
        say(ready=True, pid=os.getpid())
        for line in lines:
            request = json.loads(line)
            say(result=getattr(engine, request.pop("do"))(**request))
    except BaseException as error:
        causes, at = [], error
        while at is not None:
            causes.append(f"{type(at).__name__}: {at}")
            at = at.__cause__ or at.__context__
        traceback.print_exc()
        say(error="\n".join(causes))
