-- Submit a script for workers with driver slots; or restore a lost submission for the worker that runs it.
--
-- KEYS  1 submission  2 its code  3 submissions  4 experiments  5 meta
-- ARGV  1 name  2 mark of this call  3 description  4 signature  5 digest of its bundle  6 bundle
--       7 number of the restored run, or 0  8 its worker  9 its token  10 milliseconds until its claim expires
--
-- Returns {'', ''}. Changes nothing and returns {'waits', ''} or {'runs', worker} if a submission of this name has not
-- ended, and {'driven', ''} if the experiment of this name has a driver. An ended submission is replaced, and the
-- numbers of runs continue. Idempotent.

local have = redis.call('HMGET', KEYS[1], 'mark', 'state', 'worker', 'run')
if have[1] == ARGV[2] then return {'', ''} end
if have[2] == 'waiting' then return {'waits', ''} end
if have[2] == 'running' then return {'runs', have[3] or ''} end
local now, goes_on = now_ms(), ARGV[7] ~= '0'
if not goes_on and number(redis.call('HGET', KEYS[5], 'driver_until'), 0) > now then return {'driven', ''} end
-- New data takes memory: a full server refuses it here, before anything is deleted.
if not goes_on then redis.call('HSET', KEYS[1], 'mark', '') end
local run = goes_on and ARGV[7] or tostring(number(have[4], 0))
redis.call('DEL', KEYS[1], KEYS[2])
redis.call('HSET', KEYS[1], 'mark', ARGV[2], 'description', ARGV[3], 'signature', ARGV[4], 'run', run,
  'before', goes_on and '0' or run, 'state', goes_on and 'running' or 'waiting', 'worker', ARGV[8], 'token', ARGV[9], 'began', now)
redis.call('HSET', KEYS[2], ARGV[5], ARGV[6])
redis.call('ZADD', KEYS[3], now + ARGV[10], ARGV[1])
redis.call('ZADD', KEYS[4], 'NX', now, ARGV[1])
return {'', ''}
