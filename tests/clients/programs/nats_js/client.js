// nats.js, as tests/clients/protocol.py says. Build: npm install --no-package-lock
import { createInterface } from "node:readline";
import { connect, headers } from "@nats-io/transport-node";
import { jetstream, JetStreamApiError } from "@nats-io/jetstream";

const connection = await connect({ servers: process.argv[2], maxReconnectAttempts: -1 });
const js = jetstream(connection);

function read(error) {
  if (error instanceof JetStreamApiError) {
    return { code: error.status, err_code: error.code, description: error.message };
  }
  return { failed: `${error.name}: ${error.message}` };
}

async function publish(asked) {
  const options = { expect: {} };
  if (asked.headers) {
    options.headers = headers();
    for (const [name, value] of Object.entries(asked.headers)) options.headers.set(name, value);
  }
  if (asked.msg_id !== undefined) options.msgID = asked.msg_id;
  if (asked.expect_stream !== undefined) options.expect.streamName = asked.expect_stream;
  if (asked.expect_last !== undefined) options.expect.lastSequence = asked.expect_last;
  if (asked.expect_last_of_subject !== undefined) options.expect.lastSubjectSequence = asked.expect_last_of_subject;
  if (asked.expect_last_msg_id !== undefined) options.expect.lastMsgID = asked.expect_last_msg_id;
  try {
    const ack = await js.publish(asked.subject, asked.value, options);
    return { stream: ack.stream, seq: ack.seq, duplicate: ack.duplicate };
  } catch (error) {
    return read(error);
  }
}

async function many(asked) {
  const answers = await Promise.all(
    Array.from({ length: asked.count }, (_, number) => publish({ subject: asked.subject, value: String(number) })),
  );
  return { seqs: answers.flatMap((a) => a.seq ?? []), failed: answers.filter((a) => !a.seq).map((a) => JSON.stringify(a)) };
}

async function atomic(asked) {
  try {
    const batch = await js.startBatch(asked.subject, "1");
    await batch.commit(asked.subject, "2");
    return { seq: 0 };
  } catch (error) {
    return read(error);
  }
}

function steady(asked) {
  const acked = [], failed = [], waiting = [];
  const began = Date.now();
  let sent = 0;
  async function one(number) {
    const value = String(number);
    const said = await publish({ subject: asked.subject, value, msg_id: asked.msg_ids ? asked.value + value : undefined });
    if (said.seq) acked.push([number, said.seq]);
    else failed.push([number, JSON.stringify(said)]);
  }
  const timer = setInterval(() => {
    const due = ((Date.now() - began) / 1000) * asked.rate;
    while (sent < due && (asked.how !== "one by one" || sent === acked.length + failed.length)) waiting.push(one(sent++));
  }, 5);
  return async () => {
    clearInterval(timer);
    await Promise.all(waiting);
    return { sent, acked, failed };
  };
}

let stop;
for await (const line of createInterface({ input: process.stdin })) {
  const asked = JSON.parse(line);
  let said = {};
  if (asked.op === "publish") said = await publish(asked);
  else if (asked.op === "many") said = await many(asked);
  else if (asked.op === "atomic") said = await atomic(asked);
  else if (asked.op === "steady") stop = steady(asked);
  else if (asked.op === "stop") said = await stop();
  console.log(JSON.stringify(said));
}
await connection.close();
