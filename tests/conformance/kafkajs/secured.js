// kafkajs on secured listeners: one JSON list of cases on standard input, one JSON list of outcomes on standard output.
//   case     {bootstrap, ssl: null | {ca, cert, key} (paths), sasl: null | {mechanism, username, password, token}, topic}
//   outcome  {received: [value]} or {error}
'use strict'

const fs = require('fs')
const { Kafka, Partitioners, logLevel } = require('kafkajs')

const read = (path) => (path ? fs.readFileSync(path, 'utf-8') : undefined)

async function run({ bootstrap, ssl, sasl, topic }) {
  const kafka = new Kafka({
    clientId: 'secured',
    brokers: [bootstrap],
    logLevel: logLevel.NOTHING,
    retry: { initialRetryTime: 50, retries: 2 },
    ssl: ssl ? { ca: [read(ssl.ca)], cert: read(ssl.cert), key: read(ssl.key) } : undefined,
    sasl: !sasl
      ? undefined
      : sasl.token
        ? { mechanism: 'oauthbearer', oauthBearerProvider: async () => ({ value: sasl.token }) }
        : { mechanism: sasl.mechanism.toLowerCase(), username: sasl.username, password: sasl.password },
  })
  const admin = kafka.admin()
  await admin.connect()
  await admin.createTopics({ topics: [{ topic, numPartitions: 1, replicationFactor: 1 }] })
  await admin.disconnect()
  const producer = kafka.producer({ createPartitioner: Partitioners.DefaultPartitioner })
  await producer.connect()
  await producer.send({ topic, messages: [{ value: 'one' }, { value: 'two' }] })
  await producer.disconnect()
  const writer = kafka.producer({
    createPartitioner: Partitioners.DefaultPartitioner, transactionalId: `${topic}-id`, maxInFlightRequests: 1, idempotent: true,
  })
  await writer.connect()
  for (const value of ['committed', 'aborted']) {
    const transaction = await writer.transaction()
    await transaction.send({ topic, messages: [{ value }] })
    await (value === 'committed' ? transaction.commit() : transaction.abort())
  }
  await writer.disconnect()
  const consumer = kafka.consumer({ groupId: `${topic}-group`, maxWaitTimeInMs: 100, heartbeatInterval: 500, sessionTimeout: 10000, rebalanceTimeout: 10000 })
  await consumer.connect()
  const received = []
  try {
    await consumer.subscribe({ topics: [topic], fromBeginning: true })
    await new Promise((resolve, reject) => {
      consumer.on(consumer.events.CRASH, (event) => reject(event.payload.error))
      consumer.run({
        eachMessage: async ({ message }) => {
          received.push(message.value.toString())
          if (received.length === 3) resolve()
        },
      }).catch(reject)
    })
  } finally {
    await consumer.disconnect()
  }
  return { received }
}

async function main() {
  const outcomes = []
  for (const each of JSON.parse(fs.readFileSync(0, 'utf-8'))) {
    outcomes.push(await run(each).catch((error) => ({ error: `${error.name}: ${error.message}` })))
  }
  process.stdout.write(JSON.stringify(outcomes), () => process.exit(0))
}

main()
