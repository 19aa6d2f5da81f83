"""What is attached is what the files hold, byte for byte, by readers that share no code with the program."""
import os

import numpy
import pytest
import safetensors
import safetensors.numpy
import xxhash

import models
from manifest import BLOCK_BYTES, DTYPES, TENSOR_ALIGNMENT, block_hashes, content_hash, dense_strides

NUMPY = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U64": "<u8",
         "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?", "C64": "<c8"}


def compare(attached, tensors):
    """Every tensor of a checkpoint, and nothing else, as it stands in the file."""
    manifest = attached.manifest
    assert {t.name for t in manifest.tensors} == set(tensors)
    for name, (dtype, shape, content) in tensors.items():
        found = manifest.find(name)
        assert (found.dtype, found.shape, found.bytes) == (dtype, tuple(shape), len(content)), name
        assert found.offset % TENSOR_ALIGNMENT == 0 or found.bytes == 0
        assert found.bytes == 0 or list(found.strides) == dense_strides(shape)
        assert attached.tensor_bytes(found) == content, name
    for number, segment in enumerate(manifest.segments):
        assert manifest.blocks(number) == block_hashes(attached.maps[number])
        assert bytes(segment["hash"]) == xxhash.xxh3_128_digest(manifest.blocks(number))


def compare_sources(manifest, folder, files):
    assert set(manifest.sources) == set(files)
    for name in files:
        path = os.path.join(folder, name)
        st, source = os.stat(path), manifest.sources[name]
        assert (source["device"], source["inode"], source["bytes"]) == (st.st_dev, st.st_ino, st.st_size)
        assert (source["mtime_ns"], source["ctime_ns"]) == (st.st_mtime_ns, st.st_ctime_ns)
        with open(path, "rb") as file:
            assert bytes(source["hash"]) == content_hash(file.read()) and source["hashed"] == 1


def test_every_tensor_of_the_real_model_equals_the_files(broker, cli, client, minilm):
    broker.leaves_models = True
    cli("load", minilm, "--name", "minilm", expect=0)
    path = os.path.join(minilm, "model.safetensors")
    with client.attach("minilm") as attached:
        compare(attached, models.read_file(path))
        compare_sources(attached.manifest, minilm, ["model.safetensors"])
        with safetensors.safe_open(path, "numpy") as reference:
            assert set(reference.keys()) == {t.name for t in attached.manifest.tensors}
            for name in reference.keys():
                tensor = attached.manifest.find(name)
                array = numpy.frombuffer(attached.tensor_bytes(tensor), NUMPY[tensor.dtype]).reshape(tensor.shape)
                numpy.testing.assert_array_equal(array, reference.get_tensor(name), strict=True)
    assert cli("attach", minilm, "--json", expect=0).json["sources"] == "same"


def test_a_file_of_the_reference_writer_arrives_as_it_was_given(broker, cli, client, folder):
    broker.leaves_models = True
    rng = numpy.random.default_rng(1)
    arrays = {
        "f32": rng.standard_normal((33, 17), "float32"), "f16": rng.standard_normal((4, 9)).astype("float16"),
        "i64": rng.integers(-9, 9, (3, 3, 3)), "u8": rng.integers(0, 255, 1001).astype("uint8"),
        "bool": rng.integers(0, 2, (5,)).astype(bool), "scalar": numpy.array(7.5, "float64"),
        "empty": numpy.zeros((3, 0, 2), "float32"), "ünïcödé/…": numpy.arange(5, dtype="int16"),
    }
    path = folder / "made.safetensors"
    safetensors.numpy.save_file(arrays, path, {"made": "by numpy"})
    models.age(path)
    facts = cli("load", path, "--json", expect=0).json
    assert facts["name"] == "made" and facts["tensors"] == len(arrays)
    with client.attach("made") as attached:
        compare(attached, models.read_file(path))
        for name, array in arrays.items():
            tensor = attached.manifest.find(name)
            found = numpy.frombuffer(attached.tensor_bytes(tensor), NUMPY[tensor.dtype]).reshape(tensor.shape)
            numpy.testing.assert_array_equal(found, array, strict=True)
        kind, content = attached.manifest.attributes["safetensors.metadata"]
        assert kind == "application/json" and b'"made":"by numpy"' in content


def test_every_type_of_element_arrives(broker, cli, client, folder):
    broker.leaves_models = True
    tensors = models.every_dtype()
    assert len(tensors) == len(DTYPES) == 22
    models.write_file(folder / "types.safetensors", tensors)
    cli("load", folder / "types.safetensors", expect=0)
    with client.attach("types") as attached:
        compare(attached, tensors)


def test_a_sharded_checkpoint_arrives_as_one_model(broker, cli, client, folder):
    broker.leaves_models = True
    tensors = models.write_sharded(folder / "sharded", shards=4)
    cli("load", folder / "sharded", expect=0)
    with client.attach("sharded") as attached:
        compare(attached, tensors)
        compare_sources(attached.manifest, folder / "sharded",
                        [f"model-{i:05}-of-00004.safetensors" for i in range(1, 5)] + ["model.safetensors.index.json"])
    assert cli("attach", folder / "sharded", "--json", expect=0).json["sources"] == "same"


@pytest.mark.parametrize("size", [BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 2 * BLOCK_BYTES + 4097])
@pytest.mark.parametrize("threads", [1, 5])
def test_sizes_around_a_block_arrive(broker, cli, client, folder, size, threads):
    broker.leaves_models = True
    tensors = {"odd": ("U8", (size,), models.noise(size)), "after": ("F32", (3,), models.noise(12, 1)),
               "last": ("U8", (1,), b"!")}
    models.write_file(folder / "blocks.safetensors", tensors)
    cli("load", folder / "blocks.safetensors", "--threads", threads, expect=0)
    with client.attach("blocks") as attached:
        compare(attached, tensors)
        compare_sources(attached.manifest, folder, ["blocks.safetensors"])


def test_many_small_tensors_arrive(broker, cli, client, folder):
    broker.leaves_models = True
    tensors = {f"layers.{i}.w": ("U8", (i % 7,), models.noise(i % 7, i)) for i in range(2000)}
    models.write_file(folder / "many.safetensors", tensors)
    cli("load", folder / "many.safetensors", expect=0)
    with client.attach("many") as attached:
        compare(attached, tensors)


def test_the_same_files_give_the_same_manifest_but_for_the_brokers_stamp(broker, cli, client, folder, small):
    broker.leaves_models = True
    seen = []
    for _ in range(2):
        cli("load", small, "--replace", expect=0)
        with client.attach("small") as attached:
            draft = bytearray(attached.manifest_bytes)
        client.detach()
        for section in (slice(24, 32), slice(40, 88)):  # checksum; instance to visible_gid
            draft[section] = bytes(len(draft[section]))
        seen.append(draft)
    first, second = seen
    changed = [i for i, (a, b) in enumerate(zip(first, second)) if a != b]
    assert len(first) == len(second)
    assert len(changed) <= 8, "only the time of the stat may differ"


@pytest.mark.parametrize("seed", range(3))
def test_what_the_oracle_writes_the_broker_hands_out_unchanged(broker, client, seed):
    broker.leaves_models = True
    made = models.Handmade(segments=3, seed=seed)
    made.draft.tensors.insert(2, ("s0.second again", 18, (2, 4), (4, 1), 0, 4, TENSOR_ALIGNMENT, 32, 1))
    made.draft.source("a/b.safetensors", 17, bytes(range(16)), mtime_ns=5).attribute("engine", "text/plain", b"data")
    draft = made.draft.build()
    made.begin(client)
    made.segments(client)
    client.draft(draft)
    client.commit()
    with client.attach("handmade") as attached:
        stamped = bytearray(attached.manifest_bytes)
        assert stamped[256 - 144:] == draft[256 - 144:] and stamped[:24] == draft[:24]
        alias = attached.manifest.find("s0.second again")
        assert (alias.flags, alias.alias_of, alias.strides) == (4, 1, (4, 1))
        assert attached.manifest.attributes == {"engine": ("text/plain", b"data")}
