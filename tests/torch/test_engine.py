"""The engine-neutral part: export, skeleton, bind and the check, with a model that does what engines do."""

import functools
import json
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import ipc_cache
from ipc_cache import engine, tensors

from same import assert_same


class Weight(nn.Parameter):
    """An engine's own class of parameter."""

    def __new__(cls, data, loader=None):
        made = super().__new__(cls, data, requires_grad=False)
        made.loader = loader
        return made


class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("cos", torch.arange(4.0).cos(), persistent=False)


class Layer(nn.Module):
    def __init__(self, rotary):
        super().__init__()
        self.rotary = rotary
        self.weight = Weight(torch.empty(4, 6), loader=print)
        self.packed = Weight(torch.empty(3, 3))
        self.scale = nn.Parameter(torch.empty(2), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(4))
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("nothing", None)
        self.k_scale = torch.tensor(1.0)
        self.k_scale_float = 1.0
        self.workspace = torch.zeros(8)
        self.method = SimpleNamespace(layer_weight=self.weight)
        self.views = []
        self.cache = None

    def post_process(self):
        """As quantisation methods do after loading."""
        self.folded = nn.Parameter(self.weight.t() * 2, requires_grad=False)
        del self.packed
        self.scale = None
        self.k_scale = torch.tensor(0.25)
        self.k_scale_float = 0.25
        self.weight.data = self.weight.data.t().contiguous().t()
        self.weight.is_shuffled = True
        self.views = [self.bias[:2], self.weight]
        self.cache = {"sizes": (1, 2), 3: (torch.arange(5), None, torch.float16)}
        self.empty = nn.Parameter(torch.empty(0), requires_grad=False)
        self.kernel = object()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        rotary = Rotary()
        self.embed = nn.Embedding(10, 6)
        self.layers = nn.ModuleList(Layer(rotary) for _ in range(2))
        self.head = nn.Linear(6, 10, bias=False)
        self.has_own_head = False
        self.shared = self.layers[0]  # registered twice

    def load(self, seed=0):
        torch.manual_seed(seed)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.normal_()
        self.head.weight = self.embed.weight
        self.has_own_head = True
        for layer in self.layers:
            layer.post_process()


def loaded():
    model = Model()
    since = engine.snapshot(model)
    model.load()
    return model, since


def workspaces(name, tensor, owner):
    return name.endswith("workspace")


@pytest.fixture
def published(broker):
    model, since = loaded()
    exported = engine.export(model, since=since, exclude=workspaces)
    engine.publish_export(exported, {"model": "m"}, name="m")
    return model, exported


def skeleton():
    with engine.skeleton("cpu"):
        return Model()


def test_a_skeleton_has_parameters_on_meta_and_buffers_real():
    model = skeleton()
    assert all(parameter.is_meta for parameter in model.parameters())
    assert not any(buffer.is_meta for buffer in model.buffers())
    assert torch.equal(model.layers[0].rotary.cos, Rotary().cos)
    with engine.skeleton("cpu"):
        assert torch.empty(3, device="cpu").is_meta and torch.empty_strided((2,), (1,)).is_meta
        assert not torch.zeros(3).is_meta and torch.empty(2, pin_memory=False).is_meta
    assert not torch.empty(3).is_meta


def test_what_is_exported(published):
    _, exported = published
    state = exported.state
    assert exported.excluded == ["layers.0.workspace", "layers.1.workspace", "shared.workspace"]
    assert exported.kinds["layers.0.weight"] == "parameter" and exported.kinds["layers.0.count"] == "buffer"
    assert exported.kinds["layers.0.cache[3][0]"] == "plain" and "layers.0.rotary.cos" not in exported.kinds
    assert state["same"]["head.weight"] == "embed.weight" and state["same"]["layers.0.views[1]"] == "layers.0.weight"
    assert state["same"]["shared.weight"] == "layers.0.weight"
    assert state["deleted"] == ["layers.0.packed", "layers.1.packed", "shared.packed"]
    assert state["none"] == ["layers.0.scale", "layers.1.scale", "shared.scale"]
    assert state["scalars"][""] == {"has_own_head": True}
    assert state["scalars"]["layers.1"] == {"k_scale_float": 0.25}
    assert state["flags"]["layers.0.weight"]["is_shuffled"] is True
    json.dumps(state)


def compare(have, want):
    """Everything that export() sees is the same in both."""
    left, right = (engine.export(m, since=engine.snapshot(Model()), exclude=workspaces) for m in (have, want))
    assert left.state == right.state and list(left.tensors) == list(right.tensors)
    for name, tensor in right.tensors.items():
        assert_same(left.tensors[name], tensor, name)
        if tensor.numel() > 1:
            assert left.tensors[name].stride() == tensor.stride(), name


def test_binding_gives_the_same_model(published):
    model, _ = published
    made = skeleton()
    weight, method = made.layers[0].weight, made.layers[0].method
    with ipc_cache.attach("m") as weights:
        bound = engine.bind(made, weights)
        engine.check_no_meta(made)
        compare(made, model)
        layer = made.layers[0]
        # The very objects of the skeleton, with their class and what was set on them.
        assert layer.weight is weight and method.layer_weight is weight and type(weight) is Weight
        assert weight.loader is print and weight.is_shuffled is True
        assert made.head.weight is made.embed.weight and made.shared is layer
        assert layer.views[1] is layer.weight and layer.views[0].data_ptr() == layer.bias.data_ptr()
        assert not hasattr(layer, "packed") and layer.scale is None and layer.nothing is None
        assert layer.cache["sizes"] == (1, 2) and layer.cache[3][1:] == (None, torch.float16)
        assert made.has_own_head is True and layer.k_scale_float == 0.25
        assert weight.data_ptr() == weights["layers.0.weight"].data_ptr()
        assert "layers.0.folded" in bound.created and bound.left == [] and bound.copied == []
        assert torch.equal(layer.folded, model.layers[0].folded)
        x = torch.randn(2, 6)
        assert torch.equal(
            nn.functional.linear(x, layer.weight, layer.bias),
            nn.functional.linear(x, model.layers[0].weight, model.layers[0].bias),
        )


def test_private_and_ignored(published):
    made = skeleton()
    with ipc_cache.attach("m") as weights:
        bound = engine.bind(
            made,
            weights,
            private={"layers.0.count", "layers.1.count"},
            ignore=lambda name: name == "layers.1.bias",
        )
        assert sorted(bound.copied) == ["layers.0.count", "layers.1.count"] and bound.copied_bytes == 8
        made.layers[0].count += 1
        assert bound.left == ["layers.1.bias"]
        assert bound.shared_bytes == sum(weights[n].nbytes for n in bound.shared)
        with pytest.raises(ipc_cache.MetaLeft, match=r"layers\.1\.bias"):
            engine.check_no_meta(made)


def test_another_model_is_named(published):
    with ipc_cache.attach("m") as weights:
        with pytest.raises(ipc_cache.Mismatch, match="m is another model: Linear has no .*embed"):
            engine.bind(nn.Linear(2, 2, device="meta"), weights)
        made = skeleton()
        made.layers.append(nn.Linear(2, 2, device="meta"))
        assert engine.bind(made, weights).left == ["layers.2.weight", "layers.2.bias"]


def test_a_skeleton_that_ties_what_is_published_apart(broker):
    """Two objects in the publisher stay two, or the second one's weights would silently be the first one's."""

    def build(tied):
        module = nn.Module()
        module.embed, module.head = nn.Embedding(4, 3), nn.Linear(3, 4, bias=False)
        if tied:
            module.head.weight = module.embed.weight
            module.head.weight.note = "mine"
        return module

    model = build(False)
    engine.publish_export(engine.export(model), {"model": "x"}, name="x")
    with engine.skeleton():
        made = build(True)
    embed = made.embed.weight
    with ipc_cache.attach("x") as weights:
        engine.bind(made, weights)
        engine.check_no_meta(made)
        assert made.embed.weight is embed and made.head.weight is not embed and made.head.weight.note == "mine"
        assert torch.equal(made.embed.weight, model.embed.weight) and torch.equal(made.head.weight, model.head.weight)


@pytest.fixture(params=["fast", "plain"])
def both_views(request, monkeypatch):
    """Views by the C library, and by torch alone."""
    if request.param == "plain":
        monkeypatch.setenv("IPC_CACHE_PLAIN_VIEWS", "1")
    tensors._fast.cache_clear()
    yield
    monkeypatch.undo()
    tensors._fast.cache_clear()


@pytest.mark.parametrize("private", [set(), {"a"}, {"b"}, {"c", "d"}, {"a", "b", "c", "d"}])
def test_objects_over_the_same_memory(broker, private, both_views):
    """Several objects in the publisher, none of them another one, that have the same bytes: so they are here, but for
    private ones, and none gets what another one was before."""

    def build():
        module = nn.Module()
        module.a = nn.Parameter(torch.arange(6.0), requires_grad=False)
        module.b, module.c = (nn.Parameter(module.a.data, requires_grad=False) for _ in range(2))
        module.register_buffer("d", module.a.data)
        module.e = module.a.data
        return module

    engine.publish_export(engine.export(build()), {"model": "x"}, name="x")
    with engine.skeleton():
        made = nn.Module()
        made.a, made.b, made.c = (nn.Parameter(torch.empty(6), requires_grad=False) for _ in range(3))
        made.register_buffer("d", torch.empty(6))
    objects = [made.a, made.b, made.c, made.d]
    with ipc_cache.attach("x") as weights:
        bound = engine.bind(made, weights, private=private)
        engine.check_no_meta(made)
        assert all(a is b for a, b in zip([made.a, made.b, made.c, made.d], objects)) and set(bound.copied) == private
        named = {name: getattr(made, name) for name in "abcde"}
        assert len(set(map(id, named.values()))) == 5
        shared = weights["a"].data_ptr()
        for name, tensor in named.items():
            assert torch.equal(tensor, torch.arange(6.0)), name
            assert (tensor.data_ptr() == shared) == (name not in private), name
            assert not tensor._is_view() or name == "e", name
        for i, name in enumerate(sorted(private)):
            named[name].fill_(7 + i)
        assert [float(named[name][0]) for name in sorted(private)] == [7.0 + i for i in range(len(private))]
        assert torch.equal(weights["a"], torch.arange(6.0))


@pytest.mark.parametrize("private", [{"b", "c"}, {"b", "d"}, {"b", "c", "d"}, {"a", "c"}])
def test_private_tensors_near_and_far(broker, private, both_views):
    """Near ones are copied together, which does not show."""
    model = nn.Module()
    for name in ("a", "e"):
        model.register_parameter(name, nn.Parameter(torch.arange(800_000.0), requires_grad=False))
    model.register_buffer("b", torch.tensor([1, 2, 3]))
    model.register_buffer("c", torch.tensor(2.5, dtype=torch.bfloat16))
    model.register_buffer("d", torch.arange(7, dtype=torch.uint8))
    export = engine.export(model)
    export.tensors = {name: export.tensors[name] for name in ("a", "b", "c", "e", "d")}  # so they lie in their segment
    engine.publish_export(export, {"model": "x"}, name="x")
    with engine.skeleton():
        made = nn.Module()
        for name in ("a", "e"):
            made.register_parameter(name, nn.Parameter(torch.empty(800_000), requires_grad=False))
        for name in "bcd":
            made.register_buffer(name, torch.empty_like(getattr(model, name)))
    with ipc_cache.attach("x") as weights:
        assert set(engine.bind(made, weights, private=private).copied) == private
        for name, tensor in export.tensors.items():
            assert_same(getattr(made, name).data, tensor, name)
        for name in private:
            getattr(made, name).fill_(0)
        for name, tensor in export.tensors.items():
            assert_same(weights[name], tensor, name)
            assert name in private or torch.equal(getattr(made, name), tensor), name


@pytest.mark.parametrize("elements", [16, 1_000_000])  # copied together, or each alone
def test_private_tensors_that_overlapped(broker, elements, both_views):
    """Writing one changes no other; and one that repeated an element can be written."""
    base, model, made = torch.arange(float(elements)), nn.Module(), nn.Module()
    for name, tensor in {"b": base[:8], "c": base[4:], "d": base[4:], "e": base[9:10].expand(3)}.items():
        model.register_buffer(name, tensor)
        made.register_buffer(name, torch.empty(1))
    engine.publish_export(engine.export(model), {"model": "x"}, name="x")
    with ipc_cache.attach("x") as weights:
        engine.bind(made, weights, private={"b", "c", "d", "e"})
        made.c.fill_(-1)
        made.e.mul_(2)
        assert made.b.tolist() == list(range(8)) and torch.equal(made.d, base[4:]) and made.e.tolist() == [18.0] * 3
        assert torch.equal(weights["c"], base[4:])


def test_what_is_private_must_be_there(published):
    with ipc_cache.attach("m") as weights:
        for private in ({"layers.0.count", "nobody"}, "layers.0.count"):
            with pytest.raises(ipc_cache.Usage, match="private has the names of tensors; m has no"):
                engine.bind(skeleton(), weights, private=private)


def test_a_class_that_sees_every_operation(broker, both_views):
    seen = []

    class Watching(nn.Parameter):
        @classmethod
        def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
            seen.append(function)
            with torch._C._DisableTorchDispatch():
                return function(*args, **(kwargs or {}))

    model, made = nn.Module(), nn.Module()
    model.a = nn.Parameter(torch.arange(6.0), requires_grad=False)
    engine.publish_export(engine.export(model), {"model": "x"}, name="x")
    made.a = torch.Tensor._make_subclass(Watching, torch.empty(6), False)
    with ipc_cache.attach("x") as weights:
        engine.bind(made, weights)
        seen.clear()
        assert torch.equal(torch.Tensor(made.a + 1), torch.arange(6.0) + 1) and seen


def test_containers_stay_the_objects_that_they_are(published):
    made = skeleton()
    views = made.layers[0].views
    with ipc_cache.attach("m") as weights:
        engine.bind(made, weights)
        assert made.layers[0].views is views and views[1] is made.layers[0].weight


def test_a_checkpoint_is_not_bound(broker):
    ipc_cache.publish({"w": torch.ones(1)}, {"model": "x"}, name="x")
    with ipc_cache.attach("x") as weights, pytest.raises(ipc_cache.Usage, match="attach_module"):
        engine.bind(nn.Linear(1, 1), weights)


def test_scalars_may_be_chosen():
    model, since = loaded()
    exported = engine.export(model, since=since, scalars=lambda path, attribute, value: attribute == "has_own_head")
    assert exported.state["scalars"] == {"": {"has_own_head": True}}
    assert engine.export(model).state["scalars"] == {}


def test_exporting_what_is_on_meta():
    with pytest.raises(ipc_cache.MetaLeft, match=r"embed\.weight"):
        engine.export(skeleton())


def test_a_container_is_excluded_as_a_whole():
    module = nn.Module()
    module.pair = [torch.ones(1), torch.ones(2)]
    with pytest.raises(ipc_cache.Usage, match="some are excluded"):
        engine.export(module, exclude=lambda name, tensor, owner: name == "pair[0]")
    exported = engine.export(module, exclude=lambda name, tensor, owner: True)
    assert exported.tensors == {} and exported.state["plain"] == {}


def test_the_check_looks_everywhere():
    class Slots:
        __slots__ = ("inner",)

    class Owner:
        def method(self):
            pass

    lost = lambda: torch.empty(1, device="meta")  # noqa: E731
    model = nn.Linear(1, 1)
    model.extra = nn.ModuleDict({"a": nn.Linear(1, 1, device="meta", bias=False)})
    model.plain = lost()
    model.nested = {"list": [(1, lost())]}
    model.object = SimpleNamespace(inner=SimpleNamespace(tensor=lost()))
    model.slots = Slots()
    model.slots.inner = lost()
    owner = Owner()
    owner.tensor = lost()
    model.bound = owner.method
    model.partial = functools.partial(print, lost(), key=lost())
    model.weight.helper = lost()
    dictionary = type("Dictionary", (dict,), {})(p=lost())
    model.proxy = weakref.proxy(dictionary)
    hooked = Owner()
    hooked.other = lost()
    model.register_forward_hook(hooked.method)
    model.hooked = hooked
    model.self = model
    chain = model.chain = SimpleNamespace()
    for _ in range(2000):
        chain.on = chain = SimpleNamespace()
    chain.end = lost()
    found = engine.find_meta(model, [("cache", {"r": lost()})])
    assert sorted(found) == sorted([
        "extra.a.weight", "plain", "nested['list'][0][1]", "object.inner.tensor", "slots.inner", "bound.__self__.tensor",
        "partial.args[0]", "partial.keywords['key']", "weight.helper", "cache['r']",
        "proxy['p']", "hooked.other", "chain" + ".on" * 2000 + ".end",
    ])  # fmt: skip
    assert engine.find_meta(nn.Linear(1, 1)) == []


def test_keys():
    fields = {
        "model": "/m", "tp_size": 2, "flag": True, "none": None, "ratio": 0.5, "overrides": {"b": [1, None], "a": {"z"}},
        "long": "x" * 5000, "line": "a\nb",
    }  # fmt: skip
    key = engine.build_key(fields)
    assert list(key) == sorted(key) and "none" not in key
    assert (key["tp_size"], key["flag"], key["ratio"]) == ("2", "true", "0.5")
    assert key["overrides"] == '{"a":["z"],"b":[1,null]}'
    assert key["long"].startswith("sha256:") and key["line"].startswith("sha256:") and len(key["long"]) == 39
    assert engine.build_key(dict(reversed(fields.items()))) == key
    assert engine.build_key({"a": {"x": 1, "y": 2}}) == engine.build_key({"a": {"y": 2, "x": 1}})
    assert engine.build_key({"a": 1}) != engine.build_key({"a": "01"})
    for bad in ({"Model": 1}, {"a": object()}, {"": 1}):
        with pytest.raises(ipc_cache.Usage):
            engine.build_key(bad)
    assert engine.digest([1, 2]) != engine.digest([2, 1])


def test_file_digest(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    before = engine.file_digest(tmp_path / "config.json")
    (tmp_path / "config.json").write_text("{ }")
    assert len(before) == 32 and engine.file_digest(tmp_path / "config.json") != before


def test_values_come_back_as_they_were():
    from ipc_cache.engine import values

    for value in (None, True, 0, 1.5, "x", [1, (2, [3])], {"a": 1, 2: (None,)}, torch.bfloat16, torch.Size([1, 2])):
        again = values.decode(json.loads(json.dumps(values.encode(value))))
        assert again == value and type(again) is type(value)
    for value in (object(), {object(): 1}, torch.ones(1), {1, 2}):
        with pytest.raises(values.NotPlain):
            values.encode(value)
