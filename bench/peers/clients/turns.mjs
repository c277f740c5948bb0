// Taking turns, as in turns.py, for peers that run in Node.

import { createInterface } from 'node:readline'

export async function serve (peer) {
  await peer.open()
  say({ ready: true })
  for await (const line of createInterface({ input: process.stdin })) {
    say(await turn(peer, JSON.parse(line)))
  }
  process.exit(0) // not every library stops its timers
}

async function turn (peer, { callers, size, seconds }) {
  await peer.prepare?.(size)
  const begin = performance.now()
  const past = () => (performance.now() - begin) / 1000
  const call = async () => {
    let jobs = 0
    while (past() < seconds) {
      await peer.cycle(size)
      jobs += size
    }
    return jobs
  }
  const done = await Promise.all(Array.from({ length: callers }, call))
  return { jobs: done.reduce((sum, jobs) => sum + jobs), seconds: past() }
}

function say (answer) {
  process.stdout.write(JSON.stringify(answer) + '\n')
}
