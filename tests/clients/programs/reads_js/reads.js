// Reads a stream of subjects <stream>.a and <stream>.b through JetStream's API, as tests/clients/jetstream_reads.py says.
// node reads.js URL STREAM [DOMAIN]. Build: npm install --no-package-lock
import { connect } from "@nats-io/transport-node";
import { jetstreamManager } from "@nats-io/jetstream";

const [url, stream, domain] = process.argv.slice(2);
const connection = await connect({ servers: url });
const jsm = await jetstreamManager(connection, domain ? { domain } : {});

function shown(message) {
  const kept = message.header ?? message.headers;
  return message && { subject: message.subject, seq: message.seq, data: message.string(), a: kept?.get("A") ?? "" };
}

async function all(found) {
  const messages = [];
  for await (const message of await found) messages.push(shown(message));
  return messages;
}

async function show(name, work) {
  let value;
  try {
    value = await work();
  } catch (error) {
    value = `error ${error.code ?? error.status ?? error.message}`;
  }
  console.log(JSON.stringify([name, value ?? null]));
}

await show("names", async () => (await jsm.streams.names().next()).filter((name) => name === stream));
await show("list", async () => (await jsm.streams.list().next()).map((info) => info.config.name).filter((n) => n === stream));
await show("info", async () => {
  const { state, config } = await jsm.streams.info(stream);
  return [state.messages, state.first_seq, state.last_seq, config.subjects];
});
await show("no stream", () => jsm.streams.info("nobody"));
for (const [name, query] of Object.entries({
  seq: { seq: 2 },
  last: { last_by_subj: `${stream}.a` },
  next: { seq: 3, next_by_subj: `${stream}.b` },
  absent: { seq: 99 },
  nobody: { last_by_subj: `${stream}.c` },
})) {
  await show(`get ${name}`, async () => shown(await jsm.streams.getMessage(stream, query)));
  await show(`direct ${name}`, async () => shown(await jsm.direct.getMessage(stream, query)));
}
await show("batch", () => all(jsm.direct.getBatch(stream, { seq: 2, batch: 3 })));
await show("batch by subject", () => all(jsm.direct.getBatch(stream, { seq: 1, batch: 10, next_by_subj: `${stream}.a` })));
await show("last of each", () => all(jsm.direct.getLastMessagesFor(stream, { multi_last: [`${stream}.a`, `${stream}.b`] })));
await show("last of each, once", () => all(jsm.direct.getLastMessagesFor(stream, { multi_last: [`${stream}.>`], up_to_seq: 4 })));
await connection.close();
