#!/usr/bin/env node
// An executor in JavaScript: Executor Protocol v1 with Node alone, no packages.
// One request at a time, one line in, one line out. Add your handlers to `handlers`.

"use strict";

const { closeSync, writeSync } = require("node:fs");
const { Console } = require("node:console");
const { resolve } = require("node:path");

const MAX_LINE = 16 * 1024 * 1024;

// --- handlers: replace these with yours --------------------------------------------------------
// A handler gets the positional arguments as an array, the named ones as an object, and the
// request's context. It returns a value or a promise.

class RetryLater extends Error {
  constructor(message, delay = null) {
    super(message);
    this.delay = delay;
  }
}

const handlers = new Map([
  ["echo", (args, kwargs) => ({ args, kwargs })],
  ["fail", ([message = "this handler always fails"]) => { throw new Error(message); }],
  ["retry", ([delay = 5]) => { throw new RetryLater("try again in a while", delay); }],
  ["sleep", ([seconds = 0]) => new Promise((done) => setTimeout(done, seconds * 1000, seconds))],
  ["print", ([text = "hello"]) => { console.log(text); }],
  ["unserialisable", () => 10n],
]);

// Or leave them, and name a module that exports yours: node executor.js handlers.js
for (const path of process.argv.slice(2)) {
  for (const [name, handler] of Object.entries(require(resolve(path)))) handlers.set(name, handler);
}

// --- one request, one outcome ------------------------------------------------------------------

class InvalidRequest extends Error {}

function outcome(jobId, status, more = {}) {
  return {
    job_id: jobId, status, result: null,
    error_message: null, error_type: null, retry_after_seconds: null, ...more,
  };
}

function failure(jobId, kind, message) {
  return outcome(jobId, "error", { error_message: message, error_type: kind });
}

async function answer(line) {
  let jobId = "unknown";
  let request, deadline;
  try {
    request = read(line);
    if (typeof request.job_id === "string") jobId = request.job_id;
    const version = request.protocol_version ?? "1";
    if (typeof version === "string" && version !== "1") {
      const message = `Unsupported protocol version '${version.slice(0, 20)}'`;
      return failure(jobId, "unsupported_protocol_version", message);
    }
    deadline = check(request);
  } catch (flaw) {
    if (!(flaw instanceof InvalidRequest)) throw flaw;
    return failure(jobId, "invalid_request", `Invalid request: ${flaw.message}`);
  }
  const handler = handlers.get(request.function_name);
  if (handler === undefined) {
    const name = request.function_name.slice(0, 100);
    return failure(jobId, "handler_not_found", `No handler for '${name}'`);
  }
  if (deadline !== null && deadline <= Date.now()) {
    return outcome(jobId, "timeout", { error_message: "The deadline had passed already" });
  }
  return run(jobId, handler, request, deadline);
}

async function run(jobId, handler, { args = [], kwargs = {}, context }, deadline) {
  try {
    const result = await within(deadline, handler(args, kwargs, context));
    if (result === LATE) {
      return outcome(jobId, "timeout", { error_message: "The handler ran past its deadline" });
    }
    return outcome(jobId, "success", { result: result ?? null });
  } catch (error) {
    const told = String(error?.message || error?.name || error);
    if (error instanceof RetryLater) {
      return outcome(jobId, "retry", { error_message: told, retry_after_seconds: error.delay });
    }
    return failure(jobId, error?.name ?? "Error", told);
  }
}

// A promise cannot be stopped: one that is late is answered for, and what it gives is forgotten.
// Where that is dangerous, end the process here; the orchestrator starts a fresh one.
async function within(deadline, work) {
  if (deadline === null) return work;
  Promise.resolve(work).catch(() => {}); // a late failure is nobody's any more
  let timer;
  const late = new Promise((done) => {
    timer = setTimeout(done, Math.min(deadline - Date.now(), 2 ** 31 - 1), LATE);
  });
  try {
    return await Promise.race([work, late]);
  } finally {
    clearTimeout(timer);
  }
}

const LATE = Symbol("late");
const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

function read(line) {
  if (line.length > MAX_LINE) throw new InvalidRequest(`longer than ${MAX_LINE} bytes`);
  let text, request;
  try {
    text = utf8.decode(line);
  } catch {
    throw new InvalidRequest("not UTF-8");
  }
  try {
    request = JSON.parse(text);
  } catch { // the reason would quote the line
    throw new InvalidRequest("not JSON");
  }
  if (!isObject(request)) throw new InvalidRequest("not an object");
  return request;
}

function check(request) {
  const context = request.context;
  expect("protocol_version", request.protocol_version === undefined || request.protocol_version === "1");
  expect("job_id", typeof request.job_id === "string");
  expect("function_name", typeof request.function_name === "string");
  expect("args", request.args === undefined || Array.isArray(request.args));
  expect("kwargs", request.kwargs === undefined || isObject(request.kwargs));
  expect("context", isObject(context));
  expect("context.job_id", context.job_id === request.job_id);
  expect("context.attempt", Number.isInteger(context.attempt) && context.attempt >= 1);
  expect("context.queue_name", typeof context.queue_name === "string");
  expect("context.worker_id", context.worker_id == null || typeof context.worker_id === "string");
  const carrier = context.trace_context ?? {};
  const isCarrier = isObject(carrier) && Object.values(carrier).every((each) => typeof each === "string");
  expect("context.trace_context", isCarrier);
  instant("context.enqueue_time", context.enqueue_time);
  return context.deadline == null ? null : instant("context.deadline", context.deadline);
}

const RFC3339 = /^\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)$/;

function instant(field, text) {
  expect(field, typeof text === "string" && RFC3339.test(text));
  // Date reads milliseconds, a capital T, and no leap second.
  const plain = text.toUpperCase().replace(" ", "T").replace(/(\.\d{3})\d+/, "$1");
  const [, before, after] = /^(.{17})60(.*)$/.exec(plain) ?? [];
  const at = before === undefined ? Date.parse(plain) : Date.parse(`${before}59${after}`) + 1000;
  expect(field, !Number.isNaN(at));
  return at;
}

function expect(field, isFine) {
  if (!isFine) throw new InvalidRequest(`${field} is missing or wrong`);
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

// --- the process -------------------------------------------------------------------------------

// What a handler prints goes to the standard error; the protocol has the standard output alone.
globalThis.console = new Console(process.stderr, process.stderr);
Object.defineProperty(process, "stdout", { value: process.stderr });

function write(told) {
  let line;
  try {
    line = JSON.stringify(told);
    if (JSON.stringify(told.result) === undefined) throw new TypeError("a function or a symbol");
  } catch {
    const message = `The result, a ${typeof told.result}, cannot be written as JSON`;
    line = JSON.stringify(failure(told.job_id, "unserialisable_result", message));
  }
  let rest = Buffer.from(line + "\n");
  if (rest.length > MAX_LINE + 1) {
    const message = `The outcome is longer than ${MAX_LINE} bytes`;
    rest = Buffer.from(JSON.stringify(failure(told.job_id, "result_too_large", message)) + "\n");
  }
  while (rest.length > 0) {
    try {
      rest = rest.subarray(writeSync(1, rest));
    } catch (error) {
      if (error.code === "EPIPE") process.exit(0); // nobody is left to tell
      if (error.code !== "EAGAIN") throw error;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1); // the pipe is full
    }
  }
}

// Lines end at byte 0x0A and nowhere else. Of a line that is too long only the size is kept.
async function* lines(source) {
  let pieces = [], size = 0;
  for await (const chunk of source) {
    let start = 0;
    for (let end; (end = chunk.indexOf(10, start)) >= 0; start = end + 1) {
      pieces.push(chunk.subarray(start, end));
      yield Buffer.concat(pieces);
      pieces = [];
      size = 0;
    }
    size += chunk.length - start;
    if (size <= MAX_LINE + CHUNK) pieces.push(chunk.subarray(start));
  }
  if (size > 0) yield Buffer.concat(pieces);
}

const CHUNK = 64 * 1024;
const isBlank = (line) => line.every((byte) => byte === 32 || (byte >= 9 && byte <= 13));
let isStopping = false;

process.on("SIGINT", () => {}); // meant for the orchestrator
process.on("SIGTERM", () => {
  if (isStopping) process.exit(143);
  isStopping = true;
  process.stdin.destroy(); // nothing more is read; what was taken is finished
});

// The orchestrator may ask for a sign of life; the protocol itself has none.
function reportReady() {
  const descriptor = Number(process.env.ERGON_READY_FD || NaN);
  const report = { ready: true, handlers: [...handlers.keys()].sort(), protocol_version: "1" };
  try {
    writeSync(descriptor, JSON.stringify(report) + "\n");
    closeSync(descriptor);
  } catch { /* nobody waits there */ }
}

async function main() {
  // One request at a time, unless the orchestrator says how many it may send.
  const limit = Math.max(1, Number(process.env.ERGON_MAX_IN_FLIGHT) || 1);
  const running = new Set();
  reportReady();
  try {
    for await (const line of lines(process.stdin)) {
      if (isBlank(line)) continue;
      const work = answer(line).then(write).finally(() => running.delete(work));
      running.add(work);
      if (running.size >= limit) await Promise.race(running);
      if (isStopping) break;
    }
  } catch (error) {
    if (!isStopping) throw error;
  }
  await Promise.all(running);
  process.exit(0);
}

main();
