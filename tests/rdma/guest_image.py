"""What the throw-away machine boots: Debian's kernel, unpacked but never installed, and a small initramfs.

The cache holds a folder per kernel package: `kernel` (bare vmlinux where it can be had: under emulation it starts
seconds earlier than the compressed image) and `initramfs` (busybox, the modules in the order they are loaded,
guest-init). A folder that is there is whole: it is made elsewhere and renamed.
"""
import fcntl
import glob
import hashlib
import lzma
import os
import platform
import re
import shutil
import struct
import subprocess
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
# rdma_rxe needs the plain crc32 before it is loaded. The last three let a test lose, delay and drop packets.
MODULES = ["virtio_pci", "virtio_console", "9p", "9pnet_virtio", "crc32_generic", "ib_uverbs", "rdma_ucm", "rdma_rxe",
           "veth", "sch_netem", "sch_prio", "cls_u32"]
# The folders of the package that hold them and all they depend on.
FOLDERS = ["arch/x86/crypto", "crypto", "drivers/infiniband/core", "drivers/infiniband/sw", "drivers/net/veth.*",
           "drivers/char/virtio_console.*", "drivers/virtio", "fs/9p", "fs/configfs", "fs/fscache", "fs/netfs", "lib",
           "net/9p", "net/ipv4/udp_tunnel.*", "net/ipv6/ip6_udp_tunnel.*", "net/sched"]


class Unavailable(Exception):
    """The machine cannot be had here; the text says why in one line."""


def cache_folder():
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "graft", "rdma-vm")


def need(program):
    found = shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if found is None:
        raise Unavailable(f"{program} is not installed (tools/prepare --tests installs what the RDMA machine needs)")
    return found


def run(argv, **kw):
    done = subprocess.run(argv, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False, **kw)
    if done.returncode != 0:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        raise Unavailable(f"{os.path.basename(argv[0])} {argv[1]}: {last}")
    return done.stdout


def default_package():
    """The kernel that Debian's release has: linux-image-amd64 is empty and depends on it."""
    for line in run([need("apt-cache"), "depends", "linux-image-amd64"]).splitlines():
        m = re.match(r"\s*Depends: (linux-image-[0-9]\S*-amd64)$", line)
        if m:
            return m.group(1)
    raise Unavailable("apt-cache knows no linux-image-amd64 (only Debian on x86-64 can run the RDMA machine)")


def download(package, folder):
    argv = [need("apt-get"), "-qq", "download", package]
    try:
        run(argv, cwd=folder)
    except Unavailable:  # the lists may be old, or there are none yet
        if os.geteuid() != 0:
            raise
        run([need("apt-get"), "-qq", "update"])
        run(argv, cwd=folder)
    return glob.glob(os.path.join(folder, "*.deb"))[0]


def unpack(deb, folder):
    names = [f"./lib/modules/*/kernel/{name}" for name in FOLDERS]
    names += ["./boot/vmlinuz-*", "./lib/modules/*/modules.builtin*", "./lib/modules/*/modules.order"]
    with subprocess.Popen([need("dpkg-deb"), "--fsys-tarfile", deb], stdout=subprocess.PIPE) as tar:
        # A pattern without a match is no error of tar's that matters: what is lacking shows in modules_of().
        subprocess.run([need("tar"), "-x", "-C", folder, "--wildcards", *names], stdin=tar.stdout,
                       stderr=subprocess.DEVNULL, check=False)
    images = glob.glob(os.path.join(folder, "boot/vmlinuz-*"))
    if not images:
        raise Unavailable(f"{os.path.basename(deb)} could not be unpacked, or holds no kernel")
    return images[0], os.path.basename(images[0])[len("vmlinuz-"):]


def bare_kernel(image):
    """The ELF kernel inside a bzImage (boot protocol 2.08 and later), or None when it is not packed with xz."""
    with open(image, "rb") as f:
        data = f.read()
    setup_sectors = data[0x1f1] or 4
    offset, length = struct.unpack_from("<II", data, 0x248)
    begin = (setup_sectors + 1) * 512 + offset
    if data[0x202:0x206] != b"HdrS" or data[begin:begin + 6] != b"\xfd7zXZ\0":
        return None
    try:
        kernel = lzma.LZMADecompressor(lzma.FORMAT_XZ).decompress(data[begin:begin + length])
    except lzma.LZMAError:
        return None
    return kernel if kernel[:4] == b"\x7fELF" else None


def modules_of(folder, version):
    """Paths of MODULES and of what they need, in the order of loading."""
    run([need("depmod"), "-b", folder, version])
    paths = []
    for name in MODULES:
        # modprobe takes two names for the same module where one is a builtin: those lines say `builtin'.
        shown = run([need("modprobe"), "-d", folder, "-S", version, "--show-depends", name])
        for line in shown.splitlines():
            kind, path = line.split()[:2]
            if kind == "insmod" and path not in paths:
                paths.append(path)
    return paths


def plain_module(path):
    with open(path, "rb") as f:
        data = f.read()
    return lzma.decompress(data) if path.endswith(".xz") else data


def archive(folder, out):
    """cpio of everything below folder, in the kernel's format, owned by root."""
    names = sorted(os.path.relpath(os.path.join(at, name), folder)
                   for at, folders, files in os.walk(folder) for name in folders + files)
    with open(out, "wb") as f:
        subprocess.run([need("cpio"), "--quiet", "-o", "-H", "newc", "-R", "0:0"], cwd=folder, stdout=f,
                       input="".join(name + "\n" for name in names).encode(), check=True)


def make_initramfs(modules, work, out):
    root = os.path.join(work, "initramfs.d")
    for name in ("bin", "modules", "proc", "sys", "dev", "host"):
        os.makedirs(os.path.join(root, name))
    shutil.copy(need("busybox"), os.path.join(root, "bin/busybox"))
    shutil.copy(os.path.join(HERE, "guest-init"), os.path.join(root, "init"))
    shutil.copy(os.path.join(HERE, "guest-pair"), root)
    os.chmod(os.path.join(root, "init"), 0o755)
    for i, path in enumerate(modules):
        name = os.path.basename(path).split(".ko")[0]
        with open(os.path.join(root, f"modules/{i:02d}-{name}.ko"), "wb") as f:
            f.write(plain_module(path))
    archive(root, out)


def make(package, folder):
    parent = os.path.dirname(folder)
    with tempfile.TemporaryDirectory(dir=parent) as work:
        deb = download(package, work)
        image, version = unpack(deb, work)
        done = os.path.join(work, "done")
        os.mkdir(done)
        kernel = bare_kernel(image)
        if kernel is None:
            shutil.copy(image, os.path.join(done, "kernel"))
        else:
            with open(os.path.join(done, "kernel"), "wb") as f:
                f.write(kernel)
        make_initramfs(modules_of(work, version), work, os.path.join(done, "initramfs"))
        os.rename(done, folder)


def prepare(package=None, cache=None):
    """Folder with `kernel` and `initramfs`; makes it if need be. Raises Unavailable."""
    if platform.machine() != "x86_64":
        raise Unavailable(f"the RDMA machine is emulated on x86_64 only, not on {platform.machine()}")
    need("qemu-system-x86_64")
    cache = cache or cache_folder()
    package = package or default_package()
    recipe = hashlib.sha256()
    for name in ("guest_image.py", "guest-init", "guest-pair"):
        with open(os.path.join(HERE, name), "rb") as f:
            recipe.update(f.read())
    folder = os.path.join(cache, f"{package}-{recipe.hexdigest()[:12]}")
    try:
        os.makedirs(cache, exist_ok=True)
        with open(os.path.join(cache, "lock"), "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not os.path.exists(folder):
                for old in glob.glob(os.path.join(cache, package + "-*")):
                    shutil.rmtree(old)  # made by another recipe
                make(package, folder)
    except OSError as e:
        raise Unavailable(f"{cache}: {e.strerror}") from e
    return folder
