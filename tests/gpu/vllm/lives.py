"""Engines that publish themselves or wait for a publisher, engines that are killed, and a broker that is."""

import time

from trial import MIB, PROMPTS


def accounted(t, folder, memory, _size, what="big"):
    """Blocks of an engine that publishes itself, and of one that waits for a publisher; `strict` has those of the others."""
    t.broker.evict_all()
    t.card.settled()
    with t.attached(f"{what}-publishes", folder, {"on_miss": "publish"}, **memory) as engine:
        first = engine.result()["blocks"]
        engine.kill()
    t.broker.evict_all()
    t.card.settled()
    waiting = t.attached(f"{what}-waits", folder, {"wait": 120}, **memory)
    with waiting:
        time.sleep(5)  # it is at its first look by then
        t.published(f"{what}-publish-late", folder, **memory)
        second = waiting.result()
        generated = waiting.call("generate", prompts=PROMPTS)
        waiting.kill()
    t.card.settled()
    expected = t.figures.get(f"{what}_blocks")
    for name, blocks in ("publishes", first), ("waited", second["blocks"]):
        close = expected is not None and abs(blocks - expected) * second["block_bytes"] <= 8 * MIB
        t.bar(f"{what}: KV-cache blocks of an engine that {name}", None if t.options.cpu or expected is None else close,
            f"{blocks}, an ordinary load {'was not run' if expected is None else expected}", "within 2, or 8 MiB")
    tokens = t.figures.get("big_tokens" if what == "big" else what)
    if tokens is not None:
        same = generated == tokens
        t.bar(f"{what}: tokens of the one that waited", same, "equal" if same else "different", "equal")


def engine_killed(t, folder, memory, _):
    with t.attached("big-killed", folder, **memory) as engine:
        engine.result()
        engine.ask("generate", prompts=PROMPTS, tokens=512)
        time.sleep(1)
        begin = time.perf_counter()
        engine.kill()
    with t.attached("big-restarted", folder, **memory) as engine:
        engine.result()
        engine.call("generate", prompts=PROMPTS[:1], tokens=1)
        took = time.perf_counter() - begin
    t.card.settled()
    t.bar("big: SIGKILL under load to the restarted engine's first token", None, f"{took:.2f} s, vLLM imported before")


def broker_killed(t, folder, memory, _):
    expected = t.figures.get("big_tokens")
    with t.attached("big-broker-killed", folder, **memory) as engine:
        engine.result()
        engine.ask("generate", prompts=PROMPTS, tokens=16)
        t.broker.kill()
        said = engine.result()
        again = engine.call("generate", prompts=PROMPTS)
    t.start_broker()
    good = said == again and expected in (None, said)
    t.bar("big: broker SIGKILLed while an engine generates", good, f"the engine goes on, tokens and log-probabilities "
        f"{'equal' if good else 'differ'}, then and in the next request", "equal")
