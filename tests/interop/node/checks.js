'use strict';
// What ali-ons does with a cluster, all in one process: each check is a function below. Standard output has one JSON object a
// check: {"check", "ok", "detail"}; a failed one has "error". The process ends with its standard input, which is its lifeline.
//
//   node checks.js NAMESRV CHECK...       topics node_<check> must be there (ali-ons creates none)

const assert = require('assert');
const crypto = require('crypto');
const { Consumer, Message, Producer } = require('ali-ons');

const FIRST = 'CONSUME_FROM_FIRST_OFFSET';
const WAIT_MS = 90 * 1000;
const quiet = { info() {}, debug() {}, warn() {}, error(...said) { console.error(...said); } };
let clients = 0;

function sleep(ms) {
  return new Promise(resolve => setTimeout(resolve, ms));
}

async function until(what, reached) {
  const end = Date.now() + WAIT_MS;
  while (!reached()) {
    assert(Date.now() < end, `not within ${WAIT_MS} ms: ${what}`);
    await sleep(20);
  }
}

function numbered(prefix, count) {
  return Array.from({ length: count }, (_, i) => `${prefix}${i}`).sort();
}

class Scene {
  constructor(nameSrv, check) {
    this.topic = `node_${check}`;
    this.group = `node_group_${check}`;
    const { INTEROP_ACCESS_KEY: accessKey, INTEROP_SECRET_KEY: secretKey } = process.env;
    this.options = { nameSrv, httpclient: {}, logger: quiet, ...(accessKey ? { accessKey, secretKey } : {}) };
    this.opened = [];
  }

  async producer() {
    clients++;
    const made = new Producer({ ...this.options, producerGroup: `p_${this.group}`, instanceName: `interop-${clients}` });
    made.on('error', () => {});
    this.opened.push(made);
    await made.ready();
    return made;
  }

  /** A member of the check's group; `take` is given each message. */
  consumer(filter, take, more = {}) {
    clients++;
    const made = new Consumer({
      ...this.options, consumerGroup: this.group, consumeFromWhere: FIRST, instanceName: `interop-${clients}`, ...more,
    });
    made.on('error', () => {});
    this.opened.push(made);
    made.subscribe(this.topic, filter, async message => take(message));
    return made;
  }

  queuesOf(member) {
    return Array.from(member.processQueueTable.values()).filter(held => held.messageQueue.topic === this.topic).length;
  }

  async send(producer, prefix, count) {
    for (let i = 0; i < count; i++) {
      await producer.send(new Message(this.topic, `${prefix}${i}`));
    }
  }

  async close() {
    for (const client of this.opened) {
      await client.close();
    }
  }
}

const CHECKS = {
  async send_sync(scene) {
    const producer = await scene.producer();
    const places = new Set();
    const queues = new Set();
    for (let i = 0; i < 20; i++) {
      const message = new Message(scene.topic, 'TagA', `m${i}`);
      message.keys = [ `key${i}`, 'common' ];
      message.properties.color = 'grün';
      const result = await producer.send(message);
      assert.strictEqual(result.sendStatus, 'SEND_OK');
      places.add(`${result.messageQueue.queueId}@${result.queueOffset}`);
      queues.add(result.messageQueue.queueId);
    }
    assert.strictEqual(places.size, 20);
    assert.strictEqual(queues.size, 4);
    const got = [];
    scene.consumer('*', message => got.push(message));
    await until('all messages', () => got.length >= 20);
    assert.deepStrictEqual(got.map(message => message.body.toString()).sort(), numbered('m', 20));
    for (const message of got) {
      const number = message.body.toString().slice(1);
      assert.strictEqual(message.tags, 'TagA');
      assert.strictEqual(message.keys, `key${number} common`);
      assert.strictEqual(message.properties.color, 'grün');
    }
    return { got: got.length };
  },

  async send_compressed(scene) {
    const producer = await scene.producer();
    const body = '0123456789abcdef'.repeat(4096);
    await producer.send(new Message(scene.topic, body));
    const got = [];
    scene.consumer('*', message => got.push(message));
    await until('the message', () => got.length);
    assert.strictEqual(got[0].body.toString(), body);
    assert(got[0].storeSize < body.length / 4, `stored compressed: ${got[0].storeSize}`);
    return { store_size: got[0].storeSize };
  },

  async send_by_sharding_key(scene) {
    const producer = await scene.producer();
    // ali-ons takes the id of the first queue for none (`queueIds[index] || ''`): keys that hash to it go to any queue.
    const keys = numbered('key', 12).filter(key => crypto.createHash('md5').update(key).digest().readUInt32BE() % 4);
    const used = new Set();
    for (const key of keys) {
      const queues = new Set();
      for (let i = 0; i < 5; i++) {
        const message = new Message(scene.topic, `${key}${i}`);
        message.shardingKey = key;
        queues.add((await producer.send(message)).messageQueue.queueId);
      }
      assert.strictEqual(queues.size, 1, `queues of ${key}: ${[ ...queues ]}`);
      queues.forEach(queue => used.add(queue));
    }
    assert(used.size > 1, 'all keys in one queue');
    return { queues: used.size };
  },

  async tag_filter(scene) {
    const producer = await scene.producer();
    const tags = [ 'TagA', 'TagB', 'TagC', 'Aa', 'BB' ];
    for (let i = 0; i < 40; i++) {
      await producer.send(new Message(scene.topic, tags[i % 5], `${tags[i % 5]}-${i}`));
    }
    const got = [];
    scene.consumer('TagA || BB', message => got.push(message.body.toString()));
    await until('the chosen tags', () => got.length >= 16);
    await sleep(300);
    assert.strictEqual(got.length, 16);
    assert(got.every(body => body.startsWith('TagA-') || body.startsWith('BB-')), got.join());
    return { got: got.length };
  },

  async sql_filter(scene) {
    const producer = await scene.producer();
    for (let i = 0; i < 12; i++) {
      const message = new Message(scene.topic, `m${i}`);
      message.properties.n = String(i);
      await producer.send(message);
    }
    const got = [];
    scene.consumer({ expressionType: 'SQL92', subString: 'n > 7' }, message => got.push(message.body.toString()));
    await until('the chosen messages', () => got.length >= 4);
    await sleep(300);
    assert.deepStrictEqual(got.sort(), [ 'm10', 'm11', 'm8', 'm9' ]);
    return { got: got.length };
  },

  async delay_level(scene) {
    const producer = await scene.producer();
    const got = [];
    scene.consumer('*', message => got.push(Date.now()));
    const message = new Message(scene.topic, 'later');
    message.delayTimeLevel = 2;
    const sent = Date.now();
    await producer.send(message);
    await until('the delayed message', () => got.length);
    assert(got[0] - sent >= 4500, `after ${got[0] - sent} ms`);
    return { waited_ms: got[0] - sent };
  },

  // The library knows no delivery time, but sends the property of one.
  async timer(scene) {
    const producer = await scene.producer();
    const got = [];
    scene.consumer('*', message => got.push(Date.now()));
    const message = new Message(scene.topic, 'at its time');
    message.properties.TIMER_DELAY_MS = '3000';
    const sent = Date.now();
    await producer.send(message);
    await until('the message', () => got.length);
    assert(got[0] - sent >= 2900, `after ${got[0] - sent} ms`);
    return { waited_ms: got[0] - sent };
  },

  async retry(scene) {
    const producer = await scene.producer();
    const got = [];
    scene.consumer('*', message => {
      got.push([ message.body.toString(), message.reconsumeTimes, message.topic ]);
      return message.reconsumeTimes ? undefined : Consumer.ACTION_RETRY;
    });
    await producer.send(new Message(scene.topic, 'again'));
    await until('the second delivery', () => got.length >= 2);
    assert.deepStrictEqual(got, [[ 'again', 0, scene.topic ], [ 'again', 1, scene.topic ]]);
    return { got };
  },

  async rebalance(scene) {
    const producer = await scene.producer();
    const got = [[], []];
    const members = [ scene.consumer('*', message => got[0].push(message.body.toString())) ];
    await until('all queues for one', () => scene.queuesOf(members[0]) === 4);
    await scene.send(producer, 'alone', 20);
    await until('messages for one', () => got[0].length >= 20);
    members.push(scene.consumer('*', message => got[1].push(message.body.toString())));
    await until('two queues each', () => members.every(member => scene.queuesOf(member) === 2));
    await scene.send(producer, 'shared', 40);
    await until('messages for two', () => new Set([ ...got[0], ...got[1] ]).size >= 60);
    const second = got[1].filter(body => body.startsWith('shared')).length;
    assert(second > 0 && second < 40, `the second got ${second}`);
    return { second };
  },

  async broadcasting(scene) {
    const producer = await scene.producer();
    const got = [[], []];
    const members = got.map(mine => scene.consumer('*', message => mine.push(message.body.toString()), { isBroadcast: true }));
    await until('all queues for each', () => members.every(member => scene.queuesOf(member) === 4));
    await scene.send(producer, 'm', 20);
    await until('all messages for each', () => got.every(mine => mine.length >= 20));
    got.forEach(mine => assert.deepStrictEqual(mine.sort(), numbered('m', 20)));
    return {};
  },

  async resume(scene) {
    const producer = await scene.producer();
    const got = [];
    const first = scene.consumer('*', message => got.push(message.body.toString()));
    await scene.send(producer, 'early', 20);
    await until('the early ones', () => got.length >= 20);
    await sleep(100);
    await first.persistConsumerOffset();
    await first.close();
    scene.opened = scene.opened.filter(client => client !== first);
    await scene.send(producer, 'late', 20);
    const rest = [];
    scene.consumer('*', message => rest.push(message.body.toString()));
    await until('the late ones', () => rest.length >= 20);
    assert.deepStrictEqual(rest.sort(), numbered('late', 20));
    return {};
  },
};

async function run(nameSrv, check) {
  const scene = new Scene(nameSrv, check);
  const result = { check, ok: true };
  try {
    result.detail = await CHECKS[check](scene);
  } catch (error) {
    result.ok = false;
    result.error = String(error && error.stack || error);
  }
  console.log(JSON.stringify(result));
  await scene.close();
}

process.stdin.on('end', () => process.exit(0));
process.stdin.resume();
const [ , , namesrv, ...chosen ] = process.argv;
if (namesrv === 'list') {
  console.log(JSON.stringify(Object.keys(CHECKS)));
  process.exit(0);
}
Promise.all(chosen.map(check => run(namesrv, check))).then(() => process.exit(0));
