import { Kafka, logLevel } from 'kafkajs';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { explore, Kbroker } from './kbroker.mjs';

vi.setConfig({ testTimeout: 120_000 });

let broker;

beforeEach(async () => { broker = await Kbroker.start(); });
afterEach(() => broker.close());

test('a payment survives a crash between the decision to commit and its markers', async () => {
  const kafka = await connect(broker);
  const producer = kafka.producer({ transactionalId: 'shop', idempotent: true, maxInFlightRequests: 1 });
  await producer.connect();
  const transaction = await producer.transaction();
  await transaction.send({ topic: 'payments', messages: [{ value: '10' }] });
  const held = await broker.rule('transaction.prepared', 'hold');
  const isCommitted = transaction.commit().then(() => true, () => false);
  await broker.matched(held);
  await broker.kill();
  await broker.restart();
  expect(await isCommitted).toBe(false); // kafkajs does not ask again, so the application cannot know it
  expect(await values(broker)).toEqual(['10']);
  await producer.disconnect();
});

test('a transaction without an end is aborted after its timeout', async () => {
  const kafka = await connect(broker);
  const producer = kafka.producer({ transactionalId: 'shop', transactionTimeout: 900_000, maxInFlightRequests: 1 });
  await producer.connect();
  const transaction = await producer.transaction();
  await transaction.send({ topic: 'payments', messages: [{ value: 'never committed' }] });
  await broker.advance(16 * 60_000);
  expect(await values(broker)).toEqual([]); // without the clock, the reader would wait for 16 minutes
  await producer.disconnect();
});

test('a payment whose acknowledgement is lost is written once', async () => {
  const kafka = await connect(broker);
  const lost = await broker.rule('reply', 'drop', { api: 'Produce', occurrence: 1 });
  await pay(kafka);
  expect(await values(broker)).toEqual(['10']);
  expect((await broker.ask('GET', `/rules/${lost}`)).matched).toBe(1);
});

test('a payment is written once, whatever the broker does when it dies', async () => {
  const steps = await explore(async (fresh) => {
    const kafka = await connect(fresh);
    await pay(kafka);
    expect(await values(fresh)).toEqual(['10']);
  }, (step) => step.client_id === 'shop' && step.api === 'Produce');
  expect(steps.length).toBeGreaterThan(1);
});

/** The application. */
async function pay(kafka) {
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
  await producer.connect();
  await producer.send({ topic: 'payments', messages: [{ value: '10' }] });
  await producer.disconnect();
}

async function connect(broker) {
  const kafka = kafkaOf(broker, 'shop');
  await withClient(kafka.admin(), (admin) => admin.createTopics({ topics: [{ topic: 'payments' }] }));
  return kafka;
}

/** Returns the values of all records that a reader with read_committed gets. A last record ends the reading. */
async function values(broker) {
  const kafka = kafkaOf(broker, 'test');
  await withClient(kafka.producer(), (producer) => producer.send({ topic: 'payments', messages: [{ value: 'end' }] }));
  return withClient(kafka.consumer({ groupId: 'test' }), async (consumer) => {
    await consumer.subscribe({ topic: 'payments', fromBeginning: true });
    const found = [];
    await new Promise((resolve) => {
      consumer.run({ eachMessage: async ({ message }) => {
        if (message.value.toString() === 'end') resolve();
        else found.push(message.value.toString());
      } });
    });
    return found;
  });
}

function kafkaOf({ address }, clientId) {
  const retry = { initialRetryTime: 50, retries: 20 };
  return new Kafka({ brokers: [address], clientId, logLevel: logLevel.NOTHING, retry });
}

async function withClient(client, use) {
  await client.connect();
  try {
    return await use(client);
  } finally {
    await client.disconnect();
  }
}
