import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';

/** A broker in a process of its own, with a fresh directory. A test controls it through its control port. */
export class Kbroker {
  address = '127.0.0.1:0';
  control = '127.0.0.1:0';
  isClosed = false;

  static async start() {
    const broker = new Kbroker();
    broker.directory = await mkdtemp(join(tmpdir(), 'kbroker-'));
    await broker.restart();
    return broker;
  }

  /** Starts the process, and waits until it is ready. After the first start, the ports stay the same. */
  async restart() {
    const options = { '--listen': this.address, '--control': this.control, '--data-dir': this.directory,
      '--set': 'group.initial.rebalance.delay.ms=0' };
    this.process = spawn('kbroker', ['serve', '--log-json', ...Object.entries(options).flat()],
      { stdio: ['ignore', 'ignore', 'pipe'] });
    this.ended = once(this.process, 'exit');
    const log = [];
    await new Promise((resolve, reject) => {
      createInterface({ input: this.process.stderr })
        .on('line', (line) => {
          const entry = JSON.parse(line);
          if (entry.event === 'control') this.control = entry.address;
          if (entry.event === 'ready') { this.address = entry.address; resolve(); }
          log.push(entry.message);
        })
        .on('close', () => reject(new Error(`kbroker has ended:\n${log.join('\n')}`)));
    });
  }

  /** Starts the process again whenever it ends, from now on. */
  async keepRunning() {
    while (!this.isClosed) {
      await this.ended;
      if (!this.isClosed) await this.restart().catch((error) => { if (!this.isClosed) throw error; });
    }
  }

  /** Kills the process. The directory stays. */
  async kill() {
    this.process.kill('SIGKILL');
    await this.ended;
  }

  async close() {
    this.isClosed = true;
    await this.kill();
    await rm(this.directory, { recursive: true });
  }

  /** Sends a request to the control port, and returns its answer. */
  async ask(method, path, body) {
    const answer = await fetch(`http://${this.control}${path}`, {
      method, body: body && JSON.stringify(body), headers: { 'content-type': 'application/json' } });
    const found = await answer.json();
    if (!answer.ok) throw new Error(`${method} ${path}: ${found.error}`);
    return found;
  }

  /** Adds a rule: what happens to the operations that reach a point. Returns the id of the rule. */
  async rule(point, action, select = {}) {
    return (await this.ask('POST', '/rules', { point, action, select })).id;
  }

  /** Waits until a rule has matched an operation. */
  async matched(id) {
    const rule = await this.ask('GET', `/rules/${id}?matched=1&wait_ms=30000`);
    if (rule.matched === 0) throw new Error(`rule ${id} has matched nothing for 30 s`);
  }

  /** Returns the steps that operations have reached, in their order. */
  async steps() {
    return (await this.ask('GET', '/steps')).steps;
  }

  /** Moves the clock of the broker, and waits until all that is due has happened. */
  async advance(ms) {
    await this.ask('POST', '/clock', { advance_ms: ms });
  }
}

/** The facts that select a step among all. */
const FACTS = ['api', 'client_id', 'topic', 'partition', 'group', 'transactional_id', 'occurrence'];

/** Calls `run(broker)` once, then again for each chosen step that it reached, with the broker killed at that step. */
export async function explore(run, isChosen) {
  const first = await Kbroker.start();
  const steps = await run(first).then(() => first.steps()).finally(() => first.close());
  const chosen = steps.filter(isChosen);
  for (const step of chosen) {
    const broker = await Kbroker.start();
    try {
      const facts = Object.entries(step).filter(([name, value]) => FACTS.includes(name) && value !== null);
      await broker.rule(step.point, 'kill', Object.fromEntries(facts));
      broker.keepRunning();
      await run(broker);
    } catch (error) {
      throw new Error(`with the broker killed at ${JSON.stringify(step)}`, { cause: error });
    } finally {
      await broker.close();
    }
  }
  return chosen;
}
