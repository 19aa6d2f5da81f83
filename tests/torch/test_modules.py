"""attach_module() and transformers: the same outputs as from_pretrained(), ties kept, wrong models named."""

import copy

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import ipc_cache
from ipc_cache import engine

from harness import age
from same import bits

SENTENCES = [
    "Weights that outlive the engine.",
    "The model stays where it is when the process ends.",
    "Bananas are rich in potassium.",
]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 6)
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 10, bias=False)
        self.head.weight = self.embed.weight
        self.head.weight.note = "tied"

    def forward(self, x):
        return self.head(self.norm(self.embed(x)))


@pytest.fixture
def net(broker, tmp_path):
    """A saved and loaded network: itself, and the path of its file."""
    torch.manual_seed(0)
    made = Net().eval()
    made.norm.running_mean.normal_()
    path = tmp_path / "net.safetensors"
    state = {name: tensor for name, tensor in made.state_dict().items() if name != "head.weight"}
    save_file(state, path)
    ipc_cache.load(age(path))
    return made, path


def on_meta():
    with torch.device("meta"):
        return Net().eval()


def test_a_module_on_meta(net):
    made, path = net
    empty = on_meta()
    tied = empty.head.weight
    weights = ipc_cache.attach_module(empty, path)
    x = torch.arange(10)
    assert torch.equal(made(x), empty(x))
    assert empty.head.weight is empty.embed.weight is tied and tied.note == "tied" and not tied.requires_grad
    assert tied.data_ptr() == weights["embed.weight"].data_ptr()
    # Buffers are written by the module itself.
    assert empty.norm.running_mean.data_ptr() != weights["norm.running_mean"].data_ptr()
    empty.train()(x)
    assert not torch.equal(empty.norm.running_mean, weights["norm.running_mean"])
    weights.close()
    empty.eval()(x)


def test_a_prefix_and_other_names(net, tmp_path):
    made, _ = net
    path = tmp_path / "other.safetensors"
    names = {
        f"model.{name.replace('embed', 'embedding')}": t for name, t in made.state_dict().items() if "head" not in name
    }
    save_file({**names, "optimizer.step": torch.ones(1)}, path)
    ipc_cache.load(age(path))
    empty = on_meta()
    with ipc_cache.attach_module(empty, path, prefix="model.", rename=lambda n: n.replace("embedding", "embed")):
        assert torch.equal(made(torch.arange(10)), empty(torch.arange(10)))


def test_the_wrong_model_is_named(net):
    _, path = net
    with pytest.raises(ipc_cache.Mismatch, match="the module needs bias, weight; it has no embed.weight") as caught:
        ipc_cache.attach_module(nn.Linear(3, 4, device="meta"), path)
    assert "weight" in caught.value.expected and "norm.weight" in caught.value.got
    empty = on_meta()
    with torch.device("meta"):
        empty.norm = nn.BatchNorm1d(7)
    with pytest.raises(ipc_cache.Mismatch, match=r"norm.*shape \(6,\), the module needs \(7,\)"):
        ipc_cache.attach_module(empty, path)
    empty = on_meta()
    empty.extra = nn.Parameter(torch.empty(2, device="meta"))
    with pytest.raises(ipc_cache.Mismatch, match="needs extra"):
        ipc_cache.attach_module(empty, path)
    assert ipc_cache.models()[0].leases == 0


def test_a_tie_that_the_checkpoint_does_not_have(net, tmp_path):
    made, _ = net
    state = {name: tensor.clone() for name, tensor in made.state_dict().items()}
    for name in ("same", "other"):
        path = tmp_path / f"{name}.safetensors"
        save_file(state, path)
        ipc_cache.load(age(path))
        if name == "same":
            with ipc_cache.attach_module(on_meta(), path) as weights:
                assert weights.lease == "held"
        else:
            with pytest.raises(ipc_cache.Mismatch, match="the module ties .* which differ"):
                ipc_cache.attach_module(on_meta(), path)
        state["head.weight"] += 1


def test_what_is_left_on_meta_is_named(net):
    _, path = net
    empty = on_meta()
    empty.register_buffer("positions", torch.empty(3, device="meta"), persistent=False)
    empty.cache = {"k": [torch.empty(1, device="meta")]}
    with pytest.raises(ipc_cache.MetaLeft) as caught:
        ipc_cache.attach_module(empty, path)
    assert caught.value.names == ["positions", "cache['k'][0]"]
    with ipc_cache.attach_module(on_meta(), path, strict=False) as weights:
        assert weights.lease == "held"


def test_a_private_module_can_be_trained(net):
    made, path = net
    empty = on_meta()
    with ipc_cache.attach_module(empty, path, private=True):
        empty.requires_grad_(True)
        empty(torch.arange(10)).sum().backward()
        torch.optim.SGD(empty.parameters(), 0.1).step()
        assert not torch.equal(empty.embed.weight, made.embed.weight)
    with ipc_cache.attach(path) as weights:
        assert torch.equal(weights["embed.weight"], made.embed.weight)


def test_a_deep_copy_is_independent(net):
    _, path = net
    empty = on_meta()
    with ipc_cache.attach_module(empty, path):
        clone = copy.deepcopy(empty)
        clone.embed.weight.data.zero_()
        assert clone.head.weight is clone.embed.weight and not torch.equal(clone.embed.weight, empty.embed.weight)


def embed(model, tokenizer):
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1)
    return nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1)


def test_minilm_in_transformers(broker, minilm):
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(minilm)
    usual = AutoModel.from_pretrained(minilm).eval()
    ipc_cache.load(minilm)
    with engine.skeleton():
        model = AutoModel.from_config(AutoConfig.from_pretrained(minilm)).eval()
    with ipc_cache.attach_module(model, minilm) as weights:
        for name, parameter in usual.named_parameters():
            assert bits(model.get_parameter(name)) == bits(parameter), name
            assert model.get_parameter(name).data_ptr() == weights[name].data_ptr()
        have, want = embed(model, tokenizer), embed(usual, tokenizer)
        assert torch.equal(have, want)
        assert have[0] @ have[1] > have[0] @ have[2]


def test_a_tied_transformers_model(broker, tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=64, n_positions=32, n_embd=16, n_layer=2, n_head=2)
    torch.manual_seed(0)
    usual = GPT2LMHeadModel(config).eval()
    usual.save_pretrained(tmp_path / "gpt2")
    age(tmp_path / "gpt2" / "model.safetensors")
    usual = GPT2LMHeadModel.from_pretrained(tmp_path / "gpt2").eval()
    ipc_cache.load(tmp_path / "gpt2")
    with engine.skeleton():
        model = GPT2LMHeadModel(config).eval()
    with ipc_cache.attach_module(model, tmp_path / "gpt2"):
        assert model.lm_head.weight is model.transformer.wte.weight
        tokens = torch.arange(12).view(1, 12)
        with torch.no_grad():
            assert torch.equal(model(tokens).logits, usual(tokens).logits)
        assert (
            model.generate(tokens, max_new_tokens=8, do_sample=False).tolist()
            == usual.generate(tokens, max_new_tokens=8, do_sample=False).tolist()
        )
    with torch.device("meta"):
        wrong = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=32, n_embd=16, n_layer=3, n_head=2))
    with pytest.raises(ipc_cache.Mismatch, match=r"needs transformer\.h\.2\."):
        ipc_cache.attach_module(wrong, tmp_path / "gpt2")
