"""SmolLM2-135M-Instruct as tools/fetch.py brings it: unavailable() says why it cannot be had."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tools"))
import fetch  # noqa: E402

GGUF = fetch.FILES["smollm2"].path
# Of model.safetensors as another reader of the file (numpy) writes the values rounded to bf16.
BF16_SHA = "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b"


def unavailable():
    """None when GGUF is there, else the reason."""
    try:
        fetch.path_of("smollm2")
    except fetch.CannotBeHad as e:
        return str(e)
    return None
