// graphile-worker: a runner in the process that sends, for batches with a local queue and batched completion. It has no lease per job to keep alive.

import { Logger, makeWorkerUtils, run } from 'graphile-worker'
import { serve } from './turns.mjs'

const connectionString = process.argv[2]
const logger = new Logger(() => () => {})
const waiting = new Map()
let batches = 0
let utils
let runner
let batching

function handle ({ batch }) {
  const each = waiting.get(batch)
  if (--each.left === 0) each.done()
}

await serve({
  async open () {
    utils = await makeWorkerUtils({ connectionString, maxPoolSize: 16, logger })
    await utils.migrate()
  },

  async prepare (size) {
    if (batching === size > 1) return
    batching = size > 1
    await runner?.stop()
    runner = await run({
      connectionString,
      logger,
      maxPoolSize: 33,
      concurrency: 32,
      noHandleSignals: true,
      preset: batching ? { worker: { localQueue: { size: 400 }, completeJobBatchDelay: 0 } } : {},
      taskList: { work: handle }
    })
  },

  async cycle (size) {
    const batch = ++batches
    const done = new Promise((resolve) => waiting.set(batch, { left: size, done: resolve }))
    if (size === 1) await utils.addJob('work', { batch })
    else await utils.addJobs(Array.from({ length: size }, () => ({ identifier: 'work', payload: { batch } })))
    await done
    waiting.delete(batch)
  }
})
