"""Finding the resident model with this rank's key.

Nothing but an exact key attaches. What may differ, and only when the user allows it, is the path: with `verify: hash` a
model that was published from another folder is taken if every file has the same content, and with `model: NAME` the named
one is.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import ipc_cache
from ipc_cache.vllm.options import Options
from ipc_cache.vllm.report import count
from ipc_cache.vllm.sources import Source, weight_files

logger = logging.getLogger("vllm.ipc_cache")

_RETRY_SECONDS = 0.2
# A broker answered, and this model is not to be had, or not now.
_MISSES = (ipc_cache.NotFound, ipc_cache.Mismatch, ipc_cache.Unknown, ipc_cache.Busy, ipc_cache.Timeout)


class MoreFiles(ipc_cache.Mismatch):
    """Every file that the resident model was made of is here too, unchanged, and there are others."""


class NoWeights(RuntimeError):
    """No resident model may be attached; the message says which field differs, or what is resident."""


@dataclass
class Decision:
    """What was asked for, and the attached weights or why there are none. `stale`: publishing must replace the resident
    model of the same key; it was made of other bytes, or the user wants it so. `phases`: what the decision took, see
    Report."""

    fields: Mapping[str, str]
    source: Source
    device: str
    weights: "ipc_cache.Weights | None" = None
    miss: Exception | None = None
    stale: bool = False
    phases: dict[str, float] = field(default_factory=dict)


def find(fields: Mapping[str, str], source: Source, device: str, options: Options, again: bool = False) -> Decision:
    """Attaches, or tells the miss; NoWeights with `on_miss: fail`. Whatever else goes wrong is raised as it is. again: it
    was waited for and counted before."""
    decision = Decision(fields, source, device)
    try:
        weights = _attach(decision, replace(options, wait=0.0) if again or options.replaces else options)
    except (*_MISSES, ipc_cache.NoBroker) as miss:
        if not again:
            count("miss", getattr(miss, "field", "") or type(miss).__name__)
        if options.on_miss == "fail":
            raise NoWeights(f"ipc_cache: {source.identity}: {miss}{_advice(decision, miss, options)}") from miss
        decision.miss = miss
        # A field that is not of the key names a source file.
        decision.stale = isinstance(miss, ipc_cache.Mismatch) and miss.field not in fields and miss.field != "device"
        return decision
    if options.replaces:
        weights.close()
        decision.miss, decision.stale = ipc_cache.Exists(f"{weights.manifest.name} is resident, and is replaced"), True
    else:
        decision.weights = weights
    return decision


def _advice(decision: Decision, miss: Exception, options: Options) -> str:
    if isinstance(miss, ipc_cache.NoBroker):
        return ". Start one with: python3 -m ipc_cache.daemon --model " + str(decision.source.folder)
    if options.verify == "stat" and not isinstance(miss, ipc_cache.Unknown):
        others = _same_but_path(decision, options)
        if others:
            other = others[0]
            return (
                f". {other.name} ({other.key_id[:12]}) has this key but for its path {other.key['model']}; with "
                '{"verify": "hash"} in --model-loader-extra-config it is taken if every file has the same content'
            )
    return (
        '. To load ordinarily instead, or to publish: --model-loader-extra-config with "on_miss": "load" or "publish"'
    )


def _attach(decision: Decision, options: Options):
    deadline = time.monotonic() + options.wait
    while True:
        try:
            return _attach_once(decision, options, max(0.0, deadline - time.monotonic()))
        except ipc_cache.NoBroker:
            if time.monotonic() + _RETRY_SECONDS > deadline:
                raise
            time.sleep(_RETRY_SECONDS)


def _attach_once(decision: Decision, options: Options, wait: float):
    common = dict(
        device=decision.device, wait=wait, sources=decision.source.folder, private=options.private, dir=options.dir
    )
    if options.model is not None:
        return _attach_named(decision, options, common)
    try:
        return _attach_compared(decision, options, key=decision.fields, exact=True, verify=_verify(options), **common)
    except _MISSES as miss:
        if options.verify != "hash":
            raise
        return _attach_elsewhere(decision, options, {**common, "wait": 0}, miss)


def _verify(options: Options) -> str:
    """Who would publish reads the files anyway: then the content may decide where metadata cannot."""
    return "hash" if options.on_miss == "publish" and options.verify == "stat" else options.verify


def _attach_compared(decision: Decision, options: Options, *model: str, **common):
    """ipc_cache.attach(), whose comparison of the files is completed."""
    weights = ipc_cache.attach(*model, **common)
    if options.verify != "none":
        try:
            _check_files(decision.source, weights)
        except BaseException:
            weights.close()
            raise
    return weights


def _check_files(source: Source, weights) -> None:
    """The resident model's files were compared; one that came later, or that only this folder has, makes another model."""
    made_of = {file.name for file in weights.manifest.sources}
    more = sorted(file.name for file in weight_files(source.folder) if file.name not in made_of)
    if more:
        raise MoreFiles(
            f"{source.folder} has {', '.join(more[:10])}, and the resident model was made without; publish it again",
            field=more[0],
            expected="present",
            got="missing",
        )


def _attach_named(decision: Decision, options: Options, common: dict):
    """The model that the user names, whatever its path: all other fields must be ours."""
    wanted = {name: value for name, value in decision.fields.items() if name != "model"}
    weights = _attach_compared(decision, options, options.model, key=wanted, verify=_verify(options), **common)
    for name, value in weights.manifest.key.items():
        if name not in ("model", "device") and name not in wanted:
            weights.close()
            raise ipc_cache.Mismatch(
                f"{options.model} differs; {name}: expected (none), got {value}",
                field=name,
                expected="(none)",
                got=value,
            )
    return weights


def _attach_elsewhere(decision: Decision, options: Options, common: dict, miss: Exception):
    """The same key from another folder, with the same content. Each is asked for by its whole key, since a number may be
    somebody's name, and by content alone. Whatever is wrong with one, the next may fit."""
    for other in _same_but_path(decision, options):
        elsewhere = {**decision.fields, "model": other.key["model"]}
        try:
            return _attach_compared(decision, options, key=elsewhere, exact=True, verify="hash", **common)
        except (*_MISSES, ipc_cache.Refused) as reason:
            logger.info("ipc_cache: the copy from %s is passed over: %s", other.key["model"], reason)
            # Says more than that nothing has our path; most of all where nothing else differs.
            if isinstance(reason, (ipc_cache.Mismatch, ipc_cache.Unknown)) and not isinstance(miss, MoreFiles):
                miss = reason
    raise miss


def _same_but_path(decision: Decision, options: Options) -> list:
    wanted = {**decision.fields, "device": ipc_cache.client.device_name(decision.device)}
    try:
        models = ipc_cache.models(dir=options.dir)
    except ipc_cache.Error:
        return []
    return [
        m
        for m in models
        if m.state == "ready"
        and m.key.keys() == wanted.keys()
        and [name for name in wanted if m.key[name] != wanted[name]] == ["model"]
    ]


def attach_own(decision: Decision, options: Options):
    """Right after publishing: the sources were compared then."""
    return ipc_cache.attach(
        key=decision.fields,
        exact=True,
        device=decision.device,
        sources=decision.source.folder,
        verify="hash",
        private=options.private,
        dir=options.dir,
    )
