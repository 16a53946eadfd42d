// Writes a transaction to the broker of the page's function, and reads it.
import kafkajs from 'kafkajs';
import { startKbroker } from './kbroker.mjs';

const { container, bootstrapServers } = await startKbroker();
const kafka = new kafkajs.Kafka({ brokers: [bootstrapServers], logLevel: kafkajs.logLevel.ERROR });
const producer = kafka.producer({
  transactionalId: 'writer', idempotent: true, maxInFlightRequests: 1,
  createPartitioner: kafkajs.Partitioners.DefaultPartitioner,
});
await producer.connect();
const transaction = await producer.transaction();
await transaction.send({ topic: 'orders', messages: [{ value: 'kept' }] });
await transaction.commit();
await producer.disconnect();
const consumer = kafka.consumer({ groupId: 'reader' });
await consumer.connect();
await consumer.subscribe({ topic: 'orders', fromBeginning: true });
const value = await new Promise((resolve) => {
  consumer.run({ eachMessage: async ({ message }) => resolve(message.value.toString()) });
});
console.log('read', value);
await consumer.disconnect();
await container.stop();
