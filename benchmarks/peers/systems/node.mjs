// Graphile Worker and pg-boss: `node node.mjs SYSTEM ACTION [ARGUMENTS]`, with the actions of protocol.py.
import fs from "node:fs";
import path from "node:path";
import { createRequire } from "node:module";

const [system, action, ...words] = process.argv.slice(2);
const numbers = words.map(Number);
const url = process.env.BENCH_URL;
const tuned = process.env.BENCH_SETTING !== "installed";
const handlerMs = 1000 * Number(process.env.BENCH_HANDLER_SECONDS ?? 0);
const chunk = 1000;
const require = createRequire(path.join(process.env.BENCH_MODULES, "package.json"));

const now = () => (performance.timeOrigin + performance.now()) / 1000;
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const payload = (n, ts = null) => ({ n, user: `u${n}`, kind: "email", ts });

// The file of ticks.py: count, time of the first start, latencies. It is written every 20 ms, because a write
// for each job would cost as much as the job.
const samples = 4096;
const buffer = Buffer.alloc(16 + 8 * samples);
let count = 0;
let file = null;
function flush() {
  fs.writeSync(file, buffer, 0, buffer.length, 0);
}
function tick(ts) {
  if (file === null) {
    fs.mkdirSync(process.env.BENCH_TICKS, { recursive: true });
    file = fs.openSync(path.join(process.env.BENCH_TICKS, String(process.pid)), "w+");
    buffer.writeDoubleLE(now(), 8);
    setInterval(flush, 20);
  }
  if (ts && count < samples) buffer.writeDoubleLE(Math.max(1e-9, now() - ts), 16 + 8 * count);
  count += 1;
  buffer.writeBigInt64LE(BigInt(count), 0);
  if (count === 1) flush();
}
async function handle(data) {
  tick(data.ts);
  if (handlerMs) await sleep(handlerMs);
}

async function oneByOne(enqueue, total) {
  for (let n = 0; n < total; n += 1) await enqueue(payload(n));
}
async function enqueueAs(enqueue, bulk) {
  const start = now();
  const [first, second] = numbers;
  if (action === "enqueue") await oneByOne(enqueue, first);
  else if (action === "callers")
    await Promise.all(Array.from({ length: second }, () => oneByOne(enqueue, Math.floor(first / second))));
  else if (action === "bulk")
    for (let n = 0; n < first; n += chunk)
      await bulk(Array.from({ length: Math.min(chunk, first - n) }, (_, place) => payload(n + place)));
  else if (action === "paced")
    for (let n = 0; n < first * second; n += 1) {
      await sleep(Math.max(0, 1000 * (start + n / first - now())));
      await enqueue(payload(n, now()));
    }
  else throw new Error(`unknown action ${action}`);
  console.log(now() - start);
  process.exit(0);
}

if (system === "graphile") {
  const graphile = require("graphile-worker");
  if (action === "setup") {
    await graphile.runMigrations({ connectionString: url });
    process.exit(0);
  }
  if (action === "worker") {
    const fast = {
      concurrentJobs: 24,
      localQueue: { size: 500, ttl: 60000, refetchDelay: { durationMs: 10 } },
      completeJobBatchDelay: 0,
      failJobBatchDelay: 0,
      logger: new graphile.Logger(() => () => {}),
    };
    const worker = { connectionString: url, preparedStatements: true, ...(tuned ? fast : {}) };
    const runner = await graphile.run({ preset: { worker }, taskList: { noop: handle } });
    await runner.promise;
  } else {
    const utils = await graphile.makeWorkerUtils({ connectionString: url, maxPoolSize: 32 });
    await enqueueAs(
      (data) => utils.addJob("noop", data),
      (all) => utils.addJobs(all.map((data) => ({ identifier: "noop", payload: data }))),
    );
  }
} else {
  const { PgBoss } = require("pg-boss");
  const boss = new PgBoss({ connectionString: url, max: 32, ...(tuned ? { useListenNotify: true } : {}) });
  boss.on("error", (error) => console.error(error));
  await boss.start();
  if (action === "setup") {
    await boss.createQueue("noop");
    process.exit(0);
  }
  if (action === "worker") {
    const options = tuned ? { batchSize: 500, pollingIntervalSeconds: 0.5, burstWhenBatchFull: true } : {};
    if (tuned) await boss.updateQueue("noop", { notify: true });
    await boss.work("noop", options, (jobs) => Promise.all(jobs.map((job) => handle(job.data))));
    await sleep(1e9);
  } else {
    await enqueueAs(
      (data) => boss.send("noop", data),
      (all) => boss.insert("noop", all.map((data) => ({ data }))),
    );
  }
}
