-- A worker takes, keeps or gives back its name.
--
-- KEYS  1 name
-- ARGV  1 token, unique to the worker's process  2 milliseconds to hold it (0: give it back)  3 token of a worker that is known to
--       be dead, or ''
--
-- Returns {'', 0} when the worker has the name, or has given it back; else {the token of who has it, milliseconds until that runs
-- out}, and does nothing. Repeating a call does no harm.

local have = redis.call('GET', KEYS[1])
if have and have ~= ARGV[1] and (have ~= ARGV[3] or ARGV[2] == '0') then return {have, redis.call('PTTL', KEYS[1])} end
if ARGV[2] == '0' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
end
return {'', 0}
