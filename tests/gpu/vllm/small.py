"""Small models: the strict comparison, what must not be mistaken for each other, CUDA graphs, what is refused by name."""

import lives
import models
from trial import PROMPTS, SHARE, phases


def small(t):
    for kind in t.options.kinds.split(","):
        t.attempt(kind, one_small, kind)


def one_small(t, kind):
    folder = models.make(t.options.models / kind, kind)
    said = t.published(f"{kind}-publish", folder, **SHARE)
    t.bar(f"{kind}: published, publisher killed", [m["leases"] for m in t.broker.idle() if m["key"]["model"] == str(folder)] == [0],
        f"{said['took_s']:.2f} s; {phases(said['loads'][0])}", "resident, no lease")
    cold, _, t.figures[kind], _ = t.strict(kind, kind, folder, **SHARE)
    t.figures[f"{kind}_blocks"] = cold["blocks"]


def accounted(t):
    """As big's part of that name, with the small dense model: where there is no time for a large one."""
    lives.accounted(t, models.make(t.options.models / "dense", "dense"), SHARE, None, "dense")


def refused(t):
    """What this vLLM does not let be shared: refused by the method's name, with the way out."""
    if t.old:
        for kind in ("moe",) if t.options.cpu else ("fp8", "moe"):  # the CPU has no kernels for block FP8
            t.attempt(f"{kind}: refused", one_refused, kind, ("before vLLM 0.30",))
    elif t.figures["vllm"].split("+")[0] == "0.30.0" and not t.options.cpu:
        t.attempt("modelopt: refused", one_refused, "modelopt", ("ModelOptLinearMethod with MarlinNvFp4LinearKernel", "vLLM 0.30.0"))
        t.attempt("modelopt: the way out", way_out, "modelopt")
    else:
        t.bar("refused by version", None, "not run: no method of these models that this version refuses by name and can run here")


def one_refused(t, kind, names):
    folder = models.make(t.options.models / kind, kind)
    said = t.refusal(f"{kind}-refused", folder, {"on_miss": "publish"}, **SHARE)
    line = next((line for line in said.splitlines() if "cannot be rebuilt" in line), said.splitlines()[0])
    there = [m for m in t.broker.models() if m["key"]["model"] == str(folder)]
    t.bar(f"{kind}: publishing is refused by name, nothing is resident", all(name in line for name in (*names, "--load-format auto"))
          and not there, line[:300], "by name")


def way_out(t, kind):
    """What the refusal says to do instead: the model itself is one that this vLLM runs."""
    with t.ordinary(f"{kind}-ordinary", models.make(t.options.models / kind, kind), **SHARE) as engine:
        engine.result()
        said = engine.call("generate", prompts=PROMPTS[:1])
    t.card.settled()
    t.bar(f"{kind}: runs with --load-format auto", len(said[0][0]) == 16, f"{len(said[0][0])} tokens", "16 tokens")


def controls(t):
    for kind, change in (("dense", models.zero_a_norm), ("moe", models.swap_experts)):
        if kind in t.options.kinds.split(","):
            t.attempt(f"control {change.__name__}", control, kind, change)


def control(t, kind, change):
    name = change.__name__.replace("_", " ")
    folder = models.altered(models.make(t.options.models / kind, kind), t.options.models / f"{kind}-{change.__name__}", change)
    with t.ordinary(f"{kind}-{change.__name__}", folder, **SHARE) as engine:
        engine.result()
        said = engine.call("generate", prompts=PROMPTS)
    t.card.settled()
    if kind in t.figures:
        changed = sum(a[0] != b[0] for a, b in zip(said, t.figures[kind]))
        t.bar(f"{kind}, {name}: other tokens", changed > 0, f"{changed} of {len(PROMPTS)} prompts", "some")
    resident = next(m for m in t.broker.models() if m["key"]["model"] == str(t.options.models / kind))
    said = t.refusal(f"{kind}-{change.__name__}-attach", folder, {"model": resident["key_id"], "verify": "hash"})
    t.bar(f"{kind}, {name}: attaching by name is rejected by content", "model.safetensors" in said and "Mismatch" in said,
        said.splitlines()[0][:300], "rejected")


def graphs(t):
    for kind in t.options.kinds.split(","):
        t.attempt(f"{kind}, CUDA graphs", one_graphs, kind)


def one_graphs(t, kind):
    folder = models.make(t.options.models / kind, kind)
    t.resident(kind, folder, **SHARE)
    starts = t.strict(f"{kind}, CUDA graphs", f"{kind}-graphs", folder, environment={"VLLM_PLUGINS": "ipc_cache"},
                      enforce_eager=False, **SHARE)[:2]
    said = [str(start["compiled"]) for start in starts]
    captured = sum("Graph capturing finished" in text for text in said)
    found = ["found compiled" if "Directly load" in text else "compiled" for text in said]
    t.bar(f"{kind}, CUDA graphs: captured in both starts", None if t.options.cpu else captured == 2,
          f"in {captured}; ordinary: {found[0]}, attached: {found[1]}", "2")
