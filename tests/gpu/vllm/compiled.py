"""vLLM's cache of compiled graphs: does an attached start find what an ordinary one left, and the other way round?

Every order begins with an empty cache folder, but for what vLLM knows of model classes. A start that adds an entry did not
find one; what the two entries' keys differ in is named.
"""

import json
import os
import shutil
import time
from pathlib import Path

import models
from trial import SHARE, compiled

PLUGIN = {"VLLM_PLUGINS": "ipc_cache"}


def caches(t):
    folder = models.make(t.options.models / "dense", "dense")
    t.resident("dense", folder, **SHARE)
    for first, second in (("ordinary", "attached"), ("attached", "ordinary")):
        root = fresh(t, f"cache-of-{first}")
        known = start(t, folder, first, root, PLUGIN)
        t.attempt(f"compile cache of an {first} start, then {second}", then, folder, second, root, known, PLUGIN, True)
    t.attempt("compile cache, VLLM_PLUGINS empty instead", then, folder, "ordinary", root, known, {"VLLM_PLUGINS": ""}, None)


def then(t, folder, way, root, known, environment, must):
    """A start after another one: a bar unless `must` is None."""
    said = start(t, folder, way, root, environment)
    added = said["entries"].keys() - known["entries"].keys()
    differs = sorted(name for name in known["factors"].keys() | said["factors"].keys()
                     if known["factors"].get(name) != said["factors"].get(name))
    for entry in added:
        other = next(iter(known["entries"].values()), {})
        differs += [name for name, value in said["entries"][entry].items() if other.get(name) != value]
    figure = (f"{known['start_s']:.2f} s, then {said['start_s']:.2f} s; first {known['said']}; then {said['said']}; "
              f"{len(added)} new entries ({', '.join(sorted(added)) or 'none'})"
              + (f"; the keys differ in {', '.join(differs) or 'nothing that vLLM wrote down'}" if added else ""))
    t.bar(f"compile cache: {known['way']}, then {way}, VLLM_PLUGINS={environment['VLLM_PLUGINS'] or '(empty)'}",
          None if must is None else not added, figure, "" if must is None else "nothing is compiled again")


def fresh(t, name):
    """A cache folder with nothing compiled in it."""
    root = (t.options.folder / name).resolve()
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    before = Path(os.environ.get("VLLM_CACHE_ROOT", Path.home() / ".cache" / "vllm")) / "modelinfos"
    if before.is_dir():
        shutil.copytree(before, root / "modelinfos")
    return root


def start(t, folder, way, root, environment):
    environment = {**environment, "VLLM_CACHE_ROOT": str(root)}
    begin = t.attached if way == "attached" else t.ordinary
    with begin(f"compile-{way}", folder, environment=environment, enforce_eager=False, **SHARE) as engine:
        said = engine.result()
        found = {"way": way, "start_s": said["start_s"], "factors": engine.call("compile_factors")}
        time.sleep(0.2)
        found.update(said=compiled(engine), entries=entries(root))
        engine.kill()
    t.card.settled()
    return found


def entries(root):
    """What is in the cache: by an entry's name the factors of its key that vLLM wrote beside it, flat."""
    found = {}
    for path in sorted((root / "torch_compile_cache").glob("*")):
        if path.name != "torch_aot_compile":
            factors = {}
            for file in path.rglob("cache_key_factors.json"):
                said = json.loads(file.read_text())
                factors.update({**said.pop("env", {}), **said})
            found[path.name] = factors
    for path in sorted((root / "torch_compile_cache" / "torch_aot_compile").glob("*")):
        found[f"torch_aot_compile/{path.name}"] = {}
    return found
