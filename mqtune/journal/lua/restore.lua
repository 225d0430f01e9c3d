-- Restore an experiment's data that the server has lost. Called by its driver.
--
-- KEYS  1 driver  2 meta  3 journal  4 stream with the entries to restore  5 leases  6 staged
--       7 experiments  8 requests  9 chapters  10… each trial
-- ARGV  1 channel  2 epoch  3 holder token  4 description of the driver, for users  5 lock time in milliseconds
--       6 experiment  7 mark, unique to this call  8 definition  9 bytes of those entries
--       10 the last entry in a chapter, or ''  11 the chapters, a line each
--       12 the first entry of all: its id, a space, the event  13 number of later events, then the events
--       then the number of requests in those entries, and for each its id and its entry's id
--       then for each trial: the number of its last attempt, the time of its last report
--
-- Returns 1; 0, without any change, if those entries are missing; an error STALEDRIVER if a later driver exists. From
-- here on all attempts have ended, and further calls of their workers are refused. Existing checkpoints stay.
-- Idempotent.

if tonumber(redis.call('HGET', KEYS[1], 'epoch') or '0') > tonumber(ARGV[2]) then return redis.error_reply(STALE) end
if redis.call('HGET', KEYS[1], 'restored') == ARGV[7] then return 1 end
if redis.call('EXISTS', KEYS[4]) == 0 then return 0 end
local now = now_ms()
redis.call('RENAME', KEYS[4], KEYS[3])
redis.call('PERSIST', KEYS[3])
redis.call('HSET', KEYS[1], 'holder', ARGV[3], 'driver', ARGV[4], 'epoch', ARGV[2], 'since', now, 'restored', ARGV[7])
local last = redis.call('XREVRANGE', KEYS[3], '+', '-', 'COUNT', 1)[1][1]
redis.call('HSET', KEYS[2], 'definition', ARGV[8], 'last', last, 'bytes', ARGV[9], 'driver_until', now + ARGV[5])
redis.call('DEL', KEYS[9])
if ARGV[10] ~= '' then redis.call('HSET', KEYS[9], 'trimmed', ARGV[10], 'lines', ARGV[11], 'first', ARGV[12]) end
redis.call('ZADD', KEYS[7], 'NX', now, ARGV[6])
redis.call('DEL', KEYS[5], KEYS[6], KEYS[8])
local events = tonumber(ARGV[13])
local requests = 14 + events
local trials = requests + 1 + 2 * ARGV[requests]
for at = requests + 1, trials - 1, 2 do
  redis.call('HSET', KEYS[8], ARGV[at], ARGV[at + 1])
end
for i = 10, #KEYS do
  local at = trials + (i - 10) * 2
  redis.call('DEL', KEYS[i])
  forget_tasks(KEYS[i])
  blank(KEYS[i], 'attempt', ARGV[at], 'state', 'ended', 'timestamp', ARGV[at + 1], 'ended_by', 'restored')
  retire(KEYS[i])
end
for i = 14, 13 + events do
  append(KEYS[2], KEYS[3], ARGV[1], ARGV[i])
end
return 1
