-- Record the end of a worker's run of a submission.
--
-- KEYS  1 submission  2 submissions  3 driver and 4 meta of the experiment of its name
-- ARGV  1 name  2 token  3 how: done, failed or stopped; again, for another worker to run it; lost, the same, but
--       counted as the loss of a worker  4 exit code  5 reason  6 the end of its output
--       7 description of its dead process
--
-- Returns 1; or 0, without any change, if this worker's claim does not hold any more. Idempotent.

also_when_full('ZREM', KEYS[2])
local have = redis.call('HMGET', KEYS[1], 'state', 'token', 'stop')
if have[1] ~= 'running' or have[2] ~= ARGV[2] then return 0 end
local how, reason = ARGV[3], ARGV[5]
if have[3] and how ~= 'done' and how ~= 'failed' then how, reason = 'stopped', have[3] end
-- Otherwise the next run would wait until the lock expires.
if redis.call('HGET', KEYS[3], 'driver') == ARGV[7] then redis.call('HSET', KEYS[4], 'driver_until', now_ms()) end
redis.call('HSET', KEYS[1], 'token', '', 'code', ARGV[4], 'reason', reason, 'output', ARGV[6])
if how == 'again' or how == 'lost' then
  if how == 'again' then redis.call('HSET', KEYS[1], 'state', 'waiting') end
  redis.call('ZADD', KEYS[2], now_ms(), ARGV[1])
else
  redis.call('HSET', KEYS[1], 'state', 'ended', 'how', how, 'ended_at', now_ms())
  redis.call('ZREM', KEYS[2], ARGV[1])
end
return 1
