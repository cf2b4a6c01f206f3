"""Records what the client of Weights & Biases sends for the runs that `src/wandb/tests.rs` logs.

    pip install wandb==0.31.0
    python wandb_requests.py > wandb_requests.json

The server answers on the loopback interface, and keeps the requests that `WandbLogger` sends too: the
client also uploads files with facts on Python.
"""

import http.server
import json
import os
import sys
import tempfile
import threading

requests = []
KEY = "0123456789abcdef0123456789abcdef01234567"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        variables = body.get("variables") or {}
        name = body.get("operationName")
        if self.path.endswith("/file_stream") or name in ("UpsertBucket", "RunResumeStatus"):
            headers = {key: self.headers[key] for key in ("Authorization", "Content-Type")}
            body.pop("query", None)
            body.pop("uploaded", None)
            requests.append({"path": self.path, "headers": headers, "body": body})
        project = {"id": "p", "name": "digits", "entity": {"id": "e", "name": "me"}}
        if name == "UpsertBucket":
            bucket = {"id": "b", "name": variables["name"], "displayName": "version_3", "config": "{}", "project": project}
            self.answer({"upsertBucket": {"bucket": bucket, "inserted": True}})
        elif name == "RunResumeStatus":
            last = {"_step": 20, "_runtime": 7.5, "train_loss": 0.1, "trainer/global_step": 40}
            bucket = {"id": "b", "name": variables["name"], "displayName": "version_3", "config": "{}", "tags": []}
            bucket |= {"historyLineCount": 21, "logLineCount": 0, "eventsLineCount": 0, "eventsTail": "[]"}
            bucket |= {"summaryMetrics": json.dumps(last), "historyTail": json.dumps([json.dumps(last)])}
            self.answer({"model": project | {"bucket": bucket | {"wandbConfig": '{"t": {}}'}}})
        elif name == "Viewer":
            viewer = {"id": "u", "entity": "me", "username": "me", "email": "a@b", "flags": "{}", "teams": {"edges": []}}
            self.answer({"viewer": viewer})
        elif name == "CreateRunFiles":
            self.answer({"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": []}})
        else:
            self.answer({})

    def answer(self, data):
        text = json.dumps({"data": data}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
os.environ |= {
    "WANDB_BASE_URL": f"http://127.0.0.1:{server.server_port}",
    "WANDB_API_KEY": KEY,
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_SILENT": "true",
}

import wandb  # noqa: E402

settings = wandb.Settings(console="off", disable_code=True, disable_git=True, x_disable_stats=True)
with tempfile.TemporaryDirectory() as folder:
    for run_id, resume, code in [("first", None, 0), ("again", "allow", 255)]:
        config = {"lr": 0.5, "name": "wide", "sizes": [1, 2]}
        run = wandb.init(
            project="digits", id=run_id, name="version_3", config=config, resume=resume, dir=folder, settings=settings
        )
        run.define_metric("trainer/global_step")
        run.define_metric("*", step_metric="trainer/global_step", step_sync=True)
        for step in (10, 20, 30):
            run.log(
                {"train_loss": 1 / step, "nan": float("nan"), "inf": float("-inf"), "epoch": 1, "trainer/global_step": step}
            )
        run.finish(code)

# The configuration also has facts on Python and the machine.
for request in requests:
    config = (request["body"].get("variables") or {}).get("config")
    if config:
        config = json.loads(config)
        config["_wandb"]["value"] = {"m": config["_wandb"]["value"]["m"], "t": {}}
        request["body"]["variables"]["config"] = config
    for absent in ("host", "program"):
        if absent in (request["body"].get("variables") or {}):
            request["body"]["variables"][absent] = None
json.dump({"wandb": wandb.__version__, "requests": requests}, sys.stdout, indent=1)
print()
