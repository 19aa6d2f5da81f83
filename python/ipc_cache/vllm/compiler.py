"""What torch.compile finds out once in every process, found out in one that forks: startup.preload() does so."""

import itertools
import sys
from collections.abc import Iterator, Mapping
from typing import Any


def find_back_ends() -> None:
    """What torch.compile has to choose from."""
    registry = sys.modules.get("torch._dynamo.backends.registry")
    if registry is not None:
        registry.list_backends(exclude_tags=())


def keep_rules() -> None:
    """What each function of torch is to torch.compile, which finds that out when a model is built, in eager mode too.

    init_process_group() has torch forget it, since some of it is asked for while torch is still being imported, and is
    something else then. So it is forgotten now, and what is found then is kept, for as long as nobody has put another
    function in the place of one of torch's."""
    rules: Any = sys.modules.get("torch._dynamo.trace_rules")
    if rules is None:
        return
    find = rules.get_torch_obj_rule_map
    forget = type(find).cache_clear
    forget(find)
    find()
    known = list(_functions(rules))

    def cache_clear() -> None:
        if any(owner.get(name) is not function for owner, name, function in known):
            forget(find)

    find.cache_clear = cache_clear


def _functions(rules: Any) -> Iterator[tuple[Mapping[str, Any], str, Any]]:
    """What has a rule: a module's or class's __dict__, the name in it, and what stands there; of nobody's files."""
    for name in itertools.chain(*rules.torch_name_rule_map):
        path, _, attribute = name.rpartition("#" if "#" in name else ".")
        owner = getattr(sys.modules.get(path) or rules.load_object(path), "__dict__", {})
        yield owner, attribute, owner.get(attribute)
