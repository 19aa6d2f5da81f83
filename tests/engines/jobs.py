"""Functions that a test runs in a child of host.py, next to vLLM but without an engine."""

import importlib
import json
import traceback
from pathlib import Path
from types import SimpleNamespace


def run(function, out, arguments):
    """Calls "module:name" and leaves {"result": ...} or {"error": ...} in the file `out`."""
    try:
        module, _, name = function.partition(":")
        answer = {"result": getattr(importlib.import_module(module), name)(*arguments)}
    except BaseException:
        answer = {"error": traceback.format_exc()}
    part = Path(out).with_suffix(".part")
    part.write_text(json.dumps(answer))
    part.rename(out)


def config(**options):
    """vLLM's configuration for engine arguments, as its server makes it."""
    from vllm.engine.arg_utils import EngineArgs

    defaults = dict(skip_tokenizer_init=True, enforce_eager=True, max_model_len=256)
    return EngineArgs(**{**defaults, **options}).create_engine_config()


def groups(tensor=(0, 1), pipeline=(0, 1)):
    """Stands in for vLLM's process groups: (rank, size)."""
    from vllm.distributed import parallel_state

    made = [SimpleNamespace(rank_in_group=rank, world_size=size) for rank, size in (tensor, pipeline)]
    parallel_state.get_tp_group, parallel_state.get_pp_group = (lambda: made[0]), (lambda: made[1])


def keys(variants):
    """The key for each variant: engine arguments; "ranks", "environment" and "parallel" are set beside them."""
    import os

    from ipc_cache.vllm import key, sources

    found = []
    for variant in variants:
        variant = dict(variant)
        ranks, environment = variant.pop("ranks", {}), variant.pop("environment", {})
        parallel, wrap = variant.pop("parallel", {}), variant.pop("draft", False)
        groups(**{name: tuple(value) for name, value in ranks.items()})
        os.environ.update(environment)
        made = config(**variant)
        for name, value in parallel.items():
            setattr(made.parallel_config, name, value)
        if wrap:
            made.speculative_config = SimpleNamespace(draft_model_config=made.model_config)
        source = sources.resolve(made.model_config.model, made.model_config.revision)
        found.append(dict(key.fields(made, made.model_config, source)))
        for name in environment:
            del os.environ[name]
    return found


def functions():
    """What the key says of a user's function, or why not, and of functions that vLLM makes around values."""
    from ipc_cache.vllm import key, refuse

    def around(value):
        def override(config):
            return config, value

        override.__module__ = "vllm.config"
        return override

    try:
        said = {"user": key._plain(functions)}
    except refuse.Refused as error:
        said = {"user": str(error)}
    return {
        **said,
        "one": key._plain(around({"a": 1})),
        "again": key._plain(around({"a": 1})),
        "other": key._plain(around({"a": 2})),
    }


def find(fields, folder, options):
    """lookup.find() with these fields; how the sources compared, or the error's text and what it says of the mismatch."""
    from ipc_cache.vllm import lookup, sources
    from ipc_cache.vllm.options import Options

    source = sources.resolve(folder)
    try:
        decision = lookup.find(fields, source, "host", Options.parse(options))
    except lookup.NoWeights as error:
        cause = error.__cause__
        return {"error": str(error), **{n: getattr(cause, n, None) for n in ("field", "expected", "got")}}
    weights = decision.weights
    return {"sources": weights.manifest.source_state if weights else None, "miss": str(decision.miss)}


def find_each(fields, folder, changes):
    """find() once for each {field: value} of `changes`; a value of None leaves the field out."""
    answers = []
    for change in changes:
        asked = {**fields, **change}
        answers.append(find({k: v for k, v in asked.items() if v is not None}, folder, {}))
    return answers


def refused(settings):
    """What check_config() says when a configuration has a setting, by its dotted path."""
    from ipc_cache.vllm import refuse

    said = {}
    for path, value in settings:
        made = SimpleNamespace(
            parallel_config=SimpleNamespace(enable_eplb=False, enable_elastic_ep=False),
            model_config=SimpleNamespace(enable_sleep_mode=False, hf_config=SimpleNamespace()),
            weight_transfer_config=None,
            offload_config=SimpleNamespace(
                uva=SimpleNamespace(cpu_offload_gb=0), prefetch=SimpleNamespace(offload_group_size=0)
            ),
            quant_config=None,
        )
        at = made
        *parents, last = path.split(".") if path else [None]
        for name in parents:
            at = getattr(at, name)
        if last:
            assert hasattr(at, last), path
            setattr(at, last, value)
        try:
            refuse.check_config(made, private=False)
            said[path] = None
        except refuse.Refused as error:
            said[path] = str(error)
        refuse.check_config(made, private=True)
    return said


def accounted(model, extra, broker_pid=None):
    """The worker's order of calls: one loader is asked for memory, the broker may die, another one loads."""
    import os
    import signal

    from vllm.config import set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.model_executor.model_loader import get_model_loader
    from vllm.utils.network_utils import get_open_port

    made = config(model=model, load_format="ipc_broker", model_loader_extra_config=extra)
    with set_current_vllm_config(made):
        init_distributed_environment(1, 0, f"tcp://127.0.0.1:{get_open_port()}", 0, "gloo")
        initialize_model_parallel(1, 1)
        outside = get_model_loader(made.load_config).get_external_weight_memory(made)
        if broker_pid is not None:
            os.kill(broker_pid, signal.SIGKILL)
        get_model_loader(made.load_config).load_model(vllm_config=made, model_config=made.model_config)
        from ipc_cache.vllm import report

        return {"outside": outside, "how": report.loads[-1].how, "shared": report.loads[-1].shared}


def room(sizes, wanted, make_room):
    """accounting.make_room() where evicting a model frees its bytes; what was evicted or named, and what is left."""
    import ipc_cache
    from ipc_cache.vllm import accounting
    from ipc_cache.vllm.options import Options

    total = sum(sizes)

    def free():
        return total - sum(m.nbytes for m in ipc_cache.models())

    named = accounting.make_room(wanted, free, "host", Options(make_room=make_room))
    return {"named": named, "left": sorted(m.name for m in ipc_cache.models())}


def publish_while_changing(model, when):
    """An ordinary load and a publication, and when weights are loaded, or files hashed, somebody touches a file or adds
    one; the error's text."""
    import os

    from vllm.config import set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.model_executor.model_loader import get_model_loader
    from vllm.utils.network_utils import get_open_port

    from ipc_cache import publication
    from ipc_cache.vllm import publish

    def afterwards(call, change):
        def both(*arguments):
            result = call(*arguments)
            change()
            return result

        return both

    def touch():
        os.utime(Path(model) / "model.safetensors")

    def add():
        (Path(model) / "more.safetensors").touch()

    load = publish.OrdinaryLoader.load_weights
    if when == "hashed":  # the last moment at which another content could be taken for what was loaded
        publication._source = afterwards(publication._source, touch)
    else:
        publish.OrdinaryLoader.load_weights = afterwards(load, add if when == "added" else touch)
    made = config(model=model, load_format="ipc_broker", model_loader_extra_config={"on_miss": "publish"})
    with set_current_vllm_config(made):
        init_distributed_environment(1, 0, f"tcp://127.0.0.1:{get_open_port()}", 0, "gloo")
        initialize_model_parallel(1, 1)
        try:
            get_model_loader(made.load_config).load_model(vllm_config=made, model_config=made.model_config)
        except publish.FilesChanged as error:
            return str(error)
    return "published"


def resolve_all(names):
    """What sources.resolve() says of each."""
    from ipc_cache.vllm import sources

    said = []
    for name in names:
        try:
            said.append(str(sources.resolve(name)))
        except (sources.UnsupportedModel, FileNotFoundError) as error:
            said.append(str(error))
    return said


def fill(names, nbytes):
    """Publishes a model of `nbytes` bytes under each name; the bytes that are resident then."""
    import torch

    import ipc_cache

    for name in names:
        ipc_cache.publish({"x": torch.zeros(nbytes, dtype=torch.uint8)}, {"model": name}, name=name)
    return sum(m.nbytes for m in ipc_cache.models())


def register_broken():
    """register() where the loader cannot be imported, and again where all is well."""
    import sys

    from vllm.config.load import LoadConfig
    from vllm.model_executor import model_loader

    from ipc_cache.vllm import register

    def attempt(call):
        try:
            call()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None

    table = model_loader._LOAD_FORMAT_TO_MODEL_LOADER
    own = table.get(register.ALIAS)
    real = register._loader_class

    class Broken:
        def find_spec(self, name, path=None, target=None):
            if name == "ipc_cache.vllm.loader":
                raise RuntimeError("no such luck")

    sys.modules.pop("ipc_cache.vllm.loader", None)
    table.pop(register.FORMAT, None)
    sys.meta_path.insert(0, Broken())
    answers = {"raised": attempt(register.register)}
    answers["selected"] = attempt(lambda: model_loader.get_model_loader(LoadConfig(load_format=register.FORMAT)))
    sys.meta_path.pop(0)
    assert register._loader_class is real
    answers["twice"] = attempt(register.register)
    answers["own_kept"] = own is None or table[register.ALIAS] is own
    return answers
