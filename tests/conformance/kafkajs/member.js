// One member of a group as a process of its own, saying what it does in the lines of tests/conformance/group_member.py.
//
//   node member.js <bootstrap> <group> <topic>
'use strict'

const readline = require('readline')
const { Kafka, logLevel } = require('kafkajs')

const [bootstrap, group, topic] = process.argv.slice(2)
const say = (kind, ...fields) => process.stdout.write([kind, Number(process.hrtime.bigint()) / 1e9, ...fields].join(' ') + '\n')
const kafka = new Kafka({ clientId: 'member', brokers: [bootstrap], logLevel: logLevel.NOTHING, retry: { initialRetryTime: 100, maxRetryTime: 500, retries: 100 } })
const consumer = kafka.consumer({
  groupId: group,
  maxWaitTimeInMs: 100,
  sessionTimeout: 6000,
  rebalanceTimeout: 10000,
  heartbeatInterval: 300,
  metadataMaxAge: 500,
})

let held = []
let leaving = false
const release = () => {
  if (held.length) say('R', held.join(','))
  held = []
}

async function main() {
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  consumer.on(consumer.events.REBALANCING, release)
  consumer.on(consumer.events.CRASH, release)
  consumer.on(consumer.events.GROUP_JOIN, (event) => {
    release()
    if (leaving) return // a rebalance that was under way may still end
    held = (event.payload.memberAssignment[topic] || []).slice().sort((a, b) => a - b)
    say('A', held.join(',') || '-')
  })
  await consumer.run({
    autoCommit: true,
    autoCommitThreshold: 20,
    autoCommitInterval: 100,
    eachMessage: async ({ partition, message }) => {
      if (leaving) throw new Error('leaving') // so that it is not committed as if it were processed
      say('V', partition, message.value.toString())
    },
  })
}

const leave = async () => {
  leaving = true
  release()
  await consumer.disconnect()
  process.exit(0)
}
readline.createInterface({ input: process.stdin }).once('line', leave).on('close', leave)
main()
