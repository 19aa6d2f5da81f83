"""The state that travels beside an export's tensors comes from another process: nothing in it is taken on trust."""

import copy

import pytest
import torch
from torch import nn

import ipc_cache
from ipc_cache import engine
from ipc_cache.engine import values


class Inner(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(2, width), requires_grad=False)
        self.packed = nn.Parameter(torch.empty(2, width), requires_grad=False)
        self.extra = [torch.zeros(2)]
        self.type = "plain"  # an attribute that hides a method of torch's

    def helper(self):
        return 1


class Outer(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.inner = Inner(width)


def exported():
    model = Outer()
    since = engine.snapshot(model)
    model.inner.weight.fill_(1)
    model.inner.packed = nn.Parameter(torch.ones(8), requires_grad=False)
    model.inner.weight.shuffled = True
    model.inner.type = "changed"
    return engine.export(model, since=since)


def skeleton(width=4):
    with engine.skeleton():
        return Outer(width)


def seen(module):
    """Everything that binding might have touched."""
    return {
        path: (dict(part._parameters), dict(part._buffers), {k: v for k, v in part.__dict__.items()})
        for path, part in module.named_modules()
    }


def refused(export, error, match, width=4):
    """The skeleton cannot be bound to this, and is as it was."""
    ipc_cache.engine.publish_export(export, {"model": "x"}, name="x", replace=True)
    made = skeleton(width)
    before = seen(made)
    with ipc_cache.attach("x") as weights, pytest.raises(error, match=match):
        engine.bind(made, weights)
    after = seen(made)
    assert after.keys() == before.keys()
    for path in before:
        for left, right in zip(before[path], after[path]):
            assert left.keys() == right.keys() and all(left[key] is right[key] for key in left), path


DEEP = {"list": []}
for _ in range(40):
    DEEP = {"list": [DEEP]}
DEEP_TREE = ["tensor", "inner.weight"]
for _ in range(40):
    DEEP_TREE = ["list", [DEEP_TREE]]

# (where, what is put there, what the error says); a dot leads into an object, None takes the field away.
MALFORMED = [
    ("same", None, "same: is missing"),
    ("same", [], "same: must be an object"),
    ("same", {"inner.weight": 3}, "must be a name, not 3"),
    ("same", {"inner.weight": "gone"}, "has no tensor 'gone'"),
    ("same", {"gone": "inner.weight"}, "has no tensor 'gone'"),
    ("same", {"inner.weight": "inner.packed", "inner.packed": "inner.weight"}, "is not the first name"),
    ("deleted", "inner.weight", "deleted: must be a list"),
    ("none", [[]], r"none\[0\]: must be a name"),
    ("host", ["gone"], r"host\[0\]: the model has no tensor"),
    ("reshaped", ["gone"], r"reshaped\[0\]: the model has no tensor"),
    ("flags", {"inner.weight": {"a": {"what": []}}}, "is no value"),
    ("flags", {"inner.weight": {"data": 1}}, "flag 'data' of tensor inner.weight"),
    ("flags", {"inner.weight": {"__class__": 1}}, "flag '__class__'"),
    ("plain", {"inner": []}, "must be an object"),
    ("plain", {"inner": {"x": None}}, "describes no value"),
    ("plain", {"inner": {"x": ["tensor"]}}, "describes no value"),
    ("plain", {"inner": {"x": ["tensor", "gone"]}}, "has no tensor 'gone'"),
    ("plain", {"inner": {"x": ["dict", [["key"]]]}}, "must be a key"),
    ("plain", {"inner": {"x": ["dict", [[["key"], ["keep"]]]]}}, "must be a key"),
    ("plain", {"inner": {"x": DEEP_TREE}}, "nested containers"),
    ("plain", {"inner": {"_parameters": ["tensor", "inner.weight"]}}, "'_parameters' of module inner is Python's or"),
    ("scalars", {"inner": {"x": DEEP}}, "in more than 16 others"),
    ("scalars", {"inner": {"x": {"dtype": "_dynamo"}}}, "is no value"),
    ("scalars", {"inner": {"x": {"dict": [[{"list": []}, 1]]}}}, "is no key"),
    ("scalars", {"inner": {"x": {"size": [None]}}}, "is no value"),
    ("scalars", {"inner": {"x": [1]}}, "is no value"),
    ("scalars", {"inner": {"_forward_hooks": 1}}, "'_forward_hooks' of module inner is Python's or"),
    ("scalars", {"inner": {"__class__": 1}}, "'__class__' of module inner"),
    ("scalars", {"inner": {"": 1}}, "'' of module inner"),
    ("scalars", {"inner": {"helper": 1}}, "'helper' of module inner belongs to the class Inner"),
    ("scalars", {"inner": {"_compiled_call_impl": 1}}, "belongs to the class Inner"),
    ("scalars", {"": {"inner": 1}}, r"'inner' of module \(the root\) is a module"),
    ("deleted", ["inner._parameters"], "'_parameters' of module inner"),
    ("none", ["inner._buffers"], "'_buffers' of module inner"),
    ("none", ["inner"], r"'inner' of module \(the root\) is a module"),
]  # fmt: skip


def test_a_malformed_state_is_named_and_nothing_is_bound(broker):
    for field, put, match in MALFORMED:
        export = exported()
        export.state = copy.deepcopy(export.state)
        if put is None:
            del export.state[field]
        else:
            export.state[field] = put
        refused(export, ipc_cache.Invalid, match)


def test_a_registered_name_that_is_torchs_own(broker):
    for name, match in (("inner._modules", "'_modules' of module inner"), ("inner.forward", "belongs to the class")):
        export = exported()
        export.tensors[name], export.kinds[name] = torch.ones(1), "buffer"
        refused(export, ipc_cache.Invalid, match)


@pytest.mark.parametrize("document", [[], 1, "x", None])
def test_a_state_that_is_no_object(broker, document):
    export = exported()
    export.state = document
    refused(export, ipc_cache.Invalid, "must be a JSON object")


@pytest.mark.parametrize("raw", [b"{", b"[" * 200_000, b"\xff"])
def test_a_state_that_is_no_json(broker, monkeypatch, raw):
    from ipc_cache import manifest

    real = manifest.Attribute.value
    monkeypatch.setattr(manifest.Attribute, "value", lambda self: real(manifest.Attribute(self.name, self.type, raw)))
    refused(exported(), ipc_cache.Invalid, "no JSON that can be read")


def test_another_version(broker):
    export = exported()
    export.state["version"] = {"x": 1}
    refused(export, ipc_cache.Mismatch, "was exported in version {'x': 1}, this package binds")


def test_an_honest_state_binds(broker):
    """Also what was reshaped, and an attribute that hides one of the class's where the skeleton has it too."""
    engine.publish_export(exported(), {"model": "x"}, name="x")
    made = skeleton()
    with ipc_cache.attach("x") as weights:
        assert engine.bind(made, weights).left == []
    assert made.inner.packed.shape == (8,) and made.inner.weight.shuffled and made.inner.type == "changed"


def test_parameters_of_other_sizes_are_another_model(broker):
    """What post-processing left in its shape is compared; what it reshaped cannot be."""
    refused(exported(), ipc_cache.Mismatch, r"inner\.weight is \[2, 4\] in it, and \[2, 5\] in the skeleton", width=5)
    export = exported()
    assert export.state["reshaped"] == ["inner.packed"]
    made = skeleton(5)
    with ipc_cache.attach("x") as weights:
        engine.bind(made, weights, ignore=lambda name: name == "inner.weight")
    assert made.inner.packed.shape == (8,)
    assert engine.export(Outer()).state["reshaped"] is None


def test_what_contains_itself_does_not_travel():
    knot = []
    knot.append(knot)
    with pytest.raises(values.NotPlain):
        values.encode(knot)
