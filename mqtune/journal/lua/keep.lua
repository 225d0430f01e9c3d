-- A worker's heartbeat: it keeps its name, and its place in the fleet's register.
--
-- KEYS  1 name  2 description of the worker  3 all workers  4 wish that it drains
-- ARGV  1 token, unique to the worker's process  2 milliseconds to hold both  3 the description, or '' for the one that is there
--       4 the worker's name  5 milliseconds to keep the description
--
-- Returns {'', 0, whose start the wish to drain is for, or '', 1, or 0 when there is no description}; {the token of who has the name,
-- milliseconds until that runs out, '', 0} when another process has it, and does nothing. Repeating a call does no harm.

local have = redis.call('GET', KEYS[1])
if have and have ~= ARGV[1] then return {have, redis.call('PTTL', KEYS[1]), '', 0} end
also_when_full('ZREM', KEYS[3])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
local is_described = 1
if ARGV[3] ~= '' then
  redis.call('SET', KEYS[2], ARGV[3], 'PX', ARGV[5])
elseif not redis.call('GET', KEYS[2]) then
  is_described = 0
end
redis.call('ZADD', KEYS[3], now_ms() + ARGV[2], ARGV[4])
return {'', 0, redis.call('GET', KEYS[4]) or '', is_described}
