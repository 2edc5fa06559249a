// The trace processor of Perfetto's web page (WebAssembly), behind the HTTP calls of the Python package:
//
//     node wasm_server.mjs DIRECTORY
//
// DIRECTORY has `engine_bundle.js` and `trace_processor.wasm` of a release of the Perfetto page. Listens on a
// free port of 127.0.0.1 and prints it. For machines where the native program cannot be downloaded;
// check_trace.py queries either one.

import { createServer } from "node:http";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { createContext, runInContext } from "node:vm";

// perfetto/protos/perfetto/trace_processor/trace_processor.proto: methods and fields of TraceProcessorRpc.
const METHOD = { append: 1, finalize: 2, query: 3, status: 10 };
const FIELD = {
    message: 1, sequence: 1, method: 2, chunk: 101, queryArgs: 103,
    appendResult: 201, queryResult: 203, status: 210, finalizeResult: 212,
};

function varint(value) {
    const bytes = [];
    for (; value > 0x7f; value = Math.floor(value / 128)) bytes.push((value & 0x7f) | 0x80);
    return Buffer.from([...bytes, value]);
}

const number = (field, value) => Buffer.concat([varint(field * 8), varint(value)]);
const bytes = (field, value) => Buffer.concat([varint(field * 8 + 2), varint(value.length), value]);

/** The fields of a protobuf message, as [field, value] with the bytes of those that have a length. */
function* fields(message) {
    let at = 0;
    const next = () => {
        let value = 0;
        for (let scale = 1; ; scale *= 128) {
            const byte = message[at++];
            value += (byte & 0x7f) * scale;
            if (byte < 0x80) return value;
        }
    };
    while (at < message.length) {
        const key = next();
        const [field, wire] = [Math.floor(key / 8), key % 8];
        if (wire === 0) yield [field, next()];
        else if (wire === 2) {
            const length = next();
            yield [field, message.subarray(at, at += length)];
        } else throw new Error(`field ${field} has the unexpected wire type ${wire}`);
    }
}

/** Starts the engine in an emulation of the page's worker; resolves to our end of its message port. */
async function start(directory) {
    const file = (name) => readFileSync(join(directory, name));
    const page = createContext({ console, setTimeout, TextDecoder, TextEncoder, URL, performance, crypto });
    page.self = page;
    page.location = new URL("http://localhost/engine_bundle.js");
    page.WorkerGlobalScope = class {};
    page.XMLHttpRequest = class {
        open(method, name) {
            this.response = file(name.split("/").pop());
        }
        send() {}
    };
    runInContext(file("engine_bundle.js").toString(), page);
    // Its start-up consists of promises only, which resolve before any timer.
    await new Promise((done) => setTimeout(done, 0));
    const port = {};
    page.onmessage({ data: port });
    const own = runInContext("(bytes) => Uint8Array.from(bytes)", page);
    let replies = [];
    port.postMessage = (part) => replies.push(Buffer.from(part));
    return (request) => {
        replies = [];
        port.onmessage({ data: own(request) });
        return Buffer.concat(replies);
    };
}

const ask = await start(process.argv[2]);
let sequence = 0;

/** Calls `method`, and joins the answers' field `wanted`: parts of one message add up to it. */
function call(method, args, wanted) {
    const request = Buffer.concat([number(FIELD.sequence, sequence++), number(FIELD.method, method), args]);
    const parts = [];
    for (const [, reply] of fields(ask(bytes(FIELD.message, request))))
        for (const [field, value] of fields(reply)) if (field === wanted) parts.push(value);
    return Buffer.concat(parts);
}

const none = Buffer.alloc(0);
const answers = {
    "/parse": (body) => call(METHOD.append, bytes(FIELD.chunk, body), FIELD.appendResult),
    "/notify_eof": () => call(METHOD.finalize, none, FIELD.finalizeResult),
    "/query": (body) => call(METHOD.query, bytes(FIELD.queryArgs, body), FIELD.queryResult),
    "/status": () => call(METHOD.status, none, FIELD.status),
};

const server = createServer(async (request, response) => {
    const parts = [];
    for await (const part of request) parts.push(part);
    const answer = answers[request.url];
    response.writeHead(answer ? 200 : 404);
    response.end(answer ? answer(Buffer.concat(parts)) : none);
});

server.listen(0, "127.0.0.1", () => console.log(server.address().port));
