// kafkajs, driven by the conformance tests: one JSON command a line on standard input, one JSON answer a line on
// standard output. Bytes travel as base64; null stays null. Commands run concurrently.
//
//   produce   {bootstrap, topic, codec, acks, retries, messages: [{key, value, headers, partition, timestamp}]} -> [metadata]
//   consume   {bootstrap, group, topics, count, commit} -> [message]     read as a new member, leave when count is reached
//   join      {bootstrap, group, topics, name} -> [partition]            join and stay; answers with the assignment
//   assigned  {name} -> [partition]    received {name} -> [message]    leave {name} -> null
'use strict'

const readline = require('readline')
const { Kafka, CompressionTypes, CompressionCodecs, Partitioners, logLevel } = require('kafkajs')
const lz4 = require('lz4-napi')
const { ZstdCodec } = require('zstd-codec')

CompressionCodecs[CompressionTypes.Snappy] = require('kafkajs-snappy')
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async (encoder) => lz4.compressFrame(encoder.buffer),
  decompress: async (buffer) => lz4.decompressFrame(buffer),
})
const zstd = new Promise((resolve) => ZstdCodec.run((module) => resolve(module)))
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async (encoder) => Buffer.from(new (await zstd).Simple().compress(encoder.buffer)),
  decompress: async (buffer) => Buffer.from(new (await zstd).Streaming().decompress(buffer)),
})

const CODECS = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4,
  zstd: CompressionTypes.ZSTD,
}
const bytes = (text) => (text === null || text === undefined ? null : Buffer.from(text, 'base64'))
const text = (data) => (data === null || data === undefined ? null : Buffer.from(data).toString('base64'))
const kafka = (bootstrap, retries = 8) =>
  new Kafka({ clientId: 'conformance', brokers: [bootstrap], logLevel: logLevel.NOTHING, retry: { initialRetryTime: 50, retries } })

const asHeaders = (pairs) => {
  const headers = {}
  for (const [name, value] of pairs) headers[name] = [...(headers[name] || []), bytes(value)]
  return headers
}
const fromHeaders = (headers) =>
  Object.entries(headers || {}).flatMap(([name, value]) => (Array.isArray(value) ? value : [value]).map((each) => [name, text(each)]))
const asMessage = (topic, partition, message) => ({
  topic,
  partition,
  key: text(message.key),
  value: text(message.value),
  headers: fromHeaders(message.headers),
  timestamp: message.timestamp,
  offset: message.offset,
})

async function produce({ bootstrap, topic, codec, acks, messages, retries }) {
  const producer = kafka(bootstrap, retries).producer({ createPartitioner: Partitioners.DefaultPartitioner, allowAutoTopicCreation: false })
  await producer.connect()
  try {
    return await producer.send({
      topic,
      acks,
      compression: CODECS[codec],
      messages: messages.map((message) => ({
        key: bytes(message.key),
        value: bytes(message.value),
        headers: asHeaders(message.headers),
        ...(message.partition === null ? {} : { partition: message.partition }),
        ...(message.timestamp === null ? {} : { timestamp: String(message.timestamp) }),
      })),
    })
  } finally {
    await producer.disconnect()
  }
}

async function consume({ bootstrap, group, topics, count, commit = false }) {
  const consumer = kafka(bootstrap).consumer({ groupId: group, maxWaitTimeInMs: 100, sessionTimeout: 10000, rebalanceTimeout: 10000, heartbeatInterval: 500 })
  await consumer.connect()
  const received = []
  try {
    await consumer.subscribe({ topics, fromBeginning: true })
    await new Promise((resolve, reject) => {
      consumer.on(consumer.events.CRASH, (event) => reject(event.payload.error))
      consumer.run({
        autoCommit: false,
        eachMessage: async ({ topic, partition, message }) => {
          if (received.length >= count) return
          received.push(asMessage(topic, partition, message))
          if (received.length === count) resolve()
        },
      }).catch(reject)
    })
    if (commit) {
      const next = new Map()
      for (const { topic, partition, offset } of received) {
        next.set(`${topic} ${partition}`, { topic, partition, offset: String(BigInt(offset) + 1n) })
      }
      await consumer.commitOffsets([...next.values()])
    }
  } finally {
    await consumer.disconnect()
  }
  return received
}

const members = new Map()

async function join({ bootstrap, group, topics, name }) {
  const consumer = kafka(bootstrap).consumer({ groupId: group, maxWaitTimeInMs: 100, sessionTimeout: 10000, rebalanceTimeout: 10000, heartbeatInterval: 200 })
  const member = { consumer, assignment: {}, received: [] }
  members.set(name, member)
  await consumer.connect()
  await consumer.subscribe({ topics, fromBeginning: true })
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.GROUP_JOIN, (event) => {
      member.assignment = event.payload.memberAssignment
      resolve()
    })
    consumer.on(consumer.events.CRASH, (event) => reject(event.payload.error))
    consumer.run({
      autoCommit: true,
      autoCommitInterval: 100,
      eachMessage: async ({ topic, partition, message }) => {
        member.received.push(asMessage(topic, partition, message))
      },
    }).catch(reject)
  })
  return member.assignment
}

const commands = {
  produce,
  consume,
  join,
  assigned: async ({ name }) => members.get(name).assignment,
  received: async ({ name }) => members.get(name).received,
  leave: async ({ name }) => {
    await members.get(name).consumer.disconnect()
    members.delete(name)
    return null
  },
}

readline.createInterface({ input: process.stdin }).on('line', async (line) => {
  const request = JSON.parse(line)
  let answer
  try {
    answer = { result: await commands[request.command](request) }
  } catch (error) {
    answer = { error: `${error.name}: ${error.message}` }
  }
  process.stdout.write(JSON.stringify({ number: request.number, ...answer }) + '\n')
}).on('close', () => process.exit(0))
