"""Wrong weights never attach: what the files contain decides, not how they are called."""

import time

import pytest
from safetensors.torch import load_file, save_file

import harness
import models
from conftest import SETTLED


def test_a_copy_with_one_norm_zeroed_is_rejected(published, changed, start):
    """By its path, and when the user allows other paths, by its content."""
    copy = changed(published("llama"), models.zero_a_norm)
    with pytest.raises(harness.EngineFailed, match="no model .*copy"):
        start(copy, dtype="bfloat16")
    with pytest.raises(harness.EngineFailed, match="model.safetensors has other content than the resident model"):
        start(copy, extra={"verify": "hash"}, dtype="bfloat16")


def test_a_file_changed_in_place_is_rejected(published, start):
    path = published("llama", seed=1)
    file = path / "model.safetensors"
    size = file.stat().st_size
    tensors = load_file(file)
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    models.zero_a_norm(tensors)
    save_file(tensors, file, metadata={"format": "pt"})
    assert file.stat().st_size == size
    with pytest.raises(harness.EngineFailed, match="cannot be told by its metadata"):
        start(path, dtype="bfloat16")
    with pytest.raises(harness.EngineFailed, match="has other content"):
        start(path, extra={"verify": "hash"}, dtype="bfloat16")
    # Who publishes what is missing replaces it, and the new content is what attaches.
    time.sleep(SETTLED)
    with start(path, extra={"on_miss": "publish"}, dtype="bfloat16") as engine:
        assert engine.state()[0]["loads"][0]["how"] == "published"
        said = engine.generate(prompts=models.prompts(3))
    with start(path, dtype="bfloat16") as engine:
        assert engine.generate(prompts=models.prompts(3)) == said
    with start(path, "control", dtype="bfloat16") as engine:
        assert engine.generate(prompts=models.prompts(3)) == said


def test_the_same_files_elsewhere_attach_only_when_allowed(published, changed, start):
    path = published("llama", seed=2)
    copy = changed(path)
    with pytest.raises(harness.EngineFailed, match="has this key but for its path .*verify.*hash"):
        start(copy, dtype="bfloat16")
    with start(copy, extra={"verify": "hash"}, dtype="bfloat16") as engine:
        assert engine.state()[0]["loads"][0]["sources"] == "verified"
        said = engine.generate(prompts=models.prompts(3))
    with start(path, dtype="bfloat16") as engine:
        assert engine.state()[0]["loads"][0]["sources"] == "same"
        assert engine.generate(prompts=models.prompts(3)) == said


def test_a_named_model_serves_another_path(published, changed, start, broker):
    """`model` in the options picks the resident model; its files are compared all the same."""
    path = published("llama", seed=2)
    copy = changed(path)
    name = broker.of(path)[0]["name"]
    with pytest.raises(harness.EngineFailed, match="cannot be told by its metadata"):
        start(copy, extra={"model": name}, dtype="bfloat16")
    with start(copy, extra={"model": name, "verify": "hash"}, dtype="bfloat16") as engine:
        assert engine.state()[0]["loads"][0]["how"] == "attached"
    with pytest.raises(harness.EngineFailed, match="dtype: expected float32, got bfloat16"):
        start(copy, extra={"model": name, "verify": "hash"}, dtype="float32")


def test_a_hub_snapshot_of_links(checkpoint, start, tmp_path):
    """Its files are links; test_daemon.py has the id."""
    snapshot = models.hub(checkpoint("qwen3"), tmp_path, "tests/linked")
    time.sleep(SETTLED)
    with start(snapshot, extra={"on_miss": "publish"}, dtype="bfloat16") as engine:
        assert engine.state()[0]["loads"][0]["how"] == "published"
        said = engine.generate(prompts=models.prompts(3))
    with start(snapshot, dtype="bfloat16") as engine:
        assert engine.state()[0]["loads"][0] == {**engine.state()[0]["loads"][0], "how": "attached", "sources": "same"}
        assert engine.generate(prompts=models.prompts(3)) == said


@pytest.mark.parametrize("when", ["loaded", "added", "hashed"])
def test_files_that_change_while_they_are_loaded_are_not_published(run_job, checkpoint, changed, when):
    answer = run_job("jobs:publish_while_changing", str(changed(checkpoint("llama", seed=3))), when)
    assert "changed while they were loaded; nothing was published" in answer


def test_a_file_that_came_later_makes_another_model(run_job, published, broker, changed):
    """An ordinary load would read it: all that the resident model was made of is the same, and yet it is not this model."""
    path = published("llama", seed=2)
    key = {name: value for name, value in broker.of(path)[0]["key"].items() if name != "device"}
    copy = changed(path)
    assert run_job("jobs:find", key, str(copy), {"verify": "hash"})["sources"] == "verified"
    (copy / "more.safetensors").write_bytes((copy / "model.safetensors").read_bytes())
    answer = run_job("jobs:find", key, str(copy), {"verify": "hash"})
    assert (answer["field"], answer["got"]) == ("more.safetensors", "missing"), answer


def test_what_cannot_be_served_is_refused_by_name(run_job):
    answers = run_job("jobs:resolve_all", ["s3://bucket/model", "/models/x.Q4_K_M.gguf", "tests/not-downloaded"])
    assert "remote object stores are not supported; download" in answers[0]
    assert "GGUF is not supported; use" in answers[1]
    assert "neither a folder nor a downloaded snapshot" in answers[2]
