// pg-boss: its calls for one and for many, over its own pool.

import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { PgBoss } from 'pg-boss'
import { serve } from './turns.mjs'

const QUEUE = 'bench'
const boss = new PgBoss({ connectionString: process.argv[2], max: 16 })
boss.on('error', (error) => console.error(error))

await serve({
  async open () {
    await boss.start()
    await boss.createQueue(QUEUE, { heartbeatSeconds: 60 })
  },

  async cycle (size) {
    if (size === 1) await boss.send(QUEUE, { n: 1 })
    else await boss.insert(QUEUE, Array.from({ length: size }, () => ({ data: { n: 1 } })))
    for (let left = size; left > 0;) {
      const ids = (await boss.fetch(QUEUE, { batchSize: left })).map((job) => job.id)
      if (ids.length === 0) {
        await sleep(1)
        continue
      }
      assert.equal((await boss.touch(QUEUE, ids)).affected, ids.length)
      assert.equal((await boss.complete(QUEUE, ids)).affected, ids.length)
      left -= ids.length
    }
  }
})
