"""Headless Chromium, driven by the DevTools protocol over a pipe: what the tests of the page (look.html) need of it."""
import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

from harness import SLOW

KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39}
PROGRAM = os.environ.get("GRAFT_TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


class Gone(Exception):
    """the browser has ended, or says nothing"""


class Browser:
    """One process, with one page."""

    def __init__(self, width=1280, height=800, dark=False):
        self.folder = tempfile.TemporaryDirectory()
        to_read, self.out = os.pipe()
        self.inp, to_write = os.pipe()
        self.log = open(os.path.join(self.folder.name, "log"), "w+", encoding="utf-8", errors="replace")
        # The pipe is descriptors 3 and 4 there, whichever they are here.
        self.p = subprocess.Popen(
            ["sh", "-c", f'exec "$@" 3<&{to_read} 4>&{to_write}', "sh", PROGRAM, "--headless=new", "--no-sandbox",
             "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions",
             "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-proxy-server",
             "--force-color-profile=srgb", "--hide-scrollbars", "--remote-debugging-pipe", f"--user-data-dir={self.folder.name}/profile",
             "about:blank"],
            pass_fds=(to_read, to_write), stdout=self.log, stderr=self.log, start_new_session=True,
            env=dict(os.environ, HOME=self.folder.name))
        os.close(to_read)
        os.close(to_write)
        self.rest, self.number, self.session, self.told = b"", itertools.count(1), None, []
        target = self.wait_target()
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")
        self.look(width, height, dark)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(Gone, OSError):
            self.call("Browser.close")
        try:
            self.p.wait(timeout=10 * SLOW)
        except subprocess.TimeoutExpired:
            self.p.kill()
            self.p.wait()
        os.close(self.out)
        os.close(self.inp)
        self.log.close()
        with contextlib.suppress(OSError):  # a helper of its own may still be writing
            self.folder.cleanup()

    # ---- the protocol ----

    def message(self, until):
        while b"\0" not in self.rest:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.inp], [], [], left)[0]:
                raise Gone("Chromium does not answer")
            some = os.read(self.inp, 1 << 20)
            if not some:
                raise Gone("Chromium has ended")
            self.rest += some
        one, self.rest = self.rest.split(b"\0", 1)
        return json.loads(one)

    def call(self, method, **params):
        number = next(self.number)
        m = {"id": number, "method": method, "params": params}
        if self.session and not method.startswith(("Target.", "Browser.")):
            m["sessionId"] = self.session
        os.write(self.out, json.dumps(m).encode() + b"\0")
        until = time.monotonic() + 30 * SLOW
        while True:
            got = self.message(until)
            if got.get("id") == number:
                assert "error" not in got, (method, got["error"])
                return got["result"]
            self.told.append(got)

    def wait_target(self):
        until = time.monotonic() + 60 * SLOW
        while time.monotonic() < until:
            for t in self.call("Target.getTargets")["targetInfos"]:
                if t["type"] == "page":
                    return t["targetId"]
            time.sleep(0.05)
        raise Gone("Chromium has no page")

    # ---- what a person does and sees ----

    def look(self, width, height, dark=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                  mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def go(self, address):
        self.call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete' && typeof describe === 'function'")

    def reload(self):
        self.eval("window.was_loaded = true")
        self.call("Page.reload")
        self.wait("!window.was_loaded && document.readyState === 'complete' && typeof describe === 'function'")

    def eval(self, script):
        got = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in got, (script, got["exceptionDetails"])
        return got["result"].get("value")

    def wait(self, script, seconds=30):
        until = time.monotonic() + seconds * SLOW
        while True:
            try:
                got = self.eval(f"!!({script})")
            except AssertionError:  # between two pages there is none
                got = None
            if got:
                return got
            assert time.monotonic() < until, (script, self.eval("document.body.innerText"), self.complaints())
            time.sleep(0.03)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def press(self, key, shift=False):
        known = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key], "modifiers": 8 if shift else 0}
        if key == "Enter":
            known["text"] = "\r"
        self.call("Input.dispatchKeyEvent", type="keyDown" if "text" in known else "rawKeyDown", **known)
        self.call("Input.dispatchKeyEvent", type="keyUp", **{k: v for k, v in known.items() if k != "text"})

    def click(self, selector):
        x, y = self.eval("(() => { const e = document.querySelector(%s); e.scrollIntoView({block: 'nearest'}); "
                         "const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
                         % json.dumps(selector))
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def shoot(self, path):
        with open(path, "wb") as f:
            f.write(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def complaints(self):
        """What the console has of errors, broken policies among them; not answers with a status that the page tells."""
        self.eval("0")
        found = []
        for m in self.told:
            p = m.get("params", {})
            if m.get("method") == "Runtime.exceptionThrown":
                found.append(p["exceptionDetails"].get("exception", p["exceptionDetails"]).get("description", str(p)))
            elif m.get("method") == "Log.entryAdded" and p["entry"]["level"] == "error" and p["entry"]["source"] != "network":
                found.append(p["entry"]["text"])
        return found

    def asked(self):
        """Addresses that were asked for."""
        self.eval("0")
        return [m["params"]["request"]["url"] for m in self.told if m.get("method") == "Network.requestWillBeSent"]
