"""Beside it, in the same run: what vLLM brings to start faster. Told, without bars."""

import importlib.util
import tempfile
import time

import pagecache
from engines import Failed
from trial import PROMPTS, measured, mib, told

FORMATS = {"fastsafetensors": "fastsafetensors", "runai_streamer": "runai_model_streamer"}


def peers(t):
    """vLLM's other ways to read a checkpoint, with the page cache dropped and warm."""
    folder = t.big_made()
    for load_format, package in FORMATS.items():
        if importlib.util.find_spec(package) is None:
            t.bar(f"beside it: load_format={load_format}", None, f"not run: {package} is not installed")
            continue
        for cache in ("dropped", "warm"):
            t.attempt(f"beside it: load_format={load_format}, page cache {cache}", one_format, folder, load_format, cache)


def one_format(t, folder, load_format, cache):
    left = f", {mib(pagecache.drop(folder)[0])} left in it" if cache == "dropped" else ""
    with t.host.fork(f"{load_format}-{cache}", "job.serve", {"VLLM_PLUGINS": ""},
                     options={"model": str(folder), "load_format": load_format, **t.memory}) as engine:
        said = measured(engine)
        engine.kill()
    t.card.settled()
    t.bar(f"beside it: load_format={load_format}, page cache {cache}{left}", None, told(said))


def own(t):
    """The daemon of vLLM's own weight cache, an engine that attaches to it, and the daemon's death."""
    if importlib.util.find_spec("vllm.model_executor.model_loader.weight_cache") is None:
        t.bar("beside it: vLLM's own weight cache", None, "not run: this version of vLLM has none")
        return
    t.broker.evict_all()
    folder, sockets = t.big_made(), tempfile.mkdtemp(prefix="vllm-own-")
    base = t.card.settled()
    with t.host.fork("own-daemon", "job_more.weight_cache_daemon", {"VLLM_PLUGINS": ""}, sockets=sockets,
                     options={"model": str(folder), **t.memory}) as daemon:
        took = daemon.result()["took_s"]
        held = t.card.settled() - base
        rss, pss, private = daemon.memory()
        t.bar("beside it: the daemon of vLLM's own weight cache", None, f"took {took:.1f} s, vLLM imported before; alone it holds "
              f"{mib(held)} of VRAM; its process is resident with {mib(rss)} (PSS {mib(pss)}, its own {mib(private)}: "
              "what was imported before the fork is shared here, and is not where it is started as a program)")
        t.attempt("own: engine", own_engine, folder, sockets)
        t.attempt("own: daemon killed", own_killed, folder, sockets, daemon)
    t.card.settled()


def own_start(t, name, folder, sockets):
    return t.host.fork(name, "job.serve", {"VLLM_PLUGINS": ""}, options={
        "model": str(folder), "load_format": "ipc_cache", "model_loader_extra_config": {"socket_dir": sockets}, **t.memory})


def own_engine(t, folder, sockets):
    with own_start(t, "own-engine", folder, sockets) as engine:
        said = measured(engine)
        t.figures["own_tokens"] = engine.call("generate", prompts=PROMPTS)
        engine.kill()
    t.card.settled()
    t.bar("beside it: vLLM's own weight cache, big, eager", None, f"{told(said)}, {said['blocks']} blocks")


def own_killed(t, folder, sockets, daemon):
    with own_start(t, "own-orphan", folder, sockets) as engine:
        engine.result()
        engine.ask("generate", prompts=PROMPTS)
        time.sleep(0.05)
        daemon.kill()
        try:
            said = [engine.result(), engine.call("generate", prompts=PROMPTS)]
            equal = all(tokens == t.figures.get("own_tokens") for tokens in said)
            what = f"goes on, tokens {'equal' if equal else 'differ'}, then and in the next request"
        except Failed as error:
            what = f"fails: {error}".replace("\n", " / ")[:300]
        engine.kill()
    t.bar("beside it: its daemon SIGKILLed while an engine generates", None, f"the engine {what}")
    t.card.settled()
    with own_start(t, "own-after", folder, sockets) as engine:
        try:
            said = measured(engine)
            what = (f"starts in {said['start_s']:.2f} s, Model loading took {said['model_s']} s, Loading weights took "
                    f"{said['weights_s'] or '(nothing said)'} s: {warnings(engine)}")
        except Failed as error:
            what = f"does not start: {error}".replace("\n", " / ")[:300]
        engine.kill()
    t.bar("beside it: an engine started after its death", None, what)


def warnings(engine):
    """What it says of the weight cache."""
    lines = [line.split("] ", 1)[-1] for line in engine.text().splitlines() if "WARNING" in line and "cache" in line.lower()]
    return "; ".join(lines)[:300] or "no warning"
