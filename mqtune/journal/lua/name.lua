-- Take, renew or release a worker's name.
--
-- KEYS  1 name
-- ARGV  1 token, unique to the worker's process  2 lifetime in milliseconds (0: release it)  3 token of a dead worker,
--       or ''
--
-- Returns {'', 0} if the worker has the name or has released it. If another process has it, changes nothing and returns
-- {its token, milliseconds until that expires}. Idempotent.

local have = redis.call('GET', KEYS[1])
if have and have ~= ARGV[1] and (have ~= ARGV[3] or ARGV[2] == '0') then return {have, redis.call('PTTL', KEYS[1])} end
if ARGV[2] == '0' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
end
return {'', 0}
