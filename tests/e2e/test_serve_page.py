"""The page at / in a real browser: it chats, streams, stops, and shows how the server fares, on a desk and on a phone."""
import json
import shutil
import socket
import struct

import pytest

import browser
import nb
from serving import HELD, Server, aborted

pytestmark = pytest.mark.skipif(not browser.PROGRAM, reason="no Chromium here: apt-get install chromium")

SEND = "document.querySelector('#temperature').value = 0; document.querySelector('#text').value = %s; document.querySelector('#form').requestSubmit()"


@pytest.fixture(scope="module")
def server():
    with Server() as s:
        yield s


@pytest.fixture(scope="module")
def chromium():
    with browser.Browser() as b:
        yield b


@pytest.fixture
def b(chromium):
    chromium.screen()
    return chromium


def url(server):
    return f"http://127.0.0.1:{server.port}/"


def last_answer(b):
    return b.run("[...document.querySelectorAll('.assistant .text')].at(-1).textContent")


def idle(b):
    b.wait("document.querySelector('#stop').hidden")


def test_it_chats_and_shows_the_server(server, b):
    b.open(url(server))
    b.wait("document.querySelector('#health').className === 'ok'")
    b.run(SEND % json.dumps("282 - 247 ="))
    idle(b)
    assert last_answer(b) == "35"
    b.run(SEND % json.dumps("What is the capital of Croatia?"))
    idle(b)
    assert last_answer(b) == "Zagreb"
    assert b.run("document.querySelectorAll('.msg').length") == 4
    b.wait("document.querySelector('#totals').textContent.includes('tokens generated')")
    facts = b.run("document.querySelector('#facts').innerText")
    assert "deepseek_v4" in facts and "NVFP4" in facts and "4096 tokens" in facts
    b.wait("document.querySelectorAll('#p-speed path')[1].getAttribute('d').length > 10")
    assert "finite" in b.run("document.querySelector('#guard').innerText")
    b.run("document.querySelector('#fresh').click()")
    assert b.run("document.querySelectorAll('.msg').length") == 0
    assert b.console == []  # no error, no word of the content security policy


# The page does not ask for it; without it the story ends by itself.
ENDLESS = """(fetch => window.fetch = (url, o) => fetch(url, o?.body ? { ...o, body: JSON.stringify({ ...JSON.parse(o.body), ignore_eos: true }) } : o))(window.fetch)"""


def test_stop_ends_the_answer(b):
    with Server(*HELD) as s:
        b.open(url(s))
        b.run(ENDLESS)
        b.run("document.querySelector('#temperature').value = 0; document.querySelector('#tokens').value = 4000")
        b.run(SEND % json.dumps("Tell me a story."))
        b.wait("(document.querySelector('.assistant .text')?.textContent.length ?? 0) > 3")
        b.run("document.querySelector('#stop').click()")
        idle(b)
        assert aborted(s.quiet()) == 1
    assert b.run("document.querySelector('.assistant .note').textContent").startswith("stopped")


def test_an_error_is_shown_and_the_text_kept(server, b):
    b.open(url(server))
    b.run("document.querySelector('#tokens').value = 100000")
    b.run(SEND % json.dumps("Hello"))
    idle(b)
    assert "100000" in b.run("document.querySelector('.error').textContent")
    assert b.run("document.querySelector('#text').value") == "Hello"


def test_a_key_is_asked_for(b):
    with Server("--api-key", "sesame") as s:
        b.open(url(s))
        assert b.run("document.querySelector('#key-label').hidden")
        b.run(SEND % json.dumps("282 - 247 ="))
        idle(b)
        assert not b.run("document.querySelector('#key-label').hidden")
        b.run("document.querySelector('#key').value = 'sesame'; document.querySelector('#text').value = ''")
        b.run(SEND % json.dumps("282 - 247 ="))
        idle(b)
        assert last_answer(b) == "35"


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_fits_and_is_legible(server, b, width, dark):
    """Nothing is wider than the screen; text and page differ in both colour schemes."""
    b.screen(width, 844, dark)
    b.open(url(server))
    b.wait("document.querySelector('#facts').childElementCount > 4")
    assert b.run("document.documentElement.scrollWidth") == width
    light = b.run("""(() => {
        const lum = c => { const [r, g, b] = c.match(/[\\d.]+/g).map(Number); return (.299 * r + .587 * g + .114 * b) / 255; };
        const s = getComputedStyle(document.body);
        return [lum(s.backgroundColor), lum(s.color)];
    })()""")
    assert (light[0] < .2 and light[1] > .8) if dark else (light[0] > .8 and light[1] < .2)
    box = b.run("(r => [r.left, r.right])(document.querySelector('#send').getBoundingClientRect())")
    assert box[0] >= 0 and box[1] <= width


def test_under_a_root_path(b):
    """Behind a proxy that leaves its prefix, the page finds the API beneath it."""
    with Server("--root-path", "/llm") as s:
        b.open(url(s) + "llm/")
        b.wait("document.querySelector('#health').className === 'ok'")
        b.run(SEND % json.dumps("282 - 247 ="))
        idle(b)
        assert last_answer(b) == "35"
        assert b.run("document.querySelector('footer a').href").endswith("/llm/metrics")


def test_a_server_that_is_gone_is_told(b):
    s = Server()
    with s:
        b.open(url(s))
        b.wait("document.querySelector('#health').className === 'ok'")
        s.kill()
        b.wait("document.querySelector('#health').textContent === 'no answer'")
        s.process.returncode = 0
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", s.port), timeout=1):
        pass


def test_guard_events_are_shown(b, tmp_path):
    """NaN bytes among the block scales of one linear: the answer is right all the same, and the page says what was healed."""
    folder = tmp_path / "poisoned"
    shutil.copytree(nb.DEMO, folder)
    shard = folder / "model.safetensors"
    data = bytearray(shard.read_bytes())
    size = struct.unpack("<Q", data[:8])[0]
    at = json.loads(data[8:8 + size])["model.layers.2.self_attn.q_b_proj.weight_scale"]["data_offsets"][0]
    data[8 + size + at] = 0x7F  # E4M3's NaN
    shard.write_bytes(data)
    with Server(model=folder) as s:
        b.open(url(s))
        b.run(SEND % json.dumps("282 - 247 ="))
        idle(b)
        assert last_answer(b) == "35"
        b.wait("document.querySelectorAll('#guard tr').length === 2")
        assert b.run("document.querySelector('#guard').innerText").split() == ["layer", "operator", "healed", "by", "times", "2", "linear", "clean", "1"]
        assert s.metrics()["nibble:guard_events_total"] == 1
