-- A worker's heartbeat: renews its name and its place in the fleet's register.
--
-- KEYS  1 all workers; the keys of its name, its description and its operator's orders have the same prefix
-- ARGV  1 token, unique to the worker's process  2 lifetime of both in milliseconds  3 the description, or ''
--       to keep it  4 the worker's name  5 lifetime of the description in milliseconds
--
-- Returns {'', 0, the operator's encoded orders or '', 1 if a description is stored else 0}. If another process has the
-- name, changes nothing and returns {its token, milliseconds until that expires, '', 0}. Idempotent.

local prefix = string.sub(KEYS[1], 1, -8)
local name, description, orders = prefix .. 'name:' .. ARGV[4], prefix .. 'worker:' .. ARGV[4], prefix .. 'drain:' .. ARGV[4]
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
return {'', 0, redis.call('GET', orders) or '', is_described}
