"""Model folders that a test changes: copies, values in their weights, a tied embedding made two tensors, another tokenizer."""
import array
import contextlib
import json
import os
import shutil
import struct
import tempfile

NAN, INF = 0x7fc0, 0x7f80  # bf16


def copy_of(d, model, name="model"):
    path = os.path.join(d, name)
    shutil.copytree(model, path)
    for x in os.listdir(path):
        os.chmod(os.path.join(path, x), 0o644)
    return path


def find_tensor(path, name):
    """The file that holds it, its shape, and where its bytes begin."""
    for x in sorted(os.listdir(path)):
        if x.endswith(".safetensors"):
            with open(os.path.join(path, x), "rb") as f:
                n = struct.unpack("<Q", f.read(8))[0]
                header = json.loads(f.read(n))
            if name in header:
                assert header[name]["dtype"] == "BF16"
                return os.path.join(path, x), header[name]["shape"], 8 + n + header[name]["data_offsets"][0]
    raise AssertionError(name)


def put(path, name, at, values):
    file, _, begin = find_tensor(path, name)
    with open(file, "r+b") as f:
        f.seek(begin + 2 * at)
        f.write(struct.pack(f"<{len(values)}H", *values))


def with_own_lm_head(path):
    """The same model, but its embedding and its lm_head are two tensors: a token's row can be bad where it is read."""
    file, shape, begin = find_tensor(path, "model.embed_tokens.weight")
    with open(file, "rb") as f:
        f.seek(begin)
        data = f.read(2 * shape[0] * shape[1])
    header = json.dumps({"lm_head.weight": {"dtype": "BF16", "shape": shape, "data_offsets": [0, len(data)]}}).encode()
    header += b" " * (-len(header) % 8)
    with open(os.path.join(path, "lm_head.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header + data)
    name = os.path.join(path, "model.safetensors.index.json")
    with open(name, encoding="utf-8") as f:
        index = json.load(f)
    index["weight_map"]["lm_head.weight"] = "lm_head.safetensors"
    with open(name, "w", encoding="utf-8") as f:
        json.dump(index, f)
    name = os.path.join(path, "config.json")
    with open(name, encoding="utf-8") as f:
        config = json.load(f)
    config["tie_word_embeddings"] = False
    with open(name, "w", encoding="utf-8") as f:
        json.dump(config, f)


def widened(path, wide=""):
    """The folder's weights as F32 in one file, which wins over its index. wide: of tensors with this in their name one
    value gets a bit that bf16 has not."""
    head, data = {}, bytearray()
    for x in sorted(os.listdir(path)):
        if not x.endswith(".safetensors"):
            continue
        with open(os.path.join(path, x), "rb") as f:
            n = struct.unpack("<Q", f.read(8))[0]
            for name, t in json.loads(f.read(n)).items():
                if name == "__metadata__":
                    continue
                begin, end = t["data_offsets"]
                f.seek(8 + n + begin)
                bits = array.array("I", (v << 16 for v in array.array("H", f.read(end - begin))))
                if wide and wide in name:
                    bits[5] |= 1
                head[name] = {"dtype": "F32", "shape": t["shape"], "data_offsets": [len(data), len(data) + 2 * (end - begin)]}
                data += bits.tobytes()
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(path, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)
    return path


@contextlib.contextmanager
def with_other_tokenizer(model):
    """A copy whose tokenizer has another fingerprint, and gives the same ids for all texts."""
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, os.path.basename(model))
        shutil.copytree(model, path)
        name = os.path.join(path, "tokenizer.json")
        os.chmod(name, 0o644)
        with open(name, encoding="utf-8") as f:
            text = f.read()
        with open(name, "w", encoding="utf-8") as f:
            f.write(text.replace("<|reserved_2|>", "<|reserved_x|>"))
        yield path
