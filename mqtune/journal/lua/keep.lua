-- A worker's heartbeat: it keeps its name, and its place in the fleet's register.
--
-- KEYS  1 name  2 description of the worker  3 all workers  4 wish that it drains
-- ARGV  1 token, unique to the worker's process  2 milliseconds to hold both  3 the description  4 the worker's name
--
-- Returns {'', 0, whose start the wish to drain is for, or ''}; {the token of who has the name, milliseconds until that runs out, ''}
-- when another process has it, and does nothing. Repeating a call does no harm.

local have = redis.call('GET', KEYS[1])
if have and have ~= ARGV[1] then return {have, redis.call('PTTL', KEYS[1]), ''} end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('SET', KEYS[2], ARGV[3], 'PX', ARGV[2])
redis.call('ZADD', KEYS[3], now_ms() + ARGV[2], ARGV[4])
return {'', 0, redis.call('GET', KEYS[4]) or ''}
