// kafkajs against a live broker. `node judge.js BOOTSTRAP SCENARIO...` runs the scenarios in order and prints one JSON
// line for each: its name, and what was wrong, or an empty string.
'use strict';

const assert = require('node:assert/strict');
const { randomUUID } = require('node:crypto');
const readline = require('node:readline');
const { Kafka, logLevel, CompressionTypes } = require('kafkajs');

const LIMIT_MS = 60_000;
const [bootstrap, ...names] = process.argv.slice(2);
const kafka = new Kafka({ clientId: 'judge', brokers: [bootstrap], logLevel: logLevel.NOTHING, retry: { retries: 20 } });
const admin = kafka.admin();

const fresh = (name) => `${name}-${randomUUID()}`;
const values = (start, stop) => Array.from({ length: stop - start }, (_, i) => `v${start + i}`).sort();
const messages = (partitions, start, stop) =>
  Array.from({ length: stop - start }, (_, i) => ({ partition: (start + i) % partitions, value: `v${start + i}` }));

async function newTopic(name, numPartitions) {
  const topic = fresh(name);
  await admin.createTopics({ topics: [{ topic, numPartitions, replicationFactor: 1 }], waitForLeaders: true });
  return topic;
}

async function withProducer(settings, use) {
  const producer = kafka.producer({ allowAutoTopicCreation: false, ...settings });
  await producer.connect();
  try {
    return await use(producer);
  } finally {
    await producer.disconnect();
  }
}

const withTransactions = (id, settings, use) =>
  withProducer({ transactionalId: id, idempotent: true, maxInFlightRequests: 1, ...settings }, use);

// A promise that is kept when `holds` is, asked whenever `changed` is called.
function waiting(holds) {
  let keep, timer;
  const kept = new Promise((resolve, reject) => {
    keep = resolve;
    timer = setTimeout(() => reject(new Error(`did not come about in ${LIMIT_MS} ms`)), LIMIT_MS);
  });
  const changed = () => { if (holds()) { clearTimeout(timer); keep(); } };
  return { kept, changed };
}

// Reads a topic from its beginning until `enough(values)`. Whatever a consumer of this isolation level must not see
// would come before what it must see.
async function read(topic, readUncommitted, enough) {
  const consumer = kafka.consumer({ groupId: fresh('reader'), readUncommitted, maxWaitTimeInMs: 200 });
  const seen = [];
  const done = waiting(() => enough(seen));
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  await consumer.run({
    autoCommit: false,
    eachMessage: async ({ message }) => { seen.push(message); done.changed(); },
  });
  try {
    await done.kept;
  } finally {
    await consumer.disconnect();
  }
  return seen;
}

async function expectValues(topic, readUncommitted, expected) {
  const seen = await read(topic, readUncommitted, (found) => found.length >= expected.length);
  assert.deepEqual(seen.map((message) => message.value.toString()).sort(), expected);
}

const expectCommitted = (topic, expected) => expectValues(topic, false, expected);
const expectUncommitted = (topic, expected) => expectValues(topic, true, expected);

async function committedOffset(groupId, topic) {
  const [{ partitions: [{ offset }] }] = await admin.fetchOffsets({ groupId, topics: [topic] });
  return offset;
}

async function commit(producer, topic, batch) {
  const transaction = await producer.transaction();
  await transaction.send({ topic, messages: batch });
  await transaction.commit();
}

const scenarios = {
  async plain_produce() {
    const topic = await newTopic('plain', 1);
    await withProducer({}, async (producer) => {
      const batch = Array.from({ length: 100 }, (_, i) => ({ key: `k${i}`, value: `v${i}`, headers: { h: `${i}` } }));
      const [{ baseOffset }] = await producer.send({ topic, acks: 1, messages: batch, compression: CompressionTypes.GZIP });
      assert.equal(baseOffset, '0');
    });
    const seen = await read(topic, true, (found) => found.length >= 100);
    seen.forEach((message, i) => {
      assert.equal(message.offset, `${i}`);
      assert.equal(message.key.toString(), `k${i}`);
      assert.equal(message.value.toString(), `v${i}`);
      assert.equal(message.headers.h.toString(), `${i}`);
    });
  },

  async idempotent_produce() {
    const topic = await newTopic('idempotent', 3);
    await withProducer({ idempotent: true, maxInFlightRequests: 1 }, async (producer) => {
      for (let start = 0; start < 300; start += 30) {
        await producer.send({ topic, messages: messages(3, start, start + 30) });
      }
    });
    await expectUncommitted(topic, values(0, 300));
  },

  async group_rebalance() {
    const [topic, groupId] = [await newTopic('group', 4), fresh('group')];
    const seen = new Set();
    const owned = new Map();
    let wait = waiting(() => true);
    const until = (holds) => { wait = waiting(holds); wait.changed(); return wait.kept; };
    const counts = () => [...owned.values()].sort().join();
    const join = async (name) => {
      const consumer = kafka.consumer({ groupId, sessionTimeout: 10_000, heartbeatInterval: 500, maxWaitTimeInMs: 200 });
      consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
        owned.set(name, Object.values(payload.memberAssignment).flat().length);
        wait.changed();
      });
      await consumer.connect();
      await consumer.subscribe({ topic, fromBeginning: true });
      await consumer.run({ eachMessage: async ({ message }) => { seen.add(message.value.toString()); wait.changed(); } });
      return consumer;
    };
    const produce = (start, stop) => withProducer({}, (producer) =>
      producer.send({ topic, messages: messages(4, start, stop) }));

    await produce(0, 40);
    const first = await join('first');
    await until(() => counts() === '4' && seen.size === 40);
    const second = await join('second');
    await until(() => counts() === '2,2');
    await produce(40, 80);
    await until(() => seen.size === 80);
    owned.delete('second');
    await second.disconnect();
    await until(() => counts() === '4');
    await first.disconnect();
    assert.deepEqual([...seen].sort(), values(0, 80));
    const [{ partitions }] = await admin.fetchOffsets({ groupId, topics: [topic] });
    assert.equal(partitions.reduce((sum, { offset }) => sum + Number(offset), 0), 80);
  },

  async commit_over_partitions() {
    const topic = await newTopic('commit', 3);
    await withTransactions(fresh('tx'), {}, async (producer) => {
      for (let start = 0; start < 30; start += 6) {
        await commit(producer, topic, messages(3, start, start + 6));
      }
    });
    await expectCommitted(topic, values(0, 30));
  },

  async abort_over_partitions() {
    const topic = await newTopic('abort', 2);
    await withTransactions(fresh('tx'), {}, async (producer) => {
      const transaction = await producer.transaction();
      await transaction.send({ topic, messages: messages(2, 0, 10) });
      await expectUncommitted(topic, values(0, 10));
      await transaction.abort();
      await commit(producer, topic, messages(2, 10, 20));
    });
    await expectCommitted(topic, values(10, 20));
    await expectUncommitted(topic, values(0, 20));
  },

  async send_offsets() {
    const [source, target, groupId] = [await newTopic('source', 1), await newTopic('target', 1), fresh('group')];
    const offsets = (offset) => ({ consumerGroupId: groupId, topics: [{ topic: source, partitions: [{ partition: 0, offset }] }] });
    await withTransactions(fresh('tx'), {}, async (producer) => {
      const aborted = await producer.transaction();
      await aborted.send({ topic: target, messages: [{ value: 'aborted' }] });
      await aborted.sendOffsets(offsets('5'));
      await aborted.abort();
      const committed = await producer.transaction();
      await committed.send({ topic: target, messages: [{ value: 'v0' }] });
      await committed.sendOffsets(offsets('10'));
      await committed.commit();
    });
    await expectCommitted(target, values(0, 1));
    assert.equal(await committedOffset(groupId, source), '10');
  },

  async fencing() {
    const [topic, id] = [await newTopic('fencing', 1), fresh('tx')];
    await withTransactions(id, { retry: { retries: 1 } }, async (old) => {
      const zombie = await old.transaction();
      await zombie.send({ topic, messages: [{ value: 'old' }] });
      await withTransactions(id, {}, async (young) => {
        const transaction = await young.transaction();  // not before does kafkajs ask for a new epoch
        await assert.rejects(zombie.commit(), (error) => ['PRODUCER_FENCED', 'INVALID_PRODUCER_EPOCH'].includes(
          error.type ?? error.cause?.type));
        await transaction.send({ topic, messages: messages(1, 0, 1) });
        await transaction.commit();
      });
    });
    await expectCommitted(topic, values(0, 1));
  },

  async timeout_abort() {
    const topic = await newTopic('timeout', 1);
    await withTransactions(fresh('tx'), { transactionTimeout: 1000, retry: { retries: 1 } }, async (producer) => {
      const late = await producer.transaction();
      await late.send({ topic, messages: [{ value: 'late' }] });
      await withProducer({}, (plain) => plain.send({ topic, messages: messages(1, 0, 1) }));
      // The last stable offset holds v0 back until the coordinator has aborted the late transaction.
      await expectCommitted(topic, values(0, 1));
      await assert.rejects(late.commit());
    });
  },

  // Says "waiting" with a transaction open, and goes on when a line comes in: the broker is another one by then.
  async restart_in_transaction() {
    const topic = await newTopic('restart', 2);
    await withTransactions(fresh('tx'), {}, async (producer) => {
      const transaction = await producer.transaction();
      await transaction.send({ topic, messages: messages(2, 0, 10) });
      console.log('waiting');
      const lines = readline.createInterface({ input: process.stdin });
      await new Promise((resolve) => lines.once('line', resolve));
      lines.close();
      await transaction.send({ topic, messages: messages(2, 10, 20) });
      await transaction.commit();
    });
    await expectCommitted(topic, values(0, 20));
  },
};

async function main() {
  await admin.connect();
  for (const scenario of names) {
    let error = '';
    try {
      await scenarios[scenario]();
    } catch (seen) {
      error = seen.stack ?? String(seen);
    }
    console.log(JSON.stringify({ scenario, error }));
  }
  await admin.disconnect();
}

main();
