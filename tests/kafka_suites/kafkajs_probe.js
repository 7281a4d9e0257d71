// Writes and reads with KafkaJS. Arguments: bootstrap address, topic, codec (none or gzip). Ends with 1 where a record is missing.
const { Kafka, CompressionTypes, logLevel } = require('kafkajs')

const [bootstrap, topic, codec] = process.argv.slice(2)
const RECORDS = 200
const client = new Kafka({ clientId: 'probe', brokers: bootstrap.split(','), logLevel: logLevel.ERROR })

async function main() {
  const admin = client.admin()
  await admin.connect()
  await admin.createTopics({ topics: [{ topic, numPartitions: 2, replicationFactor: 1 }] })

  const producer = client.producer({ idempotent: true, maxInFlightRequests: 1 })
  await producer.connect()
  const messages = [...Array(RECORDS).keys()].map((n) => ({ key: `key-${n}`, value: `value-${n} `.repeat((n % 20) + 1) }))
  await producer.send({ topic, messages, compression: codec === 'gzip' ? CompressionTypes.GZIP : CompressionTypes.None })
  await producer.disconnect()

  const consumer = client.consumer({ groupId: topic })
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  const found = new Map()
  await new Promise((resolve) => {
    consumer.run({
      eachMessage: async ({ message }) => {
        found.set(message.key.toString(), message.value.toString())
        if (found.size === RECORDS) resolve()
      },
    })
  })
  await consumer.disconnect()
  for (const { key, value } of messages) {
    if (found.get(key) !== value) throw new Error(`${key} came back as ${found.get(key)}`)
  }

  const committed = await admin.fetchOffsets({ groupId: topic, topics: [topic] })
  const total = committed[0].partitions.reduce((sum, { offset }) => sum + Math.max(Number(offset), 0), 0)
  if (total !== RECORDS) throw new Error(`committed ${total} of ${RECORDS}`)
  await admin.deleteTopics({ topics: [topic] })
  await admin.disconnect()
}

main().then(
  () => process.exit(0),
  (error) => {
    console.error(error.stack)
    process.exit(1)
  }
)
