// Runs Perfetto's trace processor from the browser program in a folder: requests from standard input, answers to standard output.

const fs = require("fs");
const path = require("path");
const vm = require("vm");

const read = (name) => fs.readFileSync(path.join(process.argv[2], name));

// The environment of a browser's worker, which the program expects.
class XMLHttpRequest {
  open(_, name) {
    this.response = read(name);
  }
  send() {}
}
globalThis.self = Object.assign(globalThis, { XMLHttpRequest, WorkerGlobalScope: null, location: { href: "" } });
Object.defineProperty(process, "type", { value: "renderer" });
vm.runInThisContext(read("engine_bundle.js").toString());

const port = { postMessage: (bytes) => fs.writeFileSync(1, bytes) };
self.onmessage({ data: port });
process.stdin.on("data", (data) => port.onmessage({ data: new Uint8Array(data) }));
