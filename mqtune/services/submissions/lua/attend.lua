-- Renew a submission that runs on a worker.
--
-- KEYS  1 submission  2 submissions
-- ARGV  1 name  2 token  3 milliseconds until the claim expires
--
-- Returns ''; 'stop' after a user's stop; 'over' if it has ended, or another worker has claimed it; 'unknown' if the
-- server lacks it. Idempotent.

also_when_full('ZREM', KEYS[2])
local have = redis.call('HMGET', KEYS[1], 'state', 'token', 'stop')
if not have[1] then return 'unknown' end
if have[1] ~= 'running' or have[2] ~= ARGV[2] then return 'over' end
redis.call('ZADD', KEYS[2], now_ms() + ARGV[3], ARGV[1])
return have[3] and 'stop' or ''
