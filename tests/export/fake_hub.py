"""A fake Hugging Face hub on this machine: the part of its HTTP API that uploads use."""

import base64
import contextlib
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKEN = "hf_of_the_test"


class Hub:
    """Repositories by name: whether they are private, and their files."""

    def __init__(self):
        self.private, self.files, self.objects, self.requests = {}, {}, {}, []
        self.address = ""


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_PUT(self):
        name, body = self.path.removeprefix("/objects/"), self._body()
        assert hashlib.sha256(body).hexdigest() == name
        self.hub.objects[name] = body
        self._answer({})

    def do_POST(self):
        self.hub.requests.append(self.path)
        body = self._body()
        if self.headers.get("authorization") != f"Bearer {TOKEN}":
            self._answer({"error": "Invalid username or password."}, 401)
        elif self.path == "/api/repos/create":
            request = json.loads(body)
            name = f"{request['organization']}/{request['name']}"
            self.hub.private[name] = request.get("visibility") == "private"
            self._answer({"url": f"{self.hub.address}/{name}", "name": name, "id": name})
        elif self.path == "/api/validate-yaml":
            self._answer({"errors": [], "warnings": []})
        elif "/preupload/" in self.path:
            self._answer({"files": [self._mode(file["path"]) for file in json.loads(body)["files"]]})
        elif self.path.endswith("/objects/batch"):
            objects = [self._object(found) for found in json.loads(body)["objects"]]
            self._answer({"transfer": "basic", "objects": objects})
        elif "/commit/" in self.path:
            self._commit(self.path.split("/api/models/")[1].split("/commit/")[0], body)
        else:
            self._answer({"error": f"{self.path} is not implemented"}, 404)

    def _mode(self, path):
        return {
            "path": path,
            "uploadMode": "lfs" if path.endswith(".safetensors") else "regular",
            "shouldIgnore": False,
        }

    def _object(self, found):
        return {**found, "actions": {"upload": {"href": f"{self.hub.address}/objects/{found['oid']}"}}}

    def _commit(self, name, body):
        files = self.hub.files.setdefault(name, {})
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.objects[value["oid"]]
        self._answer(
            {"success": True, "commitOid": "0" * 40, "commitUrl": f"{self.hub.address}/{name}/commit/{'0' * 40}"}
        )

    def _body(self):
        if self.headers.get("transfer-encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("content-length", 0)))

    def _answer(self, value, code=200):
        text = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@contextlib.contextmanager
def fake_hub():
    """A hub that runs inside the block."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("HubHandler", (Handler,), {"hub": hub}))
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
