"""The playground in real Chromium: typing, keyboard, a file, errors, narrow and dark. Skipped where there is none.

The page is served with one more script, which acts and writes what it saw into the page; `--dump-dom` reads it back.
"""

import html
import json
import re
import shutil
import subprocess
import threading

import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")

import uvicorn
from fastapi import Response

from ebmcal.calibrators import attach
from ebmcal.histograms import keep_histograms
from ebmcal.model import load
from ebmcal.playground.routes import LIMITS, POLICY, add_playground
from ebmcal.serve import create_app
from ebmcal.serve.running import address, bound
from serving import NAMES, fitted_temperature, save_classifier
from tiny_models import SENTENCES

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium, chromium-browser or google-chrome on PATH")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
         "--disable-sync", "--disable-component-update", "--disable-extensions",
         "--virtual-time-budget=20000"]  # fmt: skip

SCRIPTS = {}


def add_test_page(app, service):
    """The page with a script more, under the same policy."""
    add_playground(app, service)

    @app.get("/{name}.html")
    async def page(name: str) -> Response:
        route = next(route for route in app.routes if getattr(route, "path", "") == "/")
        more = f'<script src="/{name}.test.js"></script></body>'.encode()
        body = (await route.endpoint()).body.replace(b"</body>", more)
        return Response(body, media_type="text/html", headers={"Content-Security-Policy": POLICY})

    @app.get("/{name}.test.js")
    async def script(name: str) -> Response:
        return Response(SCRIPTS[name], media_type="text/javascript")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    place = tmp_path_factory.mktemp("browser")
    folders = [save_classifier(place / name) for name in ("films", "plain")]
    attach(folders[0], fitted_temperature())
    keep_histograms(folders[0], {"train": load(folders[0]).predict(SENTENCES)})
    app = create_app({f.name: load(f) for f in folders}, limits=LIMITS, extend=add_test_page)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None))
    with bound("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield address(listening)
        server.should_exit = True
        thread.join(60)


TOOLS = """
const settled = async () => {
  for (let i = 0; i < 200; i++) {
    await new Promise((done) => setTimeout(done, 50));
    if (![...document.querySelectorAll("button")].some((b) => b.disabled) && $("models").textContent) return;
  }
};
const type = async (text) => { $("text").value = text; $("ask").requestSubmit(); await settled(); };
window.addEventListener("load", async () => {
  await settled();
  let seen;
  try { seen = await (async () => { %s })(); } catch (error) { seen = "error: " + error; }
  const place = document.createElement("pre");
  place.id = "seen";
  place.textContent = JSON.stringify(seen);
  document.body.append(place);
});
"""


def act(site, tmp_path, script, *flags):
    """What a script that acts on the page has seen."""
    name = f"t{len(SCRIPTS)}"
    SCRIPTS[name] = TOOLS % script
    command = [BROWSER, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", *flags, "--dump-dom", f"{site}/{name}.html"]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    return json.loads(html.unescape(re.search(r'<pre id="seen">(.*?)</pre>', dom, re.S).group(1)))


def test_a_text_is_typed_and_looked_at(site, tmp_path):
    """Also with the keyboard, and hostile texts stay texts; nothing is refused by the page's own policy."""
    script = """
      const refused = [];
      document.addEventListener("securitypolicyviolation", (event) => refused.push(event.violatedDirective));
      await type("the film was <b>never</b> dull");
      const first = {
        models: $("models").textContent, boxes: $("posteriors").children.length,
        rows: $("posteriors").querySelectorAll("tr").length,
        before: $("posteriors").querySelectorAll(".bar.before").length,
        words: $("words").querySelectorAll("[data-rise]").length,
        text: $("words").querySelector(".marked").textContent, bold: document.querySelectorAll("main b").length,
        lines: $("energy").querySelectorAll("svg[role=img] path").length, decision: $("decision").textContent,
      };
      $("text").value = "a joy 😀 from start";
      $("text").focus();
      $("text").dispatchEvent(new KeyboardEvent("keydown", {key: "Enter", ctrlKey: true, bubbles: true}));
      await settled();
      return {first, second: $("words").querySelector(".marked").textContent, refused,
        width: $("posteriors").querySelector("td .bar.after").style.width};
    """
    seen = act(site, tmp_path, script)
    first = seen["first"]
    assert first["models"] == "films beside plain"
    assert (first["boxes"], first["rows"]) == (2, 6)
    assert first["before"] == 4, "three bars and the key of the calibrated model"
    assert (first["words"], first["text"], first["bold"]) == (5, "the film was <b>never</b> dull", 0)
    assert first["lines"] == 3, "axis, histogram, mark"
    assert "no rule" in first["decision"]
    assert seen["second"] == "a joy 😀 from start"
    assert seen["width"].endswith("%")
    assert seen["refused"] == []


def test_a_file_gets_its_report_and_errors_are_shown(site, tmp_path):
    lines = "\\n".join(f"{text.replace(',', '')},{NAMES[i % 3]}" for i, text in enumerate(SENTENCES[:30]))
    script = f"""
      const refused = [];
      document.addEventListener("securitypolicyviolation", (event) => refused.push(event.violatedDirective));
      const send = async (text) => {{ $("pasted").value = text; $("file-form").requestSubmit(); await settled(); }};
      await send("text,tag\\na,b");
      const wrong = [$("file-status").textContent, $("file-status").className, $("report").hidden];
      await send("");
      const empty = $("file-status").textContent;
      const loaded = new Promise((done) => $("report").addEventListener("load", () => done(true)));
      await send("text,label\\n{lines}");
      const page = await (await fetch($("report").src)).text();
      return {{wrong, empty, loaded: await loaded, refused, page: page.slice(0, 15),
        shown: !$("report").hidden, save: $("save").download, said: $("file-status").textContent}};
    """
    # In a process of its own, the frame would wait for ever: its clock stands still.
    seen = act(site, tmp_path, script, "--disable-features=IsolateSandboxedIframes")
    assert "has the columns text, tag" in seen["wrong"][0]
    assert seen["wrong"][1:] == ["error", True]
    assert "Choose a file" in seen["empty"]
    assert (seen["loaded"], seen["refused"], seen["page"].lower()) == (True, [], "<!doctype html>")
    assert (seen["shown"], seen["save"], seen["said"]) == (True, "report.html", "")


LOOKS = {
    "narrow": ("--window-size=500,900", ["rgb(255, 255, 255)", "rgb(27, 31, 36)"]),
    "dark": ("--blink-settings=preferredColorScheme=0", ["rgb(21, 24, 28)", "rgb(230, 233, 236)"]),
}


@pytest.mark.parametrize("look", LOOKS)
def test_narrow_and_dark(site, tmp_path, look):
    script = """
      await type("the film was never dull and a joy from start to end");
      document.querySelectorAll("details").forEach((d) => (d.open = true));
      const all = [...document.querySelectorAll("textarea, button, input, summary")];
      const order = all.filter((n) => n.offsetParent && n.tabIndex >= 0);
      const style = getComputedStyle(document.body);
      return {page: document.documentElement.scrollWidth, window: document.documentElement.clientWidth,
        colours: [style.backgroundColor, style.color],
        focusable: order.map((n) => n.tagName + (n.id ? "#" + n.id : "")),
        labelled: [...document.querySelectorAll("textarea, input")].every((n) => n.labels.length)};
    """
    flag, colours = LOOKS[look]
    seen = act(site, tmp_path, script, flag)
    assert seen["page"] <= seen["window"] + 1
    assert seen["colours"] == colours
    assert seen["focusable"] == ["TEXTAREA#text", "BUTTON", "SUMMARY", "INPUT#file", "TEXTAREA#pasted", "BUTTON"]
    assert seen["labelled"]
