"""What `--model-loader-extra-config` may say; every key is optional, an unknown one is an error."""

import math
from dataclasses import dataclass, fields

ON_MISS = ("fail", "load", "publish")
VERIFY = ("stat", "hash", "none")


@dataclass(frozen=True)
class Options:
    """The plugin's options, checked.

    dir         the broker's directory; default: $IPC_CACHE_DIR, then the usual places
    model       which resident model: a name or a key's first digits; default: the one with this engine's key
    wait        seconds to wait for a model that is loading or not there yet; "forever" or a number. When publishing, as
                long again for another engine that loads the same already, and 0 is for as long as it takes then
    verify      how source files are compared: "stat", "hash" (read them where stat cannot tell), "none"
    make_room   evict unleased models of this device before the engine measures its memory
    on_miss     "fail"; "load": an ordinary load; "publish": an ordinary load, then publish and attach
    private     a writable copy of this process's own instead of shared read-only weights
    name        the display name when publishing
    replace     with on_miss=publish: publish anew although the model is resident
    trace_writes  name tensor and segment when something writes to a shared weight (for debugging; the process still ends)
    """

    dir: str | None = None
    model: str | None = None
    wait: float = 0.0
    verify: str = "stat"
    make_room: bool = False
    on_miss: str = "fail"
    private: bool = False
    name: str | None = None
    replace: bool = False
    trace_writes: bool = False

    @property
    def replaces(self) -> bool:
        """Does this engine publish, whatever is resident?"""
        return self.replace and self.on_miss == "publish"

    @classmethod
    def parse(cls, extra: object) -> "Options":
        """From `LoadConfig.model_loader_extra_config`. Raises ValueError with the key's name and what may be there."""
        extra = {} if extra is None else extra
        if not isinstance(extra, dict):
            raise ValueError(
                f"ipc_cache: --model-loader-extra-config must be a JSON object, not {type(extra).__name__}"
            )
        known = [field.name for field in fields(cls)]
        unknown = sorted(set(extra) - set(known))
        if unknown:
            raise ValueError(
                f"ipc_cache: unknown key {unknown[0]!r} in --model-loader-extra-config; known: {', '.join(known)}"
            )
        return cls(**{name: _CHECKS[name](name, value) for name, value in extra.items() if value is not None})


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"ipc_cache: {name} must be a non-empty string, not {value!r}")
    return value


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"ipc_cache: {name} must be true or false, not {value!r}")
    return value


def _seconds(name: str, value: object) -> float:
    if value == "forever":
        return math.inf
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ValueError(f'ipc_cache: {name} must be a number of seconds or "forever", not {value!r}')
    return float(value)


def _one_of(choices: tuple[str, ...]):
    def check(name: str, value: object) -> str:
        if value not in choices:
            raise ValueError(f"ipc_cache: {name} must be one of {', '.join(choices)}, not {value!r}")
        return str(value)

    return check


_CHECKS = {
    "dir": _text,
    "model": _text,
    "wait": _seconds,
    "verify": _one_of(VERIFY),
    "make_room": _flag,
    "on_miss": _one_of(ON_MISS),
    "private": _flag,
    "name": _text,
    "replace": _flag,
    "trace_writes": _flag,
}
