-- Append that an attempt is staged, and make it claimable.
--
-- KEYS  1 driver  2 meta  3 journal  4 trial  5 staged  6 leases  7… the queue of each task, if there are queues
-- ARGV  1 channel  2 epoch  3 trial  4 attempt  5 assignment  6 event
--       7 number of tasks and their resources, or '' for one task  8… the message of each task, if there are queues
--
-- Messages for workers without Celery are queued here. Messages for Celery are published later.
--
-- Returns 1 if the attempt is staged; 0 if this or a later attempt already was (nothing is journaled twice); an error
-- STALEDRIVER if a later driver exists. The previous attempt is superseded from here on.

local refused = stale(KEYS[1], ARGV[2])
if refused then return refused end
also_when_full('HDEL', KEYS[1])
local have = redis.call('HMGET', KEYS[4], 'attempt', 'gang')
if number(have[1], 0) >= tonumber(ARGV[4]) then return 0 end
local prefix, now = string.sub(KEYS[4], 1, -1 - #ARGV[3]), now_ms()
-- The previous attempt may have had more tasks.
for task = 1, have[2] and have[2] ~= '' and forget_tasks(KEYS[4]) or 0 do
  redis.call('ZREM', KEYS[5], ARGV[3] .. '~' .. task)
  redis.call('ZREM', KEYS[6], ARGV[3] .. '~' .. task)
end
if ARGV[7] ~= '' then now = last_of(KEYS[5], now) end
for _, name in ipairs((tasks_of(ARGV[3], ARGV[7]))) do
  local task = prefix .. name
  blank(task, 'attempt', ARGV[4], 'state', 'staged', 'assignment', ARGV[5], 'gang', ARGV[7], 'ended_as', '')
  redis.call('PERSIST', task)
  redis.call('ZADD', KEYS[5], now, name)
  redis.call('ZREM', KEYS[6], name)
end
append(KEYS[2], KEYS[3], ARGV[1], ARGV[6])
for i = 7, #KEYS do redis.call('LPUSH', KEYS[i], ARGV[i + 1]) end
return 1
