-- End a submission for a user. A waiting one ends immediately, a running one at its worker's next renewal.
--
-- KEYS  1 submission  2 submissions
-- ARGV  1 name  2 reason
--
-- Returns unknown (it does not exist), ended (it had), stopped (it has now) or told (its worker will end it).
-- Idempotent.

also_when_full('ZREM', KEYS[2])
local state = redis.call('HGET', KEYS[1], 'state')
if not state then return 'unknown' end
if state == 'ended' then return 'ended' end
if state == 'running' and tonumber(redis.call('ZSCORE', KEYS[2], ARGV[1]) or '0') > now_ms() then
  redis.call('HSET', KEYS[1], 'stop', ARGV[2])
  return 'told'
end
redis.call('HSET', KEYS[1], 'state', 'ended', 'how', 'stopped', 'reason', ARGV[2], 'code', '', 'ended_at', now_ms(), 'token', '')
redis.call('ZREM', KEYS[2], ARGV[1])
return 'stopped'
