// A transactional producer of kafkajs for tests/support/clients/line_producer.py. `node producer.js BOOTSTRAP ID`.
'use strict';

const readline = require('node:readline');
const { Kafka, logLevel } = require('kafkajs');

const [bootstrap, transactionalId] = process.argv.slice(2);
const kafka = new Kafka({ clientId: 'lines', brokers: [bootstrap], logLevel: logLevel.NOTHING, retry: { retries: 20 } });
const producer = kafka.producer({ transactionalId, idempotent: true, maxInFlightRequests: 1, allowAutoTopicCreation: false });
const MOST_TRIES = 3;
let transaction;

const commands = {
  async begin() { transaction = await producer.transaction(); },
  async send(topic, partition, value) {
    await transaction.send({ topic, messages: [{ partition: Number(partition), value }] });
  },
  async flush() { },  // send has waited for the acknowledgement
  async offsets(consumerGroupId, topic, partition, offset) {
    await transaction.sendOffsets({ consumerGroupId, topics: [{ topic, partitions: [{ partition: Number(partition), offset }] }] });
  },
  async commit() { await transaction.commit(); },
  async abort() { await transaction.abort(); },
};

// kafkajs reports a broken connection, and leaves the repetition to the program.
async function outcome(command) {
  for (let tries = 1; ; tries += 1) {
    try {
      await command();
      return 'ok';
    } catch (error) {
      if (tries === MOST_TRIES || !String(error).includes('ConnectionClosed')) {
        return `failed ${String(error).replaceAll('\n', ' ')}`;
      }
    }
  }
}

async function main() {
  await producer.connect();
  console.log('ok');
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [name, ...words] = line.split(' ');
    console.log(await outcome(() => commands[name](...words)));
  }
  await producer.disconnect();
}

main();
