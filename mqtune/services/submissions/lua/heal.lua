-- Restore the queue entry of a submission that has not ended, if it is missing or too far in the future.
--
-- KEYS  1 submission  2 submissions
-- ARGV  1 name  2 milliseconds of a worker's claim
--
-- Returns 1 if the entry was restored, else 0. Idempotent.

also_when_full('ZREM', KEYS[2])
local state = redis.call('HGET', KEYS[1], 'state')
if state ~= 'waiting' and state ~= 'running' then return 0 end
-- The worker of a running one may live, and renews it within that time.
local latest = now_ms() + (state == 'running' and tonumber(ARGV[2]) or 0)
local score = tonumber(redis.call('ZSCORE', KEYS[2], ARGV[1]) or latest + 1)
if score <= latest then return 0 end
redis.call('ZADD', KEYS[2], latest, ARGV[1])
return 1
