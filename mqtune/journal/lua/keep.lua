-- A worker's heartbeat: it keeps its name, and its place in the fleet's register.
--
-- KEYS  1 all workers; the names of its name, its description and the wish that it drains begin alike
-- ARGV  1 token, unique to the worker's process  2 milliseconds to hold both  3 the description, or '' for the one that is there
--       4 the worker's name  5 milliseconds to keep the description
--
-- Returns {'', 0, whose start the wish to drain is for, or '', 1, or 0 when there is no description}; {the token of who has the name,
-- milliseconds until that runs out, '', 0} when another process has it, and does nothing. Repeating a call does no harm.

local prefix = string.sub(KEYS[1], 1, -8)
local name, description, wish = prefix .. 'name:' .. ARGV[4], prefix .. 'worker:' .. ARGV[4], prefix .. 'drain:' .. ARGV[4]
local have = redis.call('GET', name)
if have and have ~= ARGV[1] then return {have, redis.call('PTTL', name), '', 0} end
also_when_full('ZREM', KEYS[1])
redis.call('SET', name, ARGV[1], 'PX', ARGV[2])
local is_described = 1
if ARGV[3] ~= '' then
  redis.call('SET', description, ARGV[3], 'PX', ARGV[5])
elseif not redis.call('GET', description) then
  is_described = 0
end
redis.call('ZADD', KEYS[1], now_ms() + ARGV[2], ARGV[4])
return {'', 0, redis.call('GET', wish) or '', is_described}
