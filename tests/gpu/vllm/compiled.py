"""vLLM's cache of compiled graphs: does an attached start find what an ordinary one left, and the other way round?

Every order begins with an empty cache folder, but for what vLLM knows of model classes. What a start adds or compiles again it
did not find; what the two keys differ in is named. A second ordinary start says whether vLLM finds its own.
"""

import json
import os
import shutil
from pathlib import Path

import models
from trial import SHARE, compiled

PLUGIN = {"VLLM_PLUGINS": "ipc_cache"}


def caches(t):
    folder = models.make(t.options.models / "dense", "dense")
    t.resident("dense", folder, **SHARE)
    finds_its_own = t.attempt("compile cache of an ordinary start", ordinary_first, folder)
    t.attempt("compile cache of an attached start", attached_first, folder, bool(finds_its_own))


def ordinary_first(t, folder):
    """Does vLLM find what it has compiled itself? Only then it can be asked of others."""
    root = fresh(t, "cache-of-ordinary")
    known = start(t, folder, "ordinary", root, PLUGIN)
    finds_its_own = then(t, folder, "ordinary", root, known, PLUGIN, False)
    then(t, folder, "attached", root, known, PLUGIN, finds_its_own)
    return finds_its_own


def attached_first(t, folder, finds_its_own):
    root = fresh(t, "cache-of-attached")
    known = start(t, folder, "attached", root, PLUGIN)
    then(t, folder, "ordinary", root, known, PLUGIN, finds_its_own)
    then(t, folder, "ordinary", root, known, {"VLLM_PLUGINS": ""}, False)


def then(t, folder, way, root, known, environment, must):
    """A start after another one, which must find what that one compiled, or only says whether. Does it?"""
    said = start(t, folder, way, root, environment)
    added = said["entries"].keys() - known["entries"].keys()
    reused = not added and bool(known["entries"]) and "Directly load" in str(said["said"]) \
        and "Compiling model again" not in str(said["said"])
    what = f"keys differ in {', '.join(differences(known, said, added)) or 'nothing that vLLM wrote down'}" if added else "same key"
    t.bar(f"compile cache: {known['way']}, then {way}, VLLM_PLUGINS={environment['VLLM_PLUGINS'] or '(empty)'}",
          reused if must else None, f"{'reused' if reused else 'not reused'}, {what}; engine start {known['start_s']:.2f} s, then "
          f"{said['start_s']:.2f} s; first {known['said']}; then {said['said']}", "reused" if must else "")
    return reused


def differences(known, said, added):
    """Names of the parts of a configuration, and of the factors of a key, that differ."""
    names = {name for name in known["factors"].keys() | said["factors"].keys()
             if known["factors"].get(name) != said["factors"].get(name)}
    before = next((factors for factors in known["entries"].values() if factors), {})
    for factors in (said["entries"][entry] for entry in added if said["entries"][entry]):
        names |= {name for name in before.keys() | factors.keys() if before.get(name) != factors.get(name)}
    return sorted(names)


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
        found = {"way": way, "start_s": engine.result()["start_s"], "factors": engine.call("compile_factors")}
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
        found[f"torch_aot_compile/{path.name[:10]}"] = {}
    return found
