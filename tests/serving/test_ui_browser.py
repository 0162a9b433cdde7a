"""The web UI in Chromium: typing, keyboard, a file, errors, narrow and dark. Skipped without a browser.

The page is served with one more script, which acts on it and writes what it found into it; `--dump-dom` returns it.
"""

import threading

import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")

import uvicorn
from fastapi import Response
from server_tools import NAMES, fit_rule, fitted_temperature, save_classifier

import ebmcal
from browser import found_in, needs_browser
from ebmcal.calibration import save_calibrator
from ebmcal.reports.plots import energy_histogram
from ebmcal.run_dir import update_card
from ebmcal.serving import create_app
from ebmcal.serving.server import address, bound_socket
from ebmcal.serving.ui import POLICY, add_ui
from tiny_models import SENTENCES

pytestmark = needs_browser
SCRIPTS = {}


def add_test_pages(app, service):
    """The page with one more script, under the same policy."""
    add_ui(app, service)

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
    films, plain = (save_classifier(place / name) for name in ("films", "plain"))
    save_calibrator(films, fitted_temperature())
    update_card(films, histograms=energy_histogram({"train": ebmcal.load(films).predict(SENTENCES)}))
    fit_rule(films, ood=0.1, ood_score="knn", training=[f"a new {text}" for text in SENTENCES])
    app = create_app({"films": ebmcal.load(films), "plain": ebmcal.load(plain)}, extend=add_test_pages)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None))
    with bound_socket("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
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
const type = async (text) => { $("text").value = text; $("text-form").requestSubmit(); await settled(); };
const refused = [];
document.addEventListener("securitypolicyviolation", (event) => refused.push(event.violatedDirective));
window.addEventListener("load", async () => {
  await settled();
  let found;
  try { found = await (async () => { %s })(); } catch (error) { found = "error: " + error; }
  const place = document.createElement("pre");
  place.id = "found";
  place.textContent = JSON.stringify(found);
  document.body.append(place);
});
"""


def act(site, tmp_path, script, *flags):
    """What a script that acts on the page returns."""
    name = f"t{len(SCRIPTS)}"
    SCRIPTS[name] = TOOLS % script
    return found_in(f"{site}/{name}.html", tmp_path / "profile", *flags)


def test_a_text_is_classified(site, tmp_path):
    """Also with the keyboard; HTML in a text stays text; the page's own policy refuses nothing."""
    script = """
      const marks = () => [...$("energy").querySelectorAll("path.tick")];
      await type("the film was <b>never</b> dull");
      const first = {
        models: $("models").textContent, boxes: $("probabilities").children.length,
        rows: $("probabilities").querySelectorAll("tr").length,
        before: $("probabilities").querySelectorAll(".bar.before").length,
        words: $("words").querySelectorAll("[data-effect]").length,
        text: $("words").querySelector(".marked").textContent, bold: document.querySelectorAll("main b").length,
        lines: $("energy").querySelectorAll("svg[role=img] path[class^=s]").length,
        decision: $("decision").textContent, energy: $("energy").textContent, lines_read: !$("lines").hidden,
        origins: [...$("probabilities").querySelectorAll("table")].map((table) =>
          table.querySelector(".track").getBoundingClientRect().left - table.getBoundingClientRect().left),
        ticks: marks().map((tick) => Number(tick.dataset.energy)),
        places: marks().map((tick) => parseFloat(tick.getAttribute("d").slice(1))),
      };
      await type("a joy\\nfrom start");
      const two = !$("lines").hidden;
      $("text").value = "a joy 😀 from start";
      $("text").focus();
      $("text").dispatchEvent(new KeyboardEvent("keydown", {key: "Enter", ctrlKey: true, bubbles: true}));
      await settled();
      return {first, two, second: $("words").querySelector(".marked").textContent, refused,
        width: $("probabilities").querySelector("td .bar.after").style.width};
    """
    found = act(site, tmp_path, script)
    first = found["first"]
    assert first["models"] == "films compared with plain"
    assert (first["boxes"], first["rows"]) == (2, 6)
    assert first["before"] == 4, "three bars and the legend of the calibrated model"
    assert (first["words"], first["text"], first["bold"]) == (5, "the film was <b>never</b> dull", 0)
    assert first["lines"] == 1
    assert "out-of-distribution by" in first["decision"]
    assert "the distance to the nearest training texts is" in first["energy"]
    assert "The energy did not decide" in first["energy"], "although the chart is of the energy"
    assert (first["lines_read"], found["two"]) == (False, True), "several lines are one text"
    assert first["origins"][0] == pytest.approx(first["origins"][1], abs=1), "bars of two models can be compared"
    steps = [(b - a) / (d - c) for a, b, c, d in neighbours(first["ticks"], first["places"])]
    assert len(steps) >= 2
    assert steps == pytest.approx([steps[0]] * len(steps), rel=1e-3), "ticks are where their numbers say"
    assert found["second"] == "a joy 😀 from start"
    assert found["width"].endswith("%")
    assert found["refused"] == []


def neighbours(ticks, places):
    return zip(ticks, ticks[1:], places, places[1:], strict=False)


@pytest.mark.slow
def test_a_file_is_evaluated_with_the_chosen_columns(site, tmp_path):
    lines = "\\n".join(f"{text.replace(',', '')},{NAMES[i % 3]}" for i, text in enumerate(SENTENCES[:30]))
    script = f"""
      const send = async (text) => {{ $("pasted").value = text; $("file-form").requestSubmit(); await settled(); }};
      await send("");
      const empty = [$("file-status").textContent, $("file-status").className, $("report").hidden];
      $("pasted").value = "n,verdict,comment\\n1,good,a";
      $("pasted").dispatchEvent(new Event("change"));
      await settled();
      const columns = {{shown: !$("columns").hidden, options: [...$("text-column").options].map((o) => o.value),
        text: $("text-column").value, label: $("label-column").value, pair: $("pair-choice").hidden}};
      $("text-column").value = "n";
      $("label-column").value = "comment";
      await send("n,verdict,comment\\n1,good,a");
      const wrong = $("file-status").textContent;
      const loaded = new Promise((done) => $("report").addEventListener("load", () => done(true)));
      await send("comment,verdict\\n{lines}");
      const page = await (await fetch($("report").src)).text();
      return {{empty, columns, wrong, loaded: await loaded, refused, page: page.slice(0, 15),
        shown: !$("report").hidden, save: $("save").download, status: $("file-status").textContent}};
    """
    # In a process of its own, the frame would wait for ever: its clock stands still.
    found = act(site, tmp_path, script, "--disable-features=IsolateSandboxedIframes")
    assert "Choose a file" in found["empty"][0]
    assert found["empty"][1:] == ["error", True]
    assert found["columns"] == {
        "shown": True, "options": ["n", "verdict", "comment"], "text": "n", "label": "verdict", "pair": True,
    }  # fmt: skip
    assert "'a'" in found["wrong"], "it is not a label"
    assert (found["loaded"], found["refused"], found["page"].lower()) == (True, [], "<!doctype html>")
    assert (found["shown"], found["save"], found["status"]) == (True, "report.html", "")


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
        labelled: [...document.querySelectorAll("textarea, input, select")].every((n) => n.labels.length)};
    """
    flag, colours = LOOKS[look]
    found = act(site, tmp_path, script, flag)
    assert found["page"] <= found["window"] + 1
    assert found["colours"] == colours
    focusable = ["TEXTAREA#text", "BUTTON", "SUMMARY", "SUMMARY", "INPUT#file", "TEXTAREA#pasted", "BUTTON"]
    assert found["focusable"] == focusable
    assert found["labelled"]
