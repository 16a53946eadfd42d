// kafkajs with logins. `node logins.js` reads a JSON array of cases from standard input, runs them all at once and
// prints an array: what was wrong in each case, or an empty string, and which records were sent and read. A case has
// `brokers`, perhaps `ca`, `mechanism`, `username` and `password` or `token`, `topic`, and `handshakes`: the producer
// goes on until it has made that many.
'use strict';

const { readFileSync } = require('node:fs');
const { setTimeout: pause } = require('node:timers/promises');
const { Kafka, logLevel } = require('kafkajs');

const LIMIT_MS = 30_000;
const PAUSE_MS = 10;
const THRESHOLD_MS = 500;  // kafkajs renews a login this long before it expires; 10 s unless told

function client({ brokers, ca, mechanism, username, password, token }) {
  const login = token === undefined ? { username, password } : { oauthBearerProvider: async () => ({ value: token }) };
  return new Kafka({
    clientId: 'judge', brokers, logLevel: logLevel.NOTHING, retry: { retries: 0 },
    reauthenticationThreshold: THRESHOLD_MS,
    ssl: ca === undefined ? undefined : { ca: readFileSync(ca), host: 'localhost', servername: 'localhost' },
    sasl: { mechanism: mechanism.toLowerCase(), ...login },
  });
}

async function produce(kafka, { topic, handshakes }) {
  const producer = kafka.producer({ retry: { retries: 0 } });
  const end = Date.now() + LIMIT_MS;
  let sent = 0;
  let made = 0;
  producer.on(producer.events.REQUEST, ({ payload }) => { made += payload.apiName === 'SaslHandshake' ? 1 : 0; });
  await producer.connect();
  try {
    do {
      await producer.send({ topic, messages: [{ partition: 0, value: String(sent) }] });
      sent += 1;
      await pause(PAUSE_MS);
    } while (made < handshakes && Date.now() < end);
  } finally {
    await producer.disconnect();
  }
  return sent;
}

async function read(kafka, { topic }, expected) {
  const consumer = kafka.consumer({ groupId: `reader-${topic}`, maxWaitTimeInMs: 200 });
  const found = [];
  await consumer.connect();
  try {
    await consumer.subscribe({ topic, fromBeginning: true });
    await new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`${found.length} of ${expected} records came`)), LIMIT_MS);
      consumer.run({ eachMessage: async ({ message }) => {
        found.push(Number(message.value.toString()));
        if (found.length === expected) {
          clearTimeout(timer);
          resolve();
        }
      } }).catch(reject);
    });
  } finally {
    await consumer.disconnect();
  }
  return found;
}

async function run(wanted) {
  const kafka = client(wanted);
  try {
    const admin = kafka.admin();
    await admin.connect();
    await admin.createTopics({ topics: [{ topic: wanted.topic }], waitForLeaders: true });
    await admin.disconnect();
    const sent = await produce(kafka, wanted);
    return { error: '', sent, read: await read(kafka, wanted, sent) };
  } catch (error) {
    return { error: `${error.name}: ${error.message}` };
  }
}

async function main() {
  const answers = await Promise.all(JSON.parse(readFileSync(0)).map(run));
  process.stdout.write(`${JSON.stringify(answers)}\n`, () => process.exit());  // a failed client keeps timers
}

main();
